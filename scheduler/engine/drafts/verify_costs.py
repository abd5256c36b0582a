"""What a step that verifies drafts costs, as a multiple of a step without: learned from the running engine.

Both are measured from the end of the step before, so that what overlap hides of a plain step, and what a step
with drafts waits for, is in the numbers.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from scheduler.engine.fitted_line import FittedLine

DRAFTED = (1, 3, 7, 15)
"""Drafts a row that a step may have: few shapes, each twice as wide, so that each is measured soon and a
device that compiles or caches by shape has few."""
_FIRST_GUESS = 1.1
_REMEMBERED = 4
_STALE_STEPS = 256
"""Plain steps after which the oldest measurement is forgotten: contexts grow, and what was too dear is tried
again."""


@dataclass(slots=True)
class VerifyCosts:
    _plain: FittedLine = field(default_factory=lambda: FittedLine(2))
    _ratios: dict[tuple[int, int], deque[float]] = field(default_factory=dict)
    _plain_steps: int = 0

    def learn(self, seconds: float, rows: int, drafted: int) -> None:
        """`drafted`: the drafts that each row was computed with, padding included."""
        if seconds <= 0:
            return  # A virtual clock.
        if not drafted:
            self._plain.learn(seconds, (1.0, rows / 32))
            self._plain_steps += 1
            if self._plain_steps % _STALE_STEPS == 0:
                for known in self._ratios.values():
                    if known:
                        known.popleft()
        elif plain := self.plain_seconds(rows):
            known = self._ratios.setdefault((rows.bit_length(), drafted), deque(maxlen=_REMEMBERED))
            known.append(seconds / plain)

    def plain_seconds(self, rows: int) -> float:
        """Return the time of a step without drafts; 0 while unknown."""
        return self._plain.cost((1.0, rows / 32)) if self._plain else 0.0

    def ratio(self, rows: int, drafted: int) -> float:
        """Return the cost of a step with `drafted` drafts a row. One that was not measured yet is as far
        above the next smaller one as that is above a plain step; two that were not are not tried at once."""
        before, cost_before, slope = 0, 1.0, _FIRST_GUESS - 1.0
        for each in DRAFTED:
            known = self._ratios.get((rows.bit_length(), each))
            cost = cost_before + (each - before) * slope
            if known:
                # The first of a new shape may have waited for a compiler, and any for the machine.
                cost = sorted(known)[1 if len(known) > 2 else 0]
            if each == drafted:
                return cost
            if not known:
                break
            before, cost_before, slope = each, cost, max(0.0, cost - 1.0) / each
        return math.inf
