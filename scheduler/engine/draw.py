"""One token for each row that samples: its cut-offs, its temperature, its own random numbers.

Random numbers are keyed by (seed, position), not drawn from a stream: the same request gives the same tokens
alone, among 31 others, and when it is computed again from the middle. Every operation works row by row, so
neighbours and their order change nothing.

The cut-offs are mlx-lm's (top-p, min-p and top-k, on the untempered distribution), each as the least logit
that is kept. Tokens of exactly equal probability there are all kept, where mlx-lm drops some.

`Draw` stays in MLX's graph. `HostDraw` is for processors on which MLX's exp, log and sort are slow
(`rows/softmax.py`): with cut-offs, 32 rows of 8,192 tokens take a third of the time there. There both have
their random numbers from the host, made while the model computes: without cut-offs, a third again, and a row
draws the same whether its neighbours have cut-offs or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.engine.rows.softmax import weight
from scheduler.link.messages import Sampling

_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
_SPAN = 32.0
"""Below the best token's logit; what lies deeper has no weight in float32's sum."""
_BISECTIONS = 25
"""Of the span: to 1e-6, the resolution of a log-probability in float32."""
_NEVER = -math.inf
_Floats = npt.NDArray[np.float32]


def position_key(seed: int, position: int) -> int:
    """A 64-bit key for one draw: SplitMix64's finaliser (Steele, Lea, Flood 2014) over both numbers."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def cuts(params: Sampling, vocabulary: int) -> bool:
    """Whether anything is cut off at all."""
    return bool(0.0 < params.top_p < 1.0 or params.min_p > 0.0 or 0 < params.top_k < vocabulary)


def gumbel(keys: Sequence[int], vocabulary: int) -> mx.array:
    """(keys, vocabulary) float32 of the standard Gumbel distribution, each row by its key."""
    return -mx.log(-mx.log(_uniform(keys, vocabulary)))


def host_gumbel(keys: Sequence[int], vocabulary: int) -> mx.array:
    """The same, evaluated on a thread of its own and by NumPy: while the model computes, for both do not wait
    for it."""
    with mx.stream(_beside()):
        uniform = _uniform(keys, vocabulary)
        mx.eval(uniform)
    with np.errstate(divide="ignore"):  # Of zeros, which are never chosen.
        return mx.array(-np.log(-np.log(np.array(uniform, copy=False))))


@cache
def _beside() -> mx.Stream:
    return mx.new_stream(mx.Device(mx.cpu))


def _uniform(keys: Sequence[int], vocabulary: int) -> mx.array:
    pairs = mx.array([(key >> 32, key & _MASK_32) for key in keys], dtype=mx.uint32)
    return mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(pairs)


Noise: TypeAlias = Callable[[Sequence[int], int], mx.array]


class Draw:
    """How the sampled rows of one batch draw; made anew when they change."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int, noise: Noise) -> None:
        self._seeds = [params.seed for params in rows]
        self._vocabulary = vocabulary
        self._noise = noise
        self._heat = column([1.0 / params.temperature for params in rows])
        cut = [i for i, params in enumerate(rows) if cuts(params, vocabulary)]
        self._cut = mx.array(cut) if 0 < len(cut) < len(rows) else None
        """The rows that cut something off; None: all or none."""
        self._cuts = _Cuts([rows[i] for i in cut], vocabulary) if cut else None

    def noise(self, positions: Sequence[int]) -> mx.array:
        """What a call needs beside the logits. Asked for first, because it follows from nothing else."""
        return self._noise(
            [position_key(*at) for at in zip(self._seeds, positions, strict=True)], self._vocabulary
        )

    def __call__(self, logits: mx.array, noise: mx.array) -> mx.array:
        """(rows,) uint32, of float32 (rows, vocabulary), by the Gumbel-max rule."""
        scores = logits * self._heat
        if self._cuts is not None:
            floor = self._cuts.floor(logits if self._cut is None else logits[self._cut])
            if self._cut is not None:
                floor = put(mx.full((len(self._seeds), 1), _NEVER), self._cut, floor)
            scores = mx.where(logits >= floor, scores, _NEVER)
        return mx.argmax(scores + noise, axis=-1).astype(mx.uint32)


class HostDraw(Draw):
    """The same, evaluated and handed to NumPy a row at a time, which then stays in the processor's cache."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int, noise: Noise) -> None:
        super().__init__(rows, vocabulary, noise)
        self._rows = rows

    def __call__(self, logits: mx.array, noise: mx.array) -> mx.array:
        mx.eval(logits, noise)
        rows = zip(np.array(logits, copy=False), np.array(noise, copy=False), self._rows, strict=True)
        return mx.array([_token(*row) for row in rows], dtype=mx.uint32)


def _token(logits: _Floats, noise: _Floats, params: Sampling) -> int:
    scores = logits * np.float32(1.0 / params.temperature) + noise
    if (floor := _floor(logits, params)) > _NEVER:
        scores[logits < floor] = _NEVER
    return int(scores.argmax())


def _floor(logits: _Floats, params: Sampling) -> float:
    """The least logit that is kept. NumPy's sort uses the processor's vectors: 17 us for 8,192 numbers."""
    best = logits.max()
    floor = best + math.log(min(params.min_p, 1.0)) if params.min_p > 0.0 else _NEVER
    if 0 < params.top_k < len(logits):
        floor = max(floor, np.partition(logits, -params.top_k)[-params.top_k])
    if 0.0 < params.top_p < 1.0:
        ordered = np.sort(logits)[::-1]
        mass = np.cumsum(np.exp(ordered - best), dtype=np.float64)
        floor = max(floor, ordered[np.searchsorted(mass, params.top_p * mass[-1])])
    return float(floor)


class _Cuts:
    """Top-p, min-p and top-k of some rows, as one threshold each: the deepest prefix of the order that
    reaches `top_k` tokens or `top_p` of the mass ends there, or where `min_p` says."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        # What never cuts: more tokens than there are, more mass than there is.
        self._most = column([p.top_k if 0 < p.top_k < vocabulary else vocabulary + 1 for p in rows])
        self._mass = column([p.top_p if 0.0 < p.top_p < 1.0 else 2.0 for p in rows])
        self._least = column([math.log(min(p.min_p, 1.0)) if p.min_p > 0.0 else _NEVER for p in rows])
        self._ordered = any(0 < p.top_k < vocabulary or 0.0 < p.top_p < 1.0 for p in rows)

    def floor(self, logits: mx.array) -> mx.array:
        """The least logit that is kept, (rows, 1). Without a sort, which the devices are bad at: one
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
        # Never reached: everything is kept, also what lies below the span.
        return mx.maximum(floor, mx.where(low > best - _SPAN, low, _NEVER))


def column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), dtype=mx.float32)[:, None]


def put(array: mx.array, index: mx.array, values: mx.array) -> mx.array:
    """A copy of `array` with rows replaced."""
    array = array[:]
    array[index] = values
    return array
