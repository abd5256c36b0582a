"""Draw one token for each row that samples: cut-offs, temperature, and random numbers of its own.

Random numbers are keyed by (seed, position), not drawn from a stream: the same request gives the same tokens
alone, among 31 others, and when it is recomputed from the middle. Every operation works row by row, so
neighbours and their order change nothing.

The temperature comes first, as in transformers, vLLM and SGLang, for which models' authors choose their
values (mlx-lm and llama.cpp cut first). Then the cut-offs, top-p of all tokens' mass, min-p and top-k, each
as the least score that is kept. All tokens with exactly this score are kept; mlx-lm drops some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx

from scheduler.engine.mlx.cpu.softmax import weight
from scheduler.engine.mlx.sampling.chooser import Chosen
from scheduler.engine.mlx.sampling.penalties import Penalties, TokenCounts
from scheduler.engine.mlx.sampling.row_arrays import column, put
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.shared.messages import Sampling

_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
_SPAN = 32.0
"""Logits this far below the best have no weight in a float32 sum."""
_BISECTIONS = 25
"""They divide the span to 1e-6, the resolution of a log-probability in float32."""
_FEW = 64
"""Up to this top-k, the tokens are found by two passes over the vocabulary. The models' own settings are 20,
40, 50 or 64."""
_BLOCK = 32
_NEVER = -math.inf


def position_key(seed: int, position: int) -> int:
    """Return a 64-bit key for one draw: SplitMix64's finaliser (Steele, Lea, Flood 2014) over both
    numbers."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def gumbel(keys: Sequence[int], vocabulary: int) -> mx.array:
    """Return (keys, vocabulary) float32 numbers of the standard Gumbel distribution, each row by its key."""
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
        self._cuts = Cuts([rows[i].params for i in cut], rows[0].vocabulary) if cut else None

    def __call__(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Return `best_of` the scores: float32 `logits` (rows, vocabulary) with Gumbel noise (the Gumbel-max
        rule)."""
        noise = self._noise(
            [position_key(row.params.seed, row.position) for row in self._rows], logits.shape[-1]
        )
        scores = logits * self._heat
        if self._cuts is not None:
            floor = self._cuts.floor(scores if self._cut is None else scores[self._cut])
            if self._cut is not None:
                floor = put(mx.full((len(self._rows), 1), _NEVER), self._cut, floor)
            scores = mx.where(scores < floor, _NEVER, scores)  # A NaN stays, and fails its row.
        return best_of(scores + noise)


class GraphChooser:
    """Penalties, then the argmax or a draw, the rows' parameters side by side on the device."""

    def __init__(self, rows: Sequence[RowSampling], noise: Noise) -> None:
        self._rows = tuple(rows)
        self._counted = [row for row in rows if row.counts is not None]
        counted = [
            (i, row.params, row.counts) for i, row in enumerate(rows) if isinstance(row.counts, TokenCounts)
        ]
        assert len(counted) == len(self._counted), "host counts belong to HostChooser"
        self._penalties = Penalties(counted) if counted else None
        self._sampled = [row for row in rows if row.sampled]
        drawn = [i for i, row in enumerate(rows) if row.sampled]
        self._drawn = mx.array(drawn) if 0 < len(drawn) < len(rows) else None
        """The rows that sample, or None if all or none do."""
        self._draw = Draw(self._sampled, noise) if drawn else None

    def leave(self) -> None:
        if self._penalties is not None:
            self._penalties.save()

    def __call__(self, logits: mx.array, inputs: mx.array) -> Chosen:
        if self._penalties is not None:
            logits = self._penalties.apply(logits, inputs, [row.has_output for row in self._counted])
        if self._draw is not None and self._drawn is None:
            return Chosen(self._rows, *self._draw(logits))
        tokens, scores = best_of(logits)
        if self._draw is not None and self._drawn is not None:
            drawn, drawn_scores = self._draw(logits[self._drawn])
            tokens, scores = put(tokens, self._drawn, drawn), put(scores, self._drawn, drawn_scores)
        return Chosen(self._rows, tokens, scores)


def best_of(scores: mx.array) -> tuple[mx.array, mx.array]:
    """Return the best token of each row of (rows, vocabulary): (rows,) uint32, and its score, NaN if there is
    one: the argmax skips it, the maximum does not."""
    return mx.argmax(scores, axis=-1).astype(mx.uint32), mx.max(scores, axis=-1)


class Cuts:
    """Top-p, min-p and top-k of some rows, as one threshold each. In descending order of its logits, a row
    keeps the shortest prefix that reaches `top_k` tokens or `top_p` of the mass, and none of it below
    `min_p`."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        few, any_number, unordered = list[int](), list[int](), list[int]()
        for at, row in enumerate(rows):
            if 0 < row.top_k <= _FEW and vocabulary >= _FEW * _BLOCK:
                few.append(at)
            elif 0 < row.top_k < vocabulary or 0.0 < row.top_p < 1.0:
                any_number.append(at)
            else:
                unordered.append(at)
        self._parts = [
            (mx.array(own) if len(own) < len(rows) else None, kind([rows[at] for at in own], vocabulary))
            for kind, own in ((_Few, few), (_AnyNumber, any_number), (_Unordered, unordered))
            if own
        ]
        """The ways to find thresholds, each after the array of its rows, or None for all rows."""

    def floor(self, logits: mx.array) -> mx.array:
        """Return the least logit that is kept, (rows, 1)."""
        if len(self._parts) == 1:
            return self._parts[0][1].floor(logits)
        floor = mx.zeros((logits.shape[0], 1))
        for own, part in self._parts:
            assert own is not None, "rows of two parts"
            floor = put(floor, own, part.floor(logits[own]))
        return floor


class _Unordered:
    """Rows with min-p alone."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        self._least = column([math.log(min(p.min_p, 1.0)) if p.min_p > 0.0 else _NEVER for p in rows])

    def floor(self, logits: mx.array) -> mx.array:
        return mx.max(logits, axis=-1, keepdims=True) + self._least


class _Few(_Unordered):
    """Rows that keep at most _FEW tokens, whatever their top-p: two passes over the vocabulary.

    These tokens stand in the _FEW blocks whose best tokens are the largest: a token of any other block is no
    larger than the best one of each of these. So only these blocks are sorted.
    """

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        super().__init__(rows, vocabulary)
        self._most = mx.array([p.top_k for p in rows])[:, None]
        self._mass = _mass(rows) if any(0.0 < p.top_p < 1.0 for p in rows) else None

    def floor(self, logits: mx.array) -> mx.array:
        first = self._first(logits)
        best, count = first[:, :1], self._most
        if self._mass is not None:
            weights = weight(first - best)
            before = mx.cumsum(weights, axis=-1) - weights
            wanted = self._mass * mx.exp(mx.logsumexp(logits, axis=-1, keepdims=True) - best)
            within = mx.sum(before < wanted, axis=-1, keepdims=True)
            count = mx.minimum(count, mx.maximum(within, 1))
        return mx.maximum(best + self._least, mx.take_along_axis(first, count - 1, axis=-1))

    @staticmethod
    def _first(logits: mx.array) -> mx.array:
        """Return the _FEW largest logits of each row, descending."""
        rows, vocabulary = logits.shape
        whole = vocabulary - vocabulary % _BLOCK
        blocks = logits[:, :whole].reshape(rows, -1, _BLOCK)
        chosen = mx.argpartition(-mx.max(blocks, axis=-1), kth=_FEW - 1, axis=-1)[:, :_FEW]
        found = mx.take_along_axis(blocks, chosen[..., None], axis=1).reshape(rows, -1)
        if whole < vocabulary:
            found = mx.concatenate([found, logits[:, whole:]], axis=-1)
        return -mx.sort(-found, axis=-1)[:, :_FEW]


class _AnyNumber(_Unordered):
    """Rows that may keep any number of tokens. No sort of the vocabulary, which is slow on these devices: one
    bisection over the threshold serves top-p and top-k."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        super().__init__(rows, vocabulary)
        counted = [0 < p.top_k < vocabulary for p in rows]
        # More tokens than there are cut nothing.
        most = [p.top_k if one else vocabulary + 1 for p, one in zip(rows, counted, strict=True)]
        self._most = column(most) if any(counted) else None
        self._mass = _mass(rows)

    def floor(self, logits: mx.array) -> mx.array:
        best = mx.max(logits, axis=-1, keepdims=True)
        weights = weight(logits - best)
        wanted = self._mass * mx.sum(weights, axis=-1, keepdims=True)
        low, high = best - _SPAN, best
        for _ in range(_BISECTIONS):
            middle = (low + high) * 0.5
            inside = logits >= middle
            reached = mx.sum(mx.where(inside, weights, 0.0), axis=-1, keepdims=True) >= wanted
            if self._most is not None:
                reached = reached | (mx.sum(inside, axis=-1, keepdims=True) >= self._most)
            low, high = mx.where(reached, middle, low), mx.where(reached, high, middle)
        # Never reached: keep everything, also below the span.
        return mx.maximum(best + self._least, mx.where(low > best - _SPAN, low, _NEVER))


def _mass(rows: Sequence[Sampling]) -> mx.array:
    """Return each row's top-p, or more mass than there is, which cuts nothing."""
    return column([p.top_p if 0.0 < p.top_p < 1.0 else 2.0 for p in rows])
