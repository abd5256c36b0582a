"""Caches of grammars, written and checked: agents send the same tools and schemas with every turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sized
from hashlib import sha256
from json import dumps
from threading import Lock
from typing import Any, Generic, TypeVar

MAX_VERDICTS, MAX_TEXTS = 512, 256
MAX_BYTES = 16 << 20
"""The limit of each cache."""


class UnknownVerdict(Exception):
    """This grammar is not in the cache."""


class Verdicts:
    """Errors by grammar text (None for a valid one), the least recently used evicted first. Thread-safe; two
    threads that check the same new grammar at the same time both compile it."""

    def __init__(
        self,
        complaint: Callable[[str], str | None],
        max_entries: int = MAX_VERDICTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._complaint = complaint
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, str | None] = OrderedDict()
        self._lock = Lock()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def known(self, grammar: str) -> str | None:
        """Return the cached error, or None if the grammar is valid. Raise UnknownVerdict."""
        with self._lock:
            if grammar not in self._known:
                raise UnknownVerdict
            self._known.move_to_end(grammar)
            return self._known[grammar]

    def of(self, grammar: str) -> str | None:
        """Return the error, or None if the grammar is valid; compile it if it is not cached."""
        try:
            return self.known(grammar)
        except UnknownVerdict:
            return self._check(grammar)

    def _check(self, grammar: str) -> str | None:
        complaint = self._complaint(grammar)
        with self._lock:
            if grammar not in self._known:
                self._known[grammar] = complaint
                self.held_bytes += _size(grammar, complaint)
            while len(self._known) > self._max_entries or self.held_bytes > self._max_bytes:
                self.held_bytes -= _size(*self._known.popitem(last=False))
        return complaint


def _size(grammar: str, complaint: str | None) -> int:
    return len(grammar) + len(complaint or "")


_T = TypeVar("_T", bound=Sized)


class GrammarTexts(Generic[_T]):
    """Grammars by the key of what they were made from, the least recently used evicted first. Thread-safe."""

    def __init__(self, max_entries: int = MAX_TEXTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._texts: OrderedDict[bytes, _T] = OrderedDict()
        self._lock = Lock()
        self.held_bytes = 0

    def get(self, key: bytes) -> _T | None:
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
            return self._texts.get(key)

    def put(self, key: bytes, text: _T) -> None:
        with self._lock:
            self.held_bytes += len(text) - len(self._texts.pop(key, ""))
            self._texts[key] = text
            while len(self._texts) > self._max_entries or self.held_bytes > self._max_bytes:
                self.held_bytes -= len(self._texts.popitem(last=False)[1])


def content_key(*parts: Any) -> bytes:
    """Return a key for JSON values, dataclasses and enumerations. The order of an object's members counts,
    because they are written in that order."""
    return sha256(dumps(parts, default=repr).encode("utf-8", "surrogatepass")).digest()
