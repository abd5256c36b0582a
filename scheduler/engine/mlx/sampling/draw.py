"""Draw one token for each row that samples: cut-offs, temperature, and random numbers of its own.

Random numbers are keyed by (seed, position), not drawn from a stream: the same request gives the same tokens
alone, among 31 others, and when it is recomputed from the middle. Every operation works row by row, so
neighbours and their order change nothing.

The cut-offs are mlx-lm's (top-p, min-p and top-k, on the untempered distribution), each as the least logit
that is kept. All tokens with exactly this logit are kept; mlx-lm drops some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx

from scheduler.engine.mlx.cpu.softmax import weight
from scheduler.engine.mlx.sampling.row_arrays import column, put
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.shared.messages import Sampling

_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
_SPAN = 32.0
"""Logits this far below the best have no weight in a float32 sum."""
_BISECTIONS = 25
"""They divide the span to 1e-6, the resolution of a log-probability in float32."""
_NEVER = -math.inf


def position_key(seed: int, position: int) -> int:
    """Return a 64-bit key for one draw: SplitMix64's finaliser (Steele, Lea, Flood 2014) over both
    numbers."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def gumbel(keys: Sequence[int], vocabulary: int) -> mx.array:
    """(keys, vocabulary) float32 of the standard Gumbel distribution, each row by its key."""
    pairs = mx.array([(key >> 32, key & _MASK_32) for key in keys], dtype=mx.uint32)
    uniform = mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(pairs)
    return -mx.log(-mx.log(uniform))


Noise: TypeAlias = Callable[[Sequence[int], int], mx.array]


class Draw:
    """Draws for rows that sample. Rebuilt when they change."""

    def __init__(self, rows: Sequence[RowSampling], noise: Noise) -> None:
        self._rows = rows
        self._noise = noise
        self._heat = column([1.0 / row.params.temperature for row in rows])
        cut = [i for i, row in enumerate(rows) if row.cuts]
        self._cut = mx.array(cut) if 0 < len(cut) < len(rows) else None
        """The rows that have cut-offs, or None if all or none have."""
        self._cuts = _Cuts([rows[i].params for i in cut], rows[0].vocabulary) if cut else None

    def __call__(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """`best_of` float32 (rows, vocabulary) with Gumbel noise (the Gumbel-max rule)."""
        noise = self._noise(
            [position_key(row.params.seed, row.position) for row in self._rows], logits.shape[-1]
        )
        scores = logits * self._heat
        if self._cuts is not None:
            floor = self._cuts.floor(logits if self._cut is None else logits[self._cut])
            if self._cut is not None:
                floor = put(mx.full((len(self._rows), 1), _NEVER), self._cut, floor)
            scores = mx.where(logits < floor, _NEVER, scores)  # A NaN stays, and fails its row.
        return best_of(scores + noise)


def best_of(scores: mx.array) -> tuple[mx.array, mx.array]:
    """Return the best token of each row of (rows, vocabulary): (rows,) uint32, and its score, NaN if there is
    one: the argmax skips it, the maximum does not."""
    return mx.argmax(scores, axis=-1).astype(mx.uint32), mx.max(scores, axis=-1)


class _Cuts:
    """Top-p, min-p and top-k of some rows, as one threshold each: the deepest prefix of the order that
    reaches `top_k` tokens or `top_p` of the mass ends there, or at `min_p`."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        # Values that cut nothing: more tokens than there are, more mass than there is.
        self._most = column([p.top_k if 0 < p.top_k < vocabulary else vocabulary + 1 for p in rows])
        self._mass = column([p.top_p if 0.0 < p.top_p < 1.0 else 2.0 for p in rows])
        self._least = column([math.log(min(p.min_p, 1.0)) if p.min_p > 0.0 else _NEVER for p in rows])
        self._ordered = any(0 < p.top_k < vocabulary or 0.0 < p.top_p < 1.0 for p in rows)

    def floor(self, logits: mx.array) -> mx.array:
        """Return the least logit that is kept, (rows, 1). No sort, which is slow on these devices: one
        bisection over the threshold serves all three."""
        best = mx.max(logits, axis=-1, keepdims=True)
        floor = best + self._least
        if not self._ordered:
            return floor
        weights = weight(logits - best)
        wanted = self._mass * mx.sum(weights, axis=-1, keepdims=True)
        low, high = best - _SPAN, best
        for _ in range(_BISECTIONS):
            middle = (low + high) * 0.5
            inside = logits >= middle
            mass = mx.sum(mx.where(inside, weights, 0.0), axis=-1, keepdims=True)
            count = mx.sum(inside, axis=-1, keepdims=True)
            reached = (count >= self._most) | (mass >= wanted)
            low, high = mx.where(reached, middle, low), mx.where(reached, high, middle)
        # Never reached: keep everything, also below the span.
        return mx.maximum(floor, mx.where(low > best - _SPAN, low, _NEVER))
