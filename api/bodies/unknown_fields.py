"""The fields of a body that no schema knows: ignored, and named to the client, in the log and in the metrics.

While an `UnknownFields` is noting, a schema (`Body` in `body.py`) notes the fields that it does not know.
Only a body that has such fields costs anything: one walk of it at most, and 17 names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

HEADER = "x-penstock-ignored"
SCOPE_KEY = "penstock_ignored"
"""Key of a request's ASGI scope under which the ignored fields are kept for later stages."""
MAX_NAMES = 16
MAX_NAME_CHARACTERS = 64
MORE = "..."
"""Stands for further names, and for the rest of a long one."""

MAX_POINTER_CHARACTERS = 160
"""Bound on a name that is a field with a JSON pointer."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.$@:/+*\[\]#~-]")
"""What cannot stand in a header, and the comma between two names."""


class UnknownFields:
    """The unknown fields of one body: the first place of each unknown field of each schema."""

    def __init__(self) -> None:
        self._places: dict[int, set[str]] = {}
        """Places by the identity of the object that the field is in, which the body keeps alive."""
        self._seen: set[tuple[type, str]] = set()

    @staticmethod
    def current() -> UnknownFields | None:
        return _current.get()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Let schemas note unknown fields, and drop them, until the block is left."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def without(self, schema: type, value: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
        """Return `value` with no members but `names`, and note the others. A null counts as absent."""
        for name, given in value.items():
            if len(self._seen) > MAX_NAMES:
                break
            if name not in names and given is not None:
                self.note(value, name, schema)
        return {name: value[name] for name in names if name in value}

    def note(self, value: dict[str, Any], name: str, schema: type = dict) -> None:
        """Note one thing of `value` that is not read, by what follows its path: `type:web_search`."""
        if len(self._seen) <= MAX_NAMES and (schema, name) not in self._seen:
            self._seen.add((schema, name))
            self._places.setdefault(id(value), set()).add(name)

    def named(self, body: Any) -> tuple[str, ...]:
        """Return the paths of the unknown fields in `body`, such as `messages[].cache`, in order, in ASCII
        without commas and white space."""
        if not self._places:
            return ()
        left = dict(self._places)
        found = {_path((*path, name)) for path, names in _found(body, left, ()) for name in names}
        # The place of a field in an object that a schema has built itself is unknown: `*`.
        found |= {_path(("*", name)) for names in left.values() for name in names}
        paths = tuple(sorted(found))
        return paths if len(self._seen) <= MAX_NAMES else (*paths[:MAX_NAMES], MORE)


def _found(
    value: Any, left: dict[int, set[str]], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield the objects of `left`, and where they are. Ends with the last of them."""
    if isinstance(value, dict):
        if (names := left.pop(id(value), None)) is not None:
            yield path, names
        inner: Any = value.items()
    elif isinstance(value, list):
        inner = (("[]", item) for item in value)
    else:
        return
    for name, item in inner:
        if not left:
            return
        if isinstance(item, dict | list):
            yield from _found(item, left, (*path, name))


def _path(parts: tuple[str, ...]) -> str:
    joined = "".join(part if part == "[]" else f".{part[: MAX_NAME_CHARACTERS + 1]}" for part in parts)
    safe = _UNSAFE.sub("?", joined.removeprefix(".")) or "?"
    return safe if len(safe) <= MAX_NAME_CHARACTERS else safe[: MAX_NAME_CHARACTERS - len(MORE)] + MORE


def ignored(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ignored fields of a request whose body has been read."""
    names: tuple[str, ...] = scope.get(SCOPE_KEY, ())
    return names


def ignore(scope: MutableMapping[str, Any], *names: str) -> tuple[str, ...]:
    """Add known fields that have no effect here. Return all names."""
    every = scope[SCOPE_KEY] = tuple(sorted({*ignored(scope), *names}))
    return every


def pointed(names: Iterable[str]) -> list[str]:
    """Return fields with a JSON pointer, `field#/pointer`, as they can stand in a header: the middle of a
    long pointer is left out."""
    found = []
    for name in names:
        safe = _UNSAFE.sub("?", name)
        if len(safe) > MAX_POINTER_CHARACTERS:
            field, _, pointer = safe.partition("#")
            last = pointer.rpartition("/")[2][-MAX_NAME_CHARACTERS:]
            kept = max(0, MAX_POINTER_CHARACTERS - len(last) - len(f"{MORE}/"))
            safe = f"{f'{field}#{pointer}'[:kept]}{MORE}/{last}"
        found.append(safe)
    return found


_current: ContextVar[UnknownFields | None] = ContextVar("unknown_fields", default=None)
"""Not in pydantic's own context, which costs each object of a body 0.2 µs, a tenth of a message's cost."""
