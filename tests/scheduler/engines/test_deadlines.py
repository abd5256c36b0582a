"""The time limit of a step: plain arithmetic on earlier steps' durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.deadlines import (
    FLOOR_SECONDS,
    MULTIPLE,
    StepDeadlines,
    TimedStep,
    load_limit_seconds,
)
from scheduler.shared.messages import StepWork

CEILING = 600.0
ENOUGH = 8

WORK: tuple[StepWork, ...] = ("decode", "decode and prefill", "prefill")
steps = st.builds(TimedStep, st.sampled_from(WORK), st.integers(1, 1 << 20), st.integers(0, 8192))
durations = st.floats(0.001, 1000.0)


def learnt(*taken: tuple[TimedStep, float], ceiling: float = CEILING) -> StepDeadlines:
    deadlines = StepDeadlines(ceiling)
    for step, seconds in taken:
        deadlines.observe(step, seconds)
    return deadlines


@given(st.lists(st.tuples(steps, durations), max_size=60), steps, st.floats(1.0, 1000.0))
def test_it_is_never_above_the_ceiling_nor_below_the_floor_where_the_ceiling_allows_it(
    taken: list[tuple[TimedStep, float]], step: TimedStep, ceiling: float
) -> None:
    """For any observations."""
    limit = learnt(*taken, ceiling=ceiling).limit_seconds(step)
    assert min(ceiling, FLOOR_SECONDS) <= limit <= ceiling


@given(
    st.lists(st.tuples(st.integers(1, 1 << 20), durations), min_size=ENOUGH, max_size=60),
    st.sampled_from(WORK),
)
def test_no_step_like_those_that_were_seen_is_too_old(seen: list[tuple[int, float]], work: StepWork) -> None:
    """Twenty times the slowest of the recent ones is within the limit of every shorter step."""
    deadlines = learnt(*((TimedStep(work, context), seconds) for context, seconds in seen))
    slowest = max(seconds for _, seconds in seen)
    assert deadlines.limit_seconds(TimedStep(work, 1)) >= min(CEILING, MULTIPLE * slowest)


def test_a_kind_that_was_not_seen_has_the_ceiling() -> None:
    """Prefill is not decoding, and a long context not a short one, nor a large chunk a small one; but the
    longer and the larger bound the others."""
    deadlines = learnt(*[(TimedStep("decode", 1000), 0.01)] * ENOUGH)
    assert deadlines.limit_seconds(TimedStep("decode", 1000)) == FLOOR_SECONDS
    assert deadlines.limit_seconds(TimedStep("decode", 10)) == FLOOR_SECONDS
    assert deadlines.limit_seconds(TimedStep("decode", 1024)) == CEILING
    assert deadlines.limit_seconds(TimedStep("decode and prefill", 10)) == CEILING
    assert deadlines.limit_seconds(TimedStep("prefill", 10)) == CEILING
    chunks = learnt(*[(TimedStep("prefill", 20_000, 512), 0.01)] * ENOUGH)
    assert chunks.limit_seconds(TimedStep("prefill", 20_000, 8)) == FLOOR_SECONDS
    assert chunks.limit_seconds(TimedStep("prefill", 20_000, 1024)) == CEILING
    assert chunks.limit_seconds(TimedStep("prefill", 40_000, 8)) == CEILING


def test_a_few_steps_say_nothing() -> None:
    """Eight of a kind are enough, and eight of each new engine, whose first steps are slow."""
    step = TimedStep("prefill", 5000)
    deadlines = learnt(*[(step, 0.01)] * (ENOUGH - 1))
    assert deadlines.limit_seconds(step) == CEILING
    deadlines.observe(step, 0.01)
    assert deadlines.limit_seconds(step) == FLOOR_SECONDS
    deadlines.engine_started()
    for _ in range(ENOUGH):
        assert deadlines.limit_seconds(step) == CEILING
        deadlines.observe(step, 0.01)
    assert deadlines.limit_seconds(step) == FLOOR_SECONDS


def test_what_was_slow_long_ago_is_forgotten() -> None:
    """After 64 further steps of the kind and size."""
    step = TimedStep("decode", 100)
    deadlines = learnt((step, 10.0), *[(step, 0.01)] * 63)
    assert deadlines.limit_seconds(step) == 10 * MULTIPLE
    deadlines.observe(step, 0.01)
    assert deadlines.limit_seconds(step) == FLOOR_SECONDS


@pytest.mark.parametrize(("slowest", "limit"), [(None, 600.0), (2.0, 300.0), (20.0, 400.0), (90.0, 600.0)])
def test_a_load_has_twenty_times_what_the_slowest_took(slowest: float | None, limit: float) -> None:
    """At least five minutes, at most `--ready-seconds`, and that where none has loaded yet."""
    assert load_limit_seconds(slowest, 600.0) == limit
