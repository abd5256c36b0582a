"""Penalties, then the argmax or a draw for each row, by NumPy: for processors on which MLX's exp, log and
sort are slow (`softmax.py`).

The logits are copied once, and each row is finished while it is in the processor's cache: 24 rows of 8,192
tokens, all with parameters of their own, take less than 2 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.engine.mlx.sampling.chooser import Chosen
from scheduler.engine.mlx.sampling.draw import position_key
from scheduler.engine.mlx.sampling.penalties import HostCounts
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.shared.messages import Sampling

_NEVER = -math.inf
_NEAR = 8.0
"""Tokens within this of the best logit have most of the mass."""
_Floats = npt.NDArray[np.float32]


class HostChooser:
    """For the rows of one batch, which hold their own counts."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        self._rows = tuple(rows)

    def leave(self) -> None:
        """The chooser keeps no state."""

    def __call__(self, logits: mx.array, inputs: mx.array) -> Chosen:
        numbers: _Floats = np.array(logits)  # A copy that may be changed.
        last = np.array(inputs).tolist()
        tokens, scores, errors = [0] * len(last), [math.nan] * len(last), {}
        with np.errstate(all="ignore"):  # A score that is not finite fails its row.
            for place, row in enumerate(self._rows):
                try:
                    tokens[place], scores[place] = _chosen(row, numbers[place], last[place])
                except Exception as error:  # It fails this row alone; the others go on.
                    errors[place] = f"the sampling parameters failed: {type(error).__name__}: {error}"
        return Chosen(self._rows, mx.array(tokens, dtype=mx.uint32), mx.array(scores), errors)


def _chosen(row: RowSampling, logits: _Floats, token: int) -> tuple[int, float]:
    """Return the best token after `token` (the last of the prompt, or a new output token), and its score."""
    if isinstance(row.counts, HostCounts):
        if row.has_output:
            row.counts.add(token)
        row.counts.penalise(logits, row.params)
    if not row.sampled:
        return _best(logits)
    key, heat = position_key(row.params.seed, row.position), np.float32(1.0 / row.params.temperature)
    logits *= heat
    if not row.cuts:
        return _best(logits + _gumbel(key, _all_tokens(len(logits))))
    most = logits.max()
    if not np.isfinite(most):
        return 0, math.nan  # There is no threshold: a comparison with NaN keeps nothing.
    kept = np.flatnonzero(logits >= floor(logits, most, row.params))
    place, score = _best(logits[kept] + _gumbel(key, _all_tokens(len(logits))[kept]))
    return int(kept[place]), score


def _best(scores: _Floats) -> tuple[int, float]:
    """Return the best place and its score, NaN if there is one: NumPy's argmax prefers it to any number."""
    place = int(scores.argmax())
    return place, float(scores[place])


def floor(logits: _Floats, best: np.float32, params: Sampling) -> float:
    """Return the least of these that is kept; `best` is the largest. All tokens count for the mass, but those
    below another cut-off are not sorted, nor those far below the best, unless the mass is not reached
    without them: sorting 8,192 numbers and adding them up takes four times as long as their exponentials."""
    kept = best + math.log(min(params.min_p, 1.0)) if params.min_p > 0.0 else _NEVER
    if 0 < params.top_k < len(logits):
        kept = max(kept, np.partition(logits, -params.top_k)[-params.top_k])
    if 0.0 < params.top_p < 1.0:
        wanted = params.top_p * np.exp(logits - best).sum(dtype=np.float64)
        for least in (max(kept, best - _NEAR), kept):
            ordered = np.sort(logits if least == _NEVER else logits[logits >= least])[::-1]
            masses = np.cumsum(np.exp(ordered - best), dtype=np.float64)
            if least == kept or masses[-1] >= wanted:
                break
        reached = np.searchsorted(masses, wanted)
        kept = ordered[min(reached, len(ordered) - 1)]
    return float(kept)


_STEP = np.uint64(0x9E3779B97F4A7C15)


@cache
def _all_tokens(vocabulary: int) -> npt.NDArray[np.uint64]:
    """Return each token's term in a key."""
    return np.arange(1, vocabulary + 1, dtype=np.uint64) * _STEP


def _gumbel(key: int, tokens: npt.NDArray[np.uint64]) -> _Floats:
    """Return a standard Gumbel number for each token, independent of which others are requested: the
    generator SplitMix64 (Steele, Lea, Flood 2014), seeded with `key`. Only kept tokens need one."""
    bits = tokens + np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    # 23 bits and a half: never 0, never 1.
    # By way of signed numbers of 32 bits, for which processors have a conversion.
    halves = (bits >> np.uint64(41)).astype(np.int32).astype(np.float32)
    uniform = (halves + np.float32(0.5)) * np.float32(2.0**-23)
    gumbel: _Floats = -np.log(-np.log(uniform))
    return gumbel


def host_gumbel(keys: Sequence[int], vocabulary: int) -> mx.array:
    """Return (keys, vocabulary): the same numbers, for rows that are drawn in the graph. So a row draws the
    same tokens whether or not its neighbours have cut-offs."""
    return mx.array(np.stack([_gumbel(key, _all_tokens(vocabulary)) for key in keys]))
