"""What clients and operators asked to keep for a time: the bound on it, and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from scheduler.engine.prefix.retention import Mark


class Holds:
    """Counts the bytes that are held. A mark's `held_until` and `held_bytes` are written here alone."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.refused = 0
        self._ends: list[tuple[float, int, Mark]] = []
        self._entries = 0
        self._most = 64

    def begin(self, pieces: Iterable[tuple[Mark, int]], until: float, room: int) -> bool:
        """Hold these marks' nodes, each with its bytes, until then. False, with nothing changed, if more
        than `room` bytes would be held."""
        path = list(pieces)
        more = sum(nbytes for mark, nbytes in path if not mark.held_bytes)
        if self.nbytes + more > room:
            self.refused += 1
            return False
        for mark, nbytes in path:
            fresh = not mark.held_bytes
            mark.held_until = max(mark.held_until, until)
            self._count(mark, max(nbytes, mark.held_bytes))
            if fresh:
                self._push(mark)
        return True

    def split(self, upper: Mark, upper_bytes: int, lower: Mark, lower_bytes: int) -> None:
        """A node was cut in two: both are held as long as it was."""
        if lower.held_bytes:
            upper.held_until = lower.held_until
            self._count(upper, upper_bytes)
            self._count(lower, lower_bytes)
            self._push(upper)

    def end(self, mark: Mark) -> None:
        """Its time is over, or it was evicted."""
        self.nbytes -= mark.held_bytes
        mark.held_until, mark.held_bytes = 0.0, 0

    def expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, _, mark = heappop(self._ends)
            if mark.held_bytes and mark.held_until > now:
                self._push(mark)
            elif mark.held_bytes:
                self.end(mark)

    def _count(self, mark: Mark, nbytes: int) -> None:
        self.nbytes += nbytes - mark.held_bytes
        mark.held_bytes = nbytes

    def _push(self, mark: Mark) -> None:
        self._entries += 1
        heappush(self._ends, (mark.held_until, self._entries, mark))
        if len(self._ends) > self._most:  # Evicted ones are still in it: amortised by the pushes.
            self._ends = [entry for entry in self._ends if entry[2].held_bytes]
            heapify(self._ends)
            self._most = 64 + 2 * len(self._ends)
