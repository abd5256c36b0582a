"""A forced token wins over everything in both choosers; what is held back is chosen by neither."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from scheduler.engine.mlx.sampling.chooser import NOT_FINITE
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.mlx.sampling.rows_sampler import RowsSampler
from scheduler.engine.mlx.sampling.thinking_rows import ThinkingRows
from scheduler.shared.messages import Sampling, ThinkingBudget
from scheduler.shared.thinking import ThinkingLimit
from tests.contracts.journal import GREEDY

VOCABULARY = 24
THINK, END = 20, 21
BUDGET = ThinkingBudget(tokens=1, start=(THINK,), end=(END,), anywhere=True)
LONG = ThinkingBudget(tokens=1, start=(THINK, 19, 18), end=(END,), anywhere=True, held=1)
SPENT = (THINK, 4, END)
_replace = msgspec.structs.replace
_PENALISED = _replace(GREEDY, temperature=1.0, top_p=0.9, seed=3, presence_penalty=2.0)
both = pytest.mark.parametrize("on_host", [False, True], ids=["graph", "host"])


def row(params: Sampling, output: tuple[int, ...], budget: ThinkingBudget | None, **rest: Any) -> RowSampling:
    limit = None if budget is None else ThinkingLimit(budget, output)
    return RowSampling(params, VOCABULARY, [1], output, thinking=limit, **rest)


def draw(rows: list[RowSampling], logits: mx.array, last: list[int]) -> list[int]:
    sampler = RowsSampler(rows)
    if sampler.needs_inputs:
        sampler.advance(last)
    chosen = sampler(logits, mx.array(last))
    chosen.verify()
    return [int(token) for token in np.array(chosen.tokens)]


@both
@pytest.mark.parametrize("params", [GREEDY, _PENALISED], ids=["greedy", "penalised"])
def test_nothing_outweighs_a_forced_token(on_host: bool, params: Sampling) -> None:
    """Not a bias against it, not `min_tokens` with the mark as a stop token, not logits of minus infinity;
    the rows beside have what they have without it."""
    logits = mx.array(np.random.default_rng(1).normal(0, 2, (3, VOCABULARY)).astype(np.float32))
    logits[1, END] = -math.inf
    against = _replace(params, logit_bias=((END, -100.0),))
    spent = row(against, (THINK, 4), BUDGET, min_tokens=9, stop_token_ids=(END,), on_host=on_host)
    beside = [row(params, (4,), None, on_host=on_host) for _ in range(2)]
    tokens = draw([beside[0], spent, beside[1]], logits, [4, 4, 4])
    alone = [row(params, (4,), None, on_host=on_host) for _ in range(3)]
    expected = draw(alone, logits, [4, 4, 4])
    assert tokens == [expected[0], END, expected[2]]
    assert spent.failure is None


@both
def test_damaged_logits_fail_the_row_all_the_same(on_host: bool) -> None:
    """A mark is not forced over a model that computes NaN."""
    damaged = row(GREEDY, (THINK, 4), BUDGET, on_host=on_host)
    draw([damaged], mx.full((1, VOCABULARY), math.nan), [4])
    assert damaged.failure == NOT_FINITE


@both
def test_no_reasoning_begins_after_the_budget_is_spent(on_host: bool) -> None:
    """The opening mark is the best token by far, and not chosen; before, it is."""
    logits = mx.zeros((1, VOCABULARY))
    logits[0, THINK] = 9.0
    logits[0, 5] = 1.0
    assert draw([row(GREEDY, SPENT, BUDGET, on_host=on_host)], logits, [END]) == [5]
    assert draw([row(GREEDY, (), BUDGET, on_host=on_host)], logits, [1]) == [THINK]


@both
@pytest.mark.parametrize(("last", "expected"), [(THINK, 5), (7, 19)], ids=["in the mark", "elsewhere"])
def test_of_a_long_mark_only_its_own_continuation_is_held(on_host: bool, last: int, expected: int) -> None:
    """After the mark's first token; whether the host knows that token yet or not."""
    logits = mx.zeros((1, VOCABULARY))
    logits[0, 19] = 9.0
    logits[0, 5] = 1.0
    output = (THINK, 19, 18, 4, END)
    known = row(GREEDY, (*output, last), LONG, on_host=on_host)
    assert draw([known], logits, [last]) == [expected]
    behind = row(GREEDY, output, LONG, on_host=on_host)
    behind.position += 1  # The step of `last` was drawn, and its token is not returned yet.
    sampler = RowsSampler([behind])
    assert not sampler.needs_inputs
    assert sampler(logits, mx.array([last])).tokens.tolist() == [expected]


def test_a_batch_without_spent_budgets_is_left_alone() -> None:
    """The very arrays: nothing is copied, and no step waits."""
    logits = mx.zeros((2, VOCABULARY))
    inputs = mx.array([1, 1])
    for rows in ([row(GREEDY, (), None)] * 2, [row(GREEDY, (THINK,), _replace(BUDGET, tokens=9))] * 2):
        thinking = ThinkingRows(rows)
        assert not thinking.may_force
        assert thinking.mask(logits, inputs) is logits
