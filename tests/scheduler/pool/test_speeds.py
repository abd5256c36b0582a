"""An engine's speed, learned from its totals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.link.messages import Counters
from scheduler.pool.speeds import Speeds


def after(speeds: Speeds, steps: list[tuple[int, int, float]]) -> Speeds:
    """Steps of (rows, prompt tokens, seconds)."""
    now = Counters()
    for rows, prefilled, seconds in steps:
        now = Counters(
            steps=now.steps + 1,
            generated_tokens=now.generated_tokens + rows,
            prefilled_tokens=now.prefilled_tokens + prefilled,
            busy_seconds=now.busy_seconds + seconds,
        )
        speeds.take(now)
    return speeds


@given(st.floats(0.001, 0.5), st.floats(0.0, 0.01), st.floats(0.0, 0.01))
def test_it_finds_the_line_that_the_steps_lie_on(base: float, row: float, token: float) -> None:
    """Base, cost of a row, and cost of a prompt token beside rows."""
    decodes = [(rows, 0, base + rows * row) for rows in (1, 4, 16, 32) for _ in range(20)]
    prefills = [(4, 256, base + 4 * row + 256 * token)] * 20
    speeds = after(Speeds(512), decodes + prefills)
    # The prior, of a thirty-second of a step, still counts for a little.
    assert speeds.row_seconds == pytest.approx(row, rel=0.01, abs=0.002 * base)
    assert speeds.step_seconds(8) == pytest.approx(base + 8 * row, rel=0.05)
    assert speeds.prefill_seconds(1024, 8) == pytest.approx(
        2 * (base + 8 * row) + 1024 * token, rel=0.15, abs=0.1 * base
    )


def test_until_rows_vary_a_row_is_taken_to_cost_a_part_of_a_step() -> None:
    """Otherwise a burst would pile up on the engine that got its first request."""
    assert after(Speeds(512), [(4, 0, 0.032)] * 100).row_seconds == pytest.approx(0.001)
    assert Speeds(512).row_seconds > 0


def test_an_engine_that_restarts_is_not_measured_across_its_death() -> None:
    """Its totals begin at zero."""
    speeds = after(Speeds(512), [(1, 0, 0.01)] * 50)
    speeds.engine_started()
    speeds.take(Counters(steps=1, generated_tokens=1, busy_seconds=0.01))
    assert speeds.decode_step_seconds == pytest.approx(0.01)


def test_it_follows_a_device_that_becomes_slower() -> None:
    """The last hundred steps count."""
    speeds = after(Speeds(512), [(1 + at % 4, 0, 0.01) for at in range(200)])
    now = Counters(steps=200, generated_tokens=500, busy_seconds=2.0)
    for step in range(400):
        now = Counters(
            steps=now.steps + 1,
            generated_tokens=now.generated_tokens + 1 + step % 4,
            busy_seconds=now.busy_seconds + 0.05,
        )
        speeds.take(now)
    assert speeds.step_seconds(2) == pytest.approx(0.05, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(0, 32), st.integers(0, 2048), st.floats(0, 5, allow_subnormal=False)),
        max_size=60,
    )
)
def test_no_figure_is_ever_negative(steps: list[tuple[int, int, float]]) -> None:
    """Whatever the steps were: a cost below zero would draw all requests."""
    speeds = after(Speeds(512), steps)
    assert speeds.row_seconds >= 0
    assert speeds.step_seconds(0) >= 0
    assert speeds.prefill_seconds(4096, 3) >= 0
