"""The rule: no exception and no non-finite logit that a row's own parameters cause leaves that row.

The row is refused, or fails, or gets its tokens; the engine goes on, and the neighbours' tokens are exactly
those that they get alone (float32, on the CPU).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx.device import METAL, X86, forced
from scheduler.engine.mlx.sampling.chooser import NOT_FINITE
from scheduler.engine.mlx.sampling.row_sampling import LEAST_FACTOR
from scheduler.errors import RequestRefused
from scheduler.request import Sampling as AskedSampling
from scheduler.shared.messages import Sampling, Submit
from scheduler.structure import Pattern
from tests.contracts.journal import GREEDY, Journal, alone, answers, prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.grammar_engine import PERSON, GrammarModel, asked

_replace = msgspec.structs.replace
_WARM = _replace(GREEDY, temperature=1.0, seed=9)
_VICTIM = 3
_NEIGHBOURS = [
    request(1, prompt_of(9, 41), 6, sampling=_replace(_WARM, presence_penalty=0.3)),
    request(2, prompt_of(7, 42), 6),
    request(4, prompt_of(5, 43), 6, sampling=_replace(_WARM, top_p=0.9, repetition_penalty=1.2)),
    request(5, prompt_of(6, 44), 6, sampling=_replace(GREEDY, logit_bias=((7, 2.0),))),
]
_LONGEST = request(9, prompt_of(70, 46), 25)
_WAYS = {"host": X86, "graph": METAL}


@pytest.fixture(params=_WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """The chooser of this test, whatever the processor."""
    with forced(_WAYS[request.param]):
        yield request.param


@pytest.fixture(scope="module")
def each_alone(tiny: Tiny) -> dict[str, dict[int, list[int]]]:
    """What the neighbours and the longest get alone, by the chooser."""
    found = {}
    for name, traits in _WAYS.items():
        with forced(traits):
            found[name] = {one.request_id: alone(tiny.backend(), one) for one in [*_NEIGHBOURS, _LONGEST]}
    return found


@pytest.fixture
def expected(each_alone: dict[str, dict[int, list[int]]], way: str) -> dict[int, list[int]]:
    return each_alone[way]


def _run_beside_neighbours(
    tiny: Tiny, expected: dict[int, list[int]], victim: Submit, model: Any = None
) -> Any:
    """The victim's retirement, None where it was refused; checks what the neighbours got."""
    backend = (dataclasses.replace(tiny, model=model) if model else tiny).backend()
    journal = Journal(backend)
    for submit in _NEIGHBOURS[:2]:
        journal.admit(submit)
    try:
        course = journal.admit(victim)
    except RequestRefused:
        course = None
    for submit in _NEIGHBOURS[2:]:
        journal.admit(submit)
    journal.finish()
    for submit in _NEIGHBOURS:
        assert journal.courses[submit.request_id].tokens == expected[submit.request_id]
    return course and course.retired


_number = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -2.0, 5e-324, 1e-300, 1e-46, 1e-40, 1.2e-38, 1e-30, 1e-6, 0.01, 10.0]),
    st.sampled_from([1e30, 3.4e38, 1e39, 1e308, -1e308, -5e-324, -3.4e38, 2.0**63, 2.0**64]),
    st.sampled_from([math.inf, -math.inf, math.nan]),
)
# One field at a time, so that the others do not have the row refused before it is anybody's neighbour.
_one_extreme = st.one_of(
    st.builds(
        lambda one, value: _replace(_WARM, **{one: value}),
        st.sampled_from(
            ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
        ),
        _number,
    ),
    st.builds(
        lambda top_k, seed: _replace(_WARM, top_k=top_k, seed=seed),
        st.sampled_from([1, -1, 511, 512, 2**31 - 1, 2**63, 2**64 - 1, -(2**63)]),
        st.sampled_from([0, -1, -(2**63), 2**63, 2**64 - 1]),
    ),
    st.builds(lambda bias: _replace(_WARM, logit_bias=((3, bias), (3, bias), (5, bias))), _number),
)


@settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sampling=_one_extreme,
    cuts=st.sampled_from([{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"temperature": 0.0}]),
    min_tokens=st.sampled_from([0, 3]),
    top_logprobs=st.sampled_from([None, 0, 5]),
)
def test_no_number_leaves_its_row(
    tiny: Tiny,
    expected: dict[int, list[int]],
    sampling: Sampling,
    cuts: dict[str, Any],
    min_tokens: int,
    top_logprobs: int | None,
) -> None:
    """Every extreme number in every field, with cut-offs, held-back ends and log-probabilities beside."""
    victim = request(_VICTIM, prompt_of(8, 45), 7, stop=(1, 2, 3, *prompt_of(8, 45)), sampling=sampling)
    victim = _replace(
        victim, sampling=_replace(sampling, **cuts), min_tokens=min_tokens, top_logprobs=top_logprobs
    )
    retired = _run_beside_neighbours(tiny, expected, victim)
    assert retired is None or retired.reason in ("stop", "length", "failed")


class _Damaged:
    """A model in which one token's embedding is NaN, and so is all that follows it."""

    def __init__(self, model: Any, token: int) -> None:
        self._model, self._token = model, token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        embedded = self._model.model.embed_tokens(inputs)
        embedded = mx.where((inputs == self._token)[..., None], math.nan, embedded)
        logits: mx.array = self._model(inputs, cache=cache, input_embeddings=embedded)
        return logits


@pytest.mark.parametrize(
    "sampling", [GREEDY, _WARM, _replace(_WARM, top_p=0.9, presence_penalty=0.1)], ids=str
)
def test_a_row_of_nan_fails_alone(tiny: Tiny, expected: dict[int, list[int]], sampling: Sampling) -> None:
    """A damaged weight, or an overflow in 16 bits: the row says what it was, and who comes after it into its
    place in the batch reads none of it."""
    healthy = expected[_LONGEST.request_id]
    heard = {*healthy, *_LONGEST.prompt, *prompt_of(30, 45)}
    for submit in _NEIGHBOURS:
        heard |= {*submit.prompt, *expected[submit.request_id]}
    token = next(token for token in range(512) if token not in heard)
    damaged: Any = _Damaged(tiny.model, token)
    bad = request(_VICTIM, [*prompt_of(30, 45), token, 5], 7, sampling=sampling)
    retired = _run_beside_neighbours(tiny, expected, bad, damaged)
    assert (retired.reason, retired.detail) == ("failed", NOT_FINITE)
    backend = dataclasses.replace(tiny, model=damaged).backend()
    journal = Journal(backend)
    journal.admit(_LONGEST)
    journal.step_until(lambda: bool(journal.courses[9].tokens))
    for round_ in range(2):
        journal.admit(_replace(bad, request_id=100 + round_))
        journal.step_until(lambda: journal.live <= {9})
        for submit in _NEIGHBOURS:
            journal.admit(_replace(submit, request_id=submit.request_id + 10 * (round_ + 1)))
        journal.step_until(lambda: journal.live <= {9})
        for submit in _NEIGHBOURS:
            course = journal.courses[submit.request_id + 10 * (round_ + 1)]
            assert course.tokens == expected[submit.request_id]
    journal.finish()
    assert journal.courses[9].tokens == healthy


def test_an_end_that_is_no_token_of_the_model_holds_nobody(tiny: Tiny) -> None:
    """A configuration may name end tokens beyond the vocabulary: no index outside of an array."""
    submit = _replace(request(1, prompt_of(5, 3), 6, stop=(512, 1 << 20)), min_tokens=4)
    assert len(answers(tiny.backend(), [submit])[1].tokens) == 6


def test_a_grammar_and_a_tiny_penalty(model: GrammarModel, way: str) -> None:
    """What closed the service once: masked tokens with a penalty of nothing, among cut-offs."""
    neighbours = [asked(PERSON, 1, 200), asked(None, 2, 20)]
    expected = [answer.tokens for answer in model.engine().run(*neighbours)]
    for penalty in (1e-46, LEAST_FACTOR, 0.01):
        sampling = AskedSampling(temperature=1.0, seed=3, top_p=0.9, repetition_penalty=penalty)
        victim = dataclasses.replace(asked(Pattern("[0-9]{3}", "x"), 3, 8), sampling=sampling)
        found = model.engine().run(neighbours[0], victim, neighbours[1])
        assert [found[0].tokens, found[2].tokens] == expected
        assert found[1].retired is not None
        assert found[1].retired.reason == ("refused" if penalty == 1e-46 else found[1].retired.reason)
