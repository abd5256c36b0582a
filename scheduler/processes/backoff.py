"""How long to wait before a process is started again: twice as long each time, until one has lasted."""

from __future__ import annotations


class Backoff:
    def __init__(self, first_seconds: float, limit_seconds: float) -> None:
        self._first, self._limit = first_seconds, limit_seconds
        self.seconds = first_seconds
        """Pause before the next start."""

    def lasted(self) -> None:
        """Begin again with the first pause: the last process has lasted, so that its end is no failure to
        start."""
        self.seconds = self._first

    def waited(self) -> None:
        self.seconds = min(self.seconds * 2, self._limit)
