"""Log-probabilities are the model's own, for any batch and any history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step

from scheduler.engine import memory
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.sampling.logprobs import LogprobsRequested
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import MAX_TOP_LOGPROBS, LogprobsOut, Sampling, StepOutput, Submit
from tests.contracts.journal import Course, answers, prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.reuse import engine_of, model_of, words

FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt_oss", "qwen3_next", "deepseek_v3"]
_replace = msgspec.structs.replace
_WILD = Sampling(
    temperature=1.5,
    top_k=40,
    seed=3,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    logit_bias=((7, 4.0), (9, -100.0)),
)
"""Changes the choice in every way there is, and must change no log-probability."""


def _alone(model: Any, submit: Submit, tokens: list[int]) -> Iterator[Any]:
    """mlx-lm's own log-softmax at each of `tokens`, one request by itself: (vocabulary,) each."""
    forced = iter(tokens)
    steps = generate_step(
        mx.array(submit.prompt.tolist()),
        model,
        max_tokens=len(tokens),
        sampler=lambda logprobs: mx.array([next(forced, 0)]),
    )
    for _, logprobs in steps:
        yield np.array(logprobs.astype(mx.float32))


def _check(found: LogprobsOut, token: int, expected: Any, top: int) -> None:
    assert found.chosen == pytest.approx(expected[token], abs=1e-4)
    assert [value for _, value in found.top] == pytest.approx(np.sort(expected)[::-1][:top], abs=1e-4)
    for other, value in found.top:
        assert value == pytest.approx(expected[other], abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_a_lone_request_s(family: str) -> None:
    """In one batch: greedy and wildly sampled rows that ask for 0, 3 and 20, among others that do not."""
    engine = engine_of(family)
    common = words(20, 1)
    submits = [
        engine.submit(common + words(3 + number, number), max_tokens=9, sampling=sampling, top_logprobs=top)
        for number, (sampling, top) in enumerate(
            [
                (Sampling(temperature=0.0), 3),
                (Sampling(temperature=0.0), None),
                (_WILD, 20),
                (_WILD, None),
                (Sampling(temperature=0.7, top_p=0.9, seed=2), 0),
            ]
        )
    ]
    courses = answers(engine.backend, submits)
    for submit in submits:
        course = courses[submit.request_id]
        assert len(course.tokens) == 9
        if submit.top_logprobs is None:
            assert course.logprobs == [None] * 9
            continue
        expected = list(_alone(model_of(family), submit, course.tokens))
        for found, token, alone in zip(course.logprobs, course.tokens, expected, strict=True):
            assert found is not None
            _check(found, token, alone, submit.top_logprobs)


def _run(tiny: Tiny, submits: list[Submit], budget_tokens: int) -> tuple[dict[int, Course], int]:
    budget_bytes = budget_tokens * (tiny.ready.kv_bytes_per_token + 4)
    loop = EngineLoop(tiny.backend(max_slots=16, kv_cache_bytes=budget_bytes), 16, PrefillPace(256))
    courses = {submit.request_id: Course(submit) for submit in submits}
    commands, preemptions = list(submits), 0
    while commands or not loop.idle:
        for frame in loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                courses[token.request_id].tokens.append(token.token)
                courses[token.request_id].logprobs.append(token.logprobs)
            preemptions = frame.counters.preemptions
        commands = []
    return courses, preemptions


def test_preemption_loses_none_and_doubles_none(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six requests in the bytes of three, where nothing is reserved for answers: with each token the
    log-probabilities of a run with room."""
    monkeypatch.setattr(memory, "GROWTH_TOKENS", 1)
    submits = [
        _replace(
            request(number, prompt_of(20 + number, number), 60, sampling=_WILD),
            top_logprobs=(None, 5)[number % 2],
        )
        for number in range(6)
    ]
    free, none = _run(tiny, submits, 1 << 20)
    tight, preemptions = _run(tiny, submits, 3 * 80)
    assert none == 0 < preemptions
    for request_id, course in tight.items():
        assert course.tokens == free[request_id].tokens
        assert len(course.logprobs) == 60
        for found, expected in zip(course.logprobs, free[request_id].logprobs, strict=True):
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert found.chosen == pytest.approx(expected.chosen, abs=1e-4)
                assert [value for _, value in found.top] == pytest.approx(
                    [value for _, value in expected.top], abs=1e-4
                )


def test_where_nobody_asks_nothing_is_computed() -> None:
    """No array, and so nothing to evaluate with the tokens."""
    shares, arrays = LogprobsRequested([None, None]).extract(mx.zeros((2, 30)), mx.array([1, 2]))
    assert (shares, arrays) == ([None, None], [])


def test_rows_that_ask_for_no_others_need_no_search_for_them() -> None:
    """Neither ids nor values are computed where all want their own tokens' only."""
    shares, arrays = LogprobsRequested([0, None, 0]).extract(mx.zeros((3, 30)), mx.array([1, 2, 3]))
    assert [array.shape for array in arrays] == [(2,)]
    (first, second, third) = shares
    assert first is not None
    assert second is None
    assert third is not None
    assert third.read().top == ()
    assert third.read().chosen == pytest.approx(-np.log(30), abs=1e-5)


@settings(deadline=None, max_examples=examples(100))
@given(
    tops=st.lists(st.none() | st.integers(0, MAX_TOP_LOGPROBS), min_size=1, max_size=6),
    vocabulary=st.integers(1, 60),
    dtype=st.sampled_from([mx.float32, mx.bfloat16, mx.float16]),
    scale=st.sampled_from([0.0, 0.1, 3.0, 300.0]),
    seed=st.integers(0, 1 << 20),
)
def test_any_logits_and_any_neighbours(
    tops: list[int | None], vocabulary: int, dtype: mx.Dtype, scale: float, seed: int
) -> None:
    """A log-softmax in float32 whatever the dtype, and a row gets the same as alone: also which of equally
    likely tokens are among the best (a coarse dtype has many)."""
    numbers = np.random.default_rng(seed)
    rows = numbers.normal(0, scale, (len(tops), vocabulary)).astype(np.float32)
    rows[numbers.random(rows.shape) < 0.1] = -np.inf
    rows[:, 0] = 1.0
    logits = mx.array(rows).astype(dtype)
    chosen = [int(token) for token in numbers.integers(0, vocabulary, len(tops))]
    tokens = mx.array(chosen)
    shares, _ = LogprobsRequested(tops).extract(logits, tokens)
    exact = np.array(logits.astype(mx.float32)).astype(np.float64)
    for place, (top, share) in enumerate(zip(tops, shares, strict=True)):
        assert (share is None) == (top is None)
        if top is None or share is None:
            continue
        best = exact[place].max()
        expected = exact[place] - best - np.log(np.sum(np.exp(exact[place] - best)))
        found = share.read()
        _check(found, chosen[place], np.maximum(expected, -9999.0), top)
        (alone,), _ = LogprobsRequested([top]).extract(logits[place : place + 1], tokens[place : place + 1])
        assert alone is not None
        assert [other for other, _ in alone.read().top] == [other for other, _ in found.top]
        assert alone.read().chosen == pytest.approx(found.chosen, abs=1e-5)
