"""A line fitted to the latest measurements: what a step costs, in seconds or bytes, by its size.

The prefill pace (`pace.py`, seconds) and the memory of a chunk (`budget/learned.py`, bytes) fit the same kind
of line.
"""

from __future__ import annotations

from operator import mul

_FORGETTING = 0.93
"""Forgetting factor per observation: a half-life of ten steps."""
_SWEEPS = 20


class FittedLine:
    """cost = sum of terms * factors, terms >= 0: least squares of the relative errors, by coordinate descent
    from the last solution. A table by sizes fails: if only small chunks were observed at some context,
    tokens would seem slow there, and chunks would stay small; and it cannot predict larger batches.

    An ambiguous cost is attributed to the first term that can explain it.
    """

    def __init__(self, terms: int) -> None:
        self._squares = [[0.0] * terms for _ in range(terms)]
        self._products = [0.0] * terms
        self._terms = [0.0] * terms

    def __bool__(self) -> bool:
        return any(self._terms)

    def learn(self, cost: float, factors: tuple[float, ...]) -> None:
        """Learn one measurement. `cost` must be positive."""
        for row, factor in enumerate(factors):
            others = self._squares[row]
            for column, other in enumerate(factors):
                others[column] = _FORGETTING * others[column] + factor * other / cost**2
            self._products[row] = _FORGETTING * self._products[row] + factor / cost
        for _ in range(_SWEEPS):
            for row, others in enumerate(self._squares):
                if others[row]:
                    error = self._products[row] - sum(map(mul, others, self._terms))
                    self._terms[row] = max(0.0, self._terms[row] + error / others[row])

    @property
    def terms(self) -> tuple[float, ...]:
        return tuple(self._terms)

    def cost(self, factors: tuple[float, ...]) -> float:
        total: float = sum(map(mul, factors, self._terms))
        return total
