"""What a step that verifies drafts costs, as a multiple of a step without: learned from the running engine.

Both are measured from the end of the step before, so that what overlap hides of a plain step, and what a step
with drafts waits for, is in the numbers.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

DRAFTED = (1, 3, 7, 15)
"""Drafts a row that a step may have: few shapes, each twice as wide, so that each is measured soon, and a
device that compiles or caches by shape has few."""
_FIRST_GUESS = 1.1
_REMEMBERED = 4
_STALE_STEPS = 256
"""Steps after which the oldest measurement of each shape is forgotten: contexts grow, and what was too dear
is tried again."""
_SIZES_PER_DOUBLING = 4


@dataclass(slots=True)
class VerifyCosts:
    """Seconds of the last steps by the size of the batch and the drafts a row."""

    _seconds: dict[tuple[int, int], deque[float]] = field(default_factory=dict)
    _learned_steps: int = 0

    def learn(self, seconds: float, rows: int, drafted: int) -> None:
        """Learn from a step. `drafted`: the drafts that each row was computed with, padding included. Unusual
        numbers, at the end of an answer, teach nothing."""
        if seconds <= 0 or drafted not in (0, *DRAFTED):  # With a virtual clock a step takes no time.
            return
        self._seconds.setdefault((_size(rows), drafted), deque(maxlen=_REMEMBERED)).append(seconds)
        self._learned_steps += 1
        if self._learned_steps % _STALE_STEPS == 0:
            for known in self._seconds.values():
                if known:
                    known.popleft()

    def ratio(self, rows: int, drafted: int) -> float:
        """Return the cost of a step with `drafted` drafts a row; infinite before a plain step was measured.
        The further drafts of a width that was not measured are taken to cost as much each as those of the
        next smaller width, and a width that was measured once no more than that. The cost is infinite, too,
        if the next smaller width was not measured: widths are tried one after the other."""
        size = _size(rows)
        if (plain := self._typical(size, 0)) is None:
            return math.inf
        before, cost_before, slope = 0, 1.0, _FIRST_GUESS - 1.0
        for each in DRAFTED:
            known = self._typical(size, each)
            guess = cost_before + (each - before) * slope
            if each == drafted:
                # A single one may have waited for a compiler, or for the machine: it excludes nothing.
                sure = len(self._seconds.get((size, each), ())) > 1
                cost = guess if known is None else known / plain
                return cost if sure else min(cost, guess)
            if known is None:
                break
            before, cost_before, slope = each, known / plain, max(0.0, known / plain - 1.0) / each
        return math.inf

    def _typical(self, size: int, drafted: int) -> float | None:
        """Return the second smallest of several measurements, the smallest of at most two, or None without
        any."""
        known = sorted(self._seconds.get((size, drafted), ()))
        return known[1 if len(known) > 2 else 0] if known else None


def _size(rows: int) -> int:
    """Return the size by which a batch is known: batches of one size take about the same time."""
    return round(_SIZES_PER_DOUBLING * math.log2(rows))
