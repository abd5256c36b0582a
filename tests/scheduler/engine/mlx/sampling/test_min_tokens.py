"""min_tokens: tokens that would end a row cannot be chosen before its minimum, and can right after it."""

from __future__ import annotations

import mlx.core as mx
import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.sampling.rows_sampler import MinTokensMask
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.sequence import EngineSequence
from tests.contracts.journal import GREEDY, alone, answers, prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.mlx.conftest import Tiny

_VOCABULARY = 9
_rows = st.tuples(st.integers(-2, 4), st.lists(st.integers(0, _VOCABULARY - 1), max_size=3))


@settings(deadline=None, max_examples=examples(60))
@given(rows=st.lists(_rows, min_size=1, max_size=5))
def test_each_row_for_its_own_time(rows: list[tuple[int, list[int]]]) -> None:
    """Step by step, exactly the ends of those that may not end yet are impossible; all else is as it was."""
    mask = MinTokensMask(rows)
    logits = mx.array(np.random.default_rng(1).normal(size=(len(rows), _VOCABULARY)).astype(np.float32))
    for step in range(6):
        expected = np.array(logits)
        for place, (tokens, ends) in enumerate(rows):
            if step < tokens:
                expected[place, ends] = -np.inf
        assert np.array_equal(np.array(mask.apply(logits)), expected)


def test_a_batch_in_which_all_may_end_is_left_alone() -> None:
    """The very array: nothing is copied, before as after."""
    logits = mx.zeros((2, _VOCABULARY))
    assert MinTokensMask([(0, [1]), (3, [])]).apply(logits) is logits
    once = MinTokensMask([(1, [1]), (0, [2])])
    assert once.apply(logits) is not logits
    assert once.apply(logits) is logits


def test_no_bias_is_stronger(tiny: Tiny) -> None:
    """A request that wants its end above all gets it with the first token that may be one."""
    biased = msgspec.structs.replace(GREEDY, logit_bias=((3, 100.0),))
    submit = request(1, prompt_of(5, 3), 20, stop=(3,), sampling=biased)
    assert alone(tiny.backend(), submit) == [3]
    held = msgspec.structs.replace(submit, min_tokens=7)
    tokens = alone(tiny.backend(), held)
    assert len(tokens) == 8
    assert tokens.index(3) == 7


def test_an_end_that_is_no_token_of_the_model_holds_nobody(tiny: Tiny) -> None:
    """A configuration may name end tokens beyond the vocabulary: no index outside of an array."""
    submit = msgspec.structs.replace(request(1, prompt_of(5, 3), 6, stop=(512, 1 << 20)), min_tokens=4)
    backend = tiny.backend()
    backend.execute(StepPlan(admit=(Admit(EngineSequence.of(submit)),)))
    backend.execute(StepPlan(release=(1,)))
    assert len(answers(tiny.backend(), [submit])[1].tokens) == 6
