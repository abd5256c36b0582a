"""Cache of checked grammars: agents send the same schema with every turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

MAX_ENTRIES = 512
MAX_BYTES = 16 << 20


class UnknownVerdict(Exception):
    """This grammar is not in the cache."""


class Verdicts:
    """Errors by grammar text (None for a valid one), the least recently used evicted first. Thread-safe; two
    threads that check the same new grammar at the same time both compile it."""

    def __init__(
        self,
        complaint: Callable[[str], str | None],
        max_entries: int = MAX_ENTRIES,
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
