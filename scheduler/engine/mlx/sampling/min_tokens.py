"""`min_tokens`: rows that may not end yet cannot choose a token that would end them, as in vLLM.

Rows with a grammar are not among these: what it allows is known on the host, and so is whether it leaves any
token but an end (`constraint.py`). The rows that may, and steps in which all may, cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx


class HeldEnds:
    """The rows of one batch that may not end yet, and for how long. Made anew when rows join or leave."""

    def __init__(self, rows: Sequence[tuple[int, Sequence[int]]]) -> None:
        """`rows`: of each, how many more tokens may not be its end, and the ids that would be."""
        self._held = [
            (place, tokens, ends) for place, (tokens, ends) in enumerate(rows) if tokens > 0 and ends
        ]
        self._steps = 0
        self._index()

    def _index(self) -> None:
        pairs = [(place, end) for place, _, ends in self._held for end in ends]
        self._places = mx.array([place for place, _ in pairs])
        self._ends = mx.array([end for _, end in pairs])

    def apply(self, logits: mx.array) -> mx.array:
        """Called once a step with (rows, vocabulary)."""
        if not self._held:
            return logits
        if any(tokens <= self._steps for _, tokens, _ in self._held):
            self._held = [entry for entry in self._held if entry[1] > self._steps]
            self._index()
        self._steps += 1
        if not self._held:
            return logits
        logits = logits[:]
        logits[self._places, self._ends] = -math.inf
        return logits
