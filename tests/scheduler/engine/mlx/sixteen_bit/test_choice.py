"""From 16-bit logits to tokens, in the graph, as GPUs do it.

All of these are equalities: every operation works row by row, so not even rounding may depend on a neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.mlx.sampling.rows_sampler import RowsSampler
from scheduler.shared.messages import Sampling
from tests.contracts.journal import GREEDY

_VOCABULARY = 64
_STEPS = 6


def _params(**changes: Any) -> Sampling:
    return msgspec.structs.replace(GREEDY, **changes)


_MIX = [
    _params(),
    _params(presence_penalty=0.15),
    _params(frequency_penalty=0.1, repetition_penalty=1.1),
    _params(temperature=0.8, seed=3),
    _params(temperature=1.0, seed=4, top_p=0.9, presence_penalty=0.3),
    _params(temperature=1.3, seed=5, top_k=7, min_p=0.05),
]
_BIASED = _params(logit_bias=((3, 2.5),))


def _logits(seed: int, dtype: mx.Dtype) -> mx.array:
    """(steps, vocabulary) around 18, where bfloat16's steps are an eighth; the best two are one apart."""
    numbers = np.random.default_rng(seed).normal(18, 1.5, (_STEPS, _VOCABULARY)).astype(np.float32)
    numbers[:, 5], numbers[:, 6] = 24.0, 23.875
    return mx.array(numbers).astype(dtype)


def _tokens(params: Sequence[Sampling], logits: Sequence[mx.array]) -> list[list[int]]:
    """What each row says, all of them in one batch."""
    rows = [RowSampling(one, _VOCABULARY, [1, 2, 3]) for one in params]
    assert not any(row.on_host for row in rows)
    sampler, inputs = RowsSampler(rows), [3] * len(rows)
    said: list[list[int]] = [[] for _ in rows]
    for step in range(_STEPS):
        chosen = sampler(mx.stack([mine[step] for mine in logits]), mx.array(inputs))
        inputs = chosen.tokens.tolist()  # type: ignore[assignment]
        for row, token in zip(said, inputs, strict=True):
            row.append(token)
    return said


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "neighbours", [[_params()], [_BIASED], [_BIASED, *_MIX]], ids=["plain", "biased", "all"]
)
def test_a_row_s_tokens_do_not_depend_on_its_neighbours_parameters(
    neighbours: list[Sampling], seed: int, dtype: mx.Dtype
) -> None:
    """Equality. A neighbour with `logit_bias` made all rows' logits float32, and penalties that bfloat16
    rounds away came back."""
    others = [_logits(100 + at, dtype) for at in range(len(neighbours))]
    for at, params in enumerate(_MIX):
        mine = _logits(seed * 10 + at, dtype)
        (alone,) = _tokens([params], [mine])
        assert _tokens([params, *neighbours], [mine, *others])[0] == alone, params


@pytest.mark.parametrize(
    "params",
    [_params(presence_penalty=0.15), _params(frequency_penalty=0.15), _params(repetition_penalty=1.01)],
    ids=["presence", "frequency", "repetition"],
)
def test_a_small_penalty_is_felt(params: Sampling, dtype: mx.Dtype) -> None:
    """Equality with float32 arithmetic: 20.0 was said, and less the penalty it is below 19.875. Rounded to
    bfloat16 it is 19.875 as well, and said again."""
    logits = mx.zeros((_STEPS, _VOCABULARY)).astype(dtype)
    logits[:, 5], logits[:, 6] = 20.0, 19.875
    (said,) = _tokens([params], [logits])
    assert said[:2] == [5, 6]


def test_ties_go_to_the_first(dtype: mx.Dtype) -> None:
    """Equality: in 16 bits ties are common, and greedy rows must break them alike whatever is beside them."""
    tied = mx.zeros((_STEPS, _VOCABULARY)).astype(dtype)
    tied[:, 9], tied[:, 40] = 20.0, 20.0
    assert _tokens([_params(), _BIASED], [tied, tied]) == [[9] * _STEPS] * 2
