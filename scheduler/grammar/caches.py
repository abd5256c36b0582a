"""A cache of grammars, written and checked: agents send the same tools and schemas with every turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sized
from hashlib import sha256
from json import dumps
from threading import Lock
from typing import Any, Generic, TypeVar

MAX_TEXTS, MAX_BYTES = 256, 16 << 20


class UnknownGrammar(Exception):
    """It is not in the cache."""


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
