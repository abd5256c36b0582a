"""The prefill budget: how many prompt tokens fit within the ITL target, learned from the running engine."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import StepResult
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.pace import AUTOMATIC_RATIO, PrefillPace
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS
from scheduler.engine.reports import StepMeter
from scheduler.shared.messages import TokenOut
from tests.examples import examples


def _decode_seconds(rows: int) -> float:
    return 0.010 + 0.0005 * rows if rows else 0.0


def _prefill_seconds(tokens: int, context: int) -> float:
    """The longer the context, the slower."""
    return 0.002 + tokens * (0.0003 + 2e-8 * context) if tokens else 0.0


def _seconds(decoding: int, tokens: int, context: int) -> float:
    return _decode_seconds(decoding) + _prefill_seconds(tokens, context)


def _taught(pace: PrefillPace, decoding: int, contexts: list[int]) -> PrefillPace:
    for context in contexts:
        for _ in range(12):
            tokens = pace.budget(decoding, 1, context)
            pace.observe_prefill(_prefill_seconds(tokens, context), tokens, context)
            pace.observe_decode(_decode_seconds(decoding), decoding)
    return pace


@settings(deadline=None, max_examples=examples(100))
@given(
    decoding=st.integers(1, 32),
    context=st.integers(0, 30_000),
    target=st.one_of(st.none(), st.floats(0.03, 0.5)),
)
def test_a_taught_pace_keeps_its_target(decoding: int, context: int, target: float | None) -> None:
    """Once it has seen such steps, one more takes about the target, or less; and never nothing."""
    pace = _taught(PrefillPace(2048, target), decoding, [context] * 3)
    tokens = pace.budget(decoding, 1, context)
    assert LEAST_CHUNK_TOKENS <= tokens <= 2048
    allowed = target if target is not None else AUTOMATIC_RATIO * _seconds(decoding, 0, 0)
    floor = _seconds(decoding, LEAST_CHUNK_TOKENS, context)
    assert _seconds(decoding, tokens, context) <= max(1.3 * allowed, 1.01 * floor)
    if allowed > 2 * floor:
        assert _seconds(decoding, tokens, context) >= 0.4 * allowed or tokens == 2048, "it dawdles"


@pytest.mark.parametrize(
    ("chunk", "token", "by_context"), [(5e-3, 6e-4, 5e-7), (2e-2, 3e-4, 2e-7), (1e-3, 1e-4, 1e-6)]
)
@pytest.mark.parametrize("seed", range(examples(12)))
def test_the_next_prompt_s_first_chunk_is_no_leap(
    chunk: float, token: float, by_context: float, seed: int
) -> None:
    """Behind a long context, what a token costs without one was not seen for long: it may seem to cost
    nothing. Measurements are as far off as on a busy machine."""
    noise, pace, decode = random.Random(seed), PrefillPace(2048), 0.035
    for _ in range(40):
        pace.observe_decode(decode * noise.uniform(0.9, 1.5), 8)
    for number in range(4):
        context = 0
        while context < 6000:
            tokens = min(pace.budget(8, 1, context), 6000 - context)
            seconds = chunk + tokens * (token + by_context * context)
            assert not number or decode + seconds <= 2.5 * AUTOMATIC_RATIO * decode
            pace.observe_prefill(seconds * noise.lognormvariate(0, 0.25), tokens, context)
            pace.observe_decode(decode * noise.lognormvariate(0, 0.2), 8)
            context += tokens


def test_a_target_that_decoding_alone_exceeds_still_lets_prompts_go_on() -> None:
    """No prefill starves; and one chunk in four is larger, which tells what a token takes."""
    pace = _taught(PrefillPace(2048, target_seconds=0.001), 8, [0])
    budgets = []
    for _ in range(8):
        budgets.append(pace.budget(8, 1, 0))
        pace.observe_prefill(_seconds(0, budgets[-1], 0), budgets[-1], 0)
    assert sorted(budgets) == [LEAST_CHUNK_TOKENS] * 6 + [2 * LEAST_CHUNK_TOKENS] * 2


def test_before_anything_is_known_it_is_careful() -> None:
    """The first prompt among streams gets a small chunk, not a large one."""
    pace = PrefillPace(2048)
    assert pace.budget(8, 1, 0) == 64
    pace.observe_decode(0.01, 8)
    assert pace.budget(8, 1, 0) == 64


def test_it_follows_a_device_that_slows_down() -> None:
    """Heat, or another program: old measurements are forgotten gradually."""
    pace = _taught(PrefillPace(2048, 0.1), 8, [0] * 3)
    before = pace.budget(8, 1, 0)
    for _ in range(40):
        tokens = pace.budget(8, 1, 0)
        pace.observe_prefill(4 * _prefill_seconds(tokens, 0), tokens, 0)
        pace.observe_decode(4 * _decode_seconds(8), 8)
    assert pace.budget(8, 1, 0) < before / 2


def test_a_crowd_that_waits_is_read_at_the_crowd_s_pace() -> None:
    """One row decodes and thirty wait: their prompts are prefilled in chunks that fit the step of thirty-one.
    Chunks that fit the step of one would be small, and small chunks are slow; thirty would wait for one. They
    grow to that within some steps."""
    pace = _taught(PrefillPace(2048), 1, [0])
    for rows in (8, 16, 24):
        pace.observe_decode(_decode_seconds(rows), rows)
    for _ in range(4):
        tokens = pace.budget(1, 30, 0)
        pace.observe_prefill(_prefill_seconds(tokens, 0), tokens, 0)
    step = _seconds(1, pace.budget(1, 30, 0), 0)
    assert step == pytest.approx(AUTOMATIC_RATIO * _decode_seconds(31), rel=0.1)


def test_a_step_that_waited_for_nothing_teaches_no_speed() -> None:
    """The first step that runs ahead returns no tokens: it submitted work and did not wait. Learned as a
    decode step, it would make later chunks too small."""
    meter = StepMeter(PrefillPace(2048))
    meter.measure(StepPlan(), StepResult(decoded_rows=8), started=0.0, ended=0.001)
    assert meter.pace.step_seconds(8, 0, 0) is None
    tokens = [TokenOut(row, 5) for row in range(8)]
    meter.measure(StepPlan(), StepResult(tokens, decoded_rows=8), started=0.001, ended=0.021)
    assert meter.pace.step_seconds(8, 0, 0) == pytest.approx(0.02)
    assert meter.totals.steps == 2
