"""Rules of eviction to compare the server's with: least recently used, and the segmented one that it had."""

from __future__ import annotations

from math import inf

from scheduler.engine.prefix.retention import Mark, SessionKey


class LeastRecentlyUsed:
    """An `EvictionRule` that learns nothing."""

    def worth(self, mark: Mark, last_used: float, hits: int, now: float) -> tuple[float, float]:
        return last_used, inf

    def hit(self, mark: Mark, now: float) -> None:
        pass

    def evicted(self, mark: Mark, now: float) -> None:
        pass

    def ended(self, key: SessionKey, kind: str, now: float) -> None:
        pass

    def returned(self, key: SessionKey, now: float) -> None:
        pass


class Segmented(LeastRecentlyUsed):
    """What was used again (a continuation, two hits, several branches) counts as used `seconds` later."""

    def __init__(self, seconds: float = 600.0) -> None:
        self._seconds = seconds

    def worth(self, mark: Mark, last_used: float, hits: int, now: float) -> tuple[float, float]:
        return last_used + self._seconds * mark.protected, inf
