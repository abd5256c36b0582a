"""How much memory a step takes while it runs, beyond what is left of it: learned from the steps.

Activations of a chunk depend on the model, its kernels and the device's allocator, so a fixed share of the
memory is too much for one model and too little for another. The bytes are a line of the chunk's tokens and
their context (scores of attention), and on top the most by which a recent chunk exceeded it.

A step without a chunk takes memory too: a row that leaves a batch or joins it copies the keys and values of
all rows, a layer at a time or, where the device cannot donate, all at once.
"""

from __future__ import annotations

from collections import deque

from scheduler.engine.planning.fitted_line import FittedLine

_RECENT = 64
"""Chunks whose excess over the line still counts."""
_NOTICED = 1 / 32
"""Fraction of the rows' bytes that counts as copies: less is a step's activations."""
_MOST_COPIES = 1.0
"""Bound on the copied part of all rows. More is activations, which do not grow with the rows."""
_LEAST_COPIES = 1 / 4
"""The least part of all rows that is expected to be copied, however little was seen."""
_LEAST_PART = 1 / 16
"""The least that a chunk counts in the fit, as a fraction of the largest recent one. The fit is of relative
errors: a chunk that took next to nothing, as when its buffers were there already, would outweigh all
others."""


def _factors(tokens: int, context: int) -> tuple[float, ...]:
    """Return the factors of the line, the tokens first: what one chunk leaves open is attributed to its
    tokens, so that larger chunks are expected to take more."""
    return tokens / 64, tokens * context / (1 << 18), 1.0


class ChunkPeak:
    """`first_bytes`: expected of a chunk of `most_tokens` before any was measured."""

    def __init__(self, first_bytes: int, most_tokens: int) -> None:
        self._first_bytes = first_bytes
        self._most_tokens = most_tokens
        self._line = FittedLine(3)
        self._taken: deque[int] = deque(maxlen=_RECENT)
        self._excess: deque[float] = deque(maxlen=_RECENT)

    def observe(self, tokens: int, context: int, transient_bytes: int) -> None:
        """Learn that a chunk of `tokens` (padding included) behind `context` computed tokens took this much
        at its peak, beyond what was held before it."""
        if tokens <= 0:
            return
        self._taken.append(max(0, transient_bytes))
        factors = _factors(tokens, context)
        self._line.learn(max(1.0, transient_bytes, max(self._taken) * _LEAST_PART), factors)
        self._excess.append(transient_bytes - self._line.cost(factors))

    def needed_bytes(self, tokens: int, context: int) -> int:
        """Return what a chunk will take at most, as far as is known."""
        if not self._taken:
            return -(-self._first_bytes * tokens // self._most_tokens)
        return round(self._line.cost(_factors(tokens, context)) + max(0.0, *self._excess))

    def fitting_tokens(self, room_bytes: int, context: int) -> int:
        """Return the largest chunk, up to the most, that this room is enough for; 0: none."""
        low, high = 0, self._most_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed_bytes(middle, context) <= room_bytes:
                low = middle
            else:
                high = middle - 1
        return low


class CopyPeak:
    """What steps without a chunk take, as the worst ratio to the bytes of the rows in recent steps."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_RECENT)

    def observe(self, row_bytes: int, transient_bytes: int) -> None:
        """Learn from a step without a chunk. Most copy nothing, and would push those that do out of the
        window: they do not count."""
        if row_bytes > 0 and transient_bytes > row_bytes * _NOTICED:
            self._ratios.append(min(_MOST_COPIES, transient_bytes / row_bytes))

    @property
    def part(self) -> float:
        """Return the part of the rows' bytes that one more step may copy at a time; before any was measured,
        all of them."""
        return max(_LEAST_COPIES, max(self._ratios, default=_MOST_COPIES))

    def needed_bytes(self, row_bytes: int) -> int:
        return round(row_bytes * max(self._ratios, default=0.0))
