"""Texts of messages as a chat template has rendered them, kept from turn to turn."""

from __future__ import annotations

import marshal
import sys
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

from jinja2 import Undefined
from jinja2.utils import Namespace

from scheduler.statistics import TextStatistics

FAILED = b"failed"
"""Instead of the value of an expression that raised: where it does, either the turn raises, too, or never
reads it."""
_UNDEFINED, _ABSENT = b"undefined", b"absent"
TEXTS_BYTES = 64 << 20
"""For a hundred conversations of 400,000 characters, and what they have in common."""
_ENTRY_BYTES = 256
"""Of an entry beside its text: key, tuples, links."""
_DIGEST_BYTES = 16
_SHORT = 256
"""Characters. Longer values of namespaces are not kept; longer strings stand in keys by their hash."""
_MOST_HASHED = 64

Kept = tuple[str, tuple[Any, ...]]
"""A text, and what the namespaces' attributes are after it."""


class KeptTexts:
    """Thread-safe. Forgets the texts that were used the longest time ago."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: of what is kept, all salts together."""
        self.whole: str | None = "the model has no chat template of Jinja"
        """What is rendered each time, and why: the conversation, or loops; None: all loops keep texts."""
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self._held_bytes = self._made = self._found = 0
        self._lock = Lock()

    def statistics(self) -> TextStatistics:
        with self._lock:
            return TextStatistics(self.whole, self._made + self._found, self._found, self._held_bytes)

    def clear(self) -> None:
        """Forget the texts, and that they were counted."""
        with self._lock:
            self._kept.clear()
            self._held_bytes = self._made = self._found = 0

    def rendering(self, salt: str, sites: int) -> Rendering:
        """Only renderings with equal salts share texts, so that nobody learns from the time that it takes
        what others have sent."""
        return Rendering(self._kept.get, [f"{salt}\0{site}" for site in range(sites)])

    def add(self, rendering: Rendering) -> None:
        """Keep what `rendering` has made, and note what it has found. For one that has not failed."""
        with self._lock:
            self._found += len(rendering.found)
            self._made += rendering.turns - len(rendering.found)
            for key in rendering.found:
                if key in self._kept:
                    self._kept.move_to_end(key)
            for key, kept in rendering.made.items():
                self._keep(key, kept)

    def _keep(self, key: bytes, kept: Kept) -> None:
        nbytes = _bytes(kept)
        if key in self._kept or nbytes > self._limit_bytes:
            return
        self._kept[key] = kept
        self._held_bytes += nbytes
        while self._held_bytes > self._limit_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._held_bytes -= _bytes(oldest)


class Rendering:
    """One rendering's view of the kept texts. The compiled template calls it at each turn of a loop."""

    def __init__(self, get: Any, places: Sequence[str]) -> None:
        """`get`: a kept text by its key."""
        self._get = get
        self._secrets = [blake2b(place.encode()).digest() for place in places]
        self._hashed: dict[int, tuple[Any, bytes]] = {}
        self._key: bytes | None = None
        self.turns = 0
        self.found: list[bytes] = []
        self.made: dict[bytes, Kept] = {}

    def find(self, site: int, values: tuple[Any, ...], spaces: Sequence[tuple[Any, str]]) -> str | None:
        """Return the kept text of a turn of a loop, after setting the namespaces' attributes as that turn
        did; None if there is none, so that `keep` follows. `values`: all that the turn may read."""
        self.turns += 1
        self._key = key = self._key_of(site, values)
        if key is None:
            return None
        kept: Kept | None = self._get(key) or self.made.get(key)
        if kept is None:
            return None
        if spaces:
            if not all(isinstance(space, Namespace) for space, _ in spaces):
                return None
            for (space, name), value in zip(spaces, kept[1], strict=True):
                if value is not _ABSENT:
                    space[name] = value
        self.found.append(key)
        return kept[0]

    def _key_of(self, site: int, values: tuple[Any, ...]) -> bytes | None:
        """None if a value is no plain data, or too deep."""
        try:
            content = marshal.dumps(values, 0)
        except ValueError:
            values = tuple(_UNDEFINED if isinstance(one, Undefined) else one for one in values)
            try:
                content = marshal.dumps(values, 0)
            except ValueError:
                return None
        return blake2b(content, digest_size=_DIGEST_BYTES, key=self._secrets[site]).digest()

    def short(self, value: Any) -> Any:
        """Return the value for a key, or the hash of one that is long. The same list of tools is read at each
        turn of a loop."""
        if (isinstance(value, str) and len(value) <= _SHORT) or not isinstance(
            value, str | dict | list | tuple
        ):
            return value
        known = self._hashed.get(id(value))
        if known is not None:
            return known[1]
        try:
            digest = blake2b(marshal.dumps(value, 0)).digest()
        except ValueError:
            return value
        if len(self._hashed) >= _MOST_HASHED:
            self._hashed.clear()
        # With the value itself, so that its id stays its own.
        self._hashed[id(value)] = (value, digest)
        return digest

    def keep(self, text: str, spaces: Sequence[tuple[Any, str]]) -> str:
        """Keep `text` under the last key, unless the turn left something in a namespace that is no short
        plain value; return it."""
        key = self._key
        if key is None:
            return text
        after = []
        for space, name in spaces:
            if not isinstance(space, Namespace):
                return text
            try:
                value = getattr(space, name)
            except AttributeError:
                value = _ABSENT
            if value is not _ABSENT and not _is_short(value):
                return text
            after.append(value)
        self.made[key] = (text, tuple(after))
        return text


def _is_short(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _SHORT
    return value is None or type(value) in (bool, int, float)


def _bytes(kept: Kept) -> int:
    return _ENTRY_BYTES + sys.getsizeof(kept[0]) + sum(map(sys.getsizeof, kept[1]))
