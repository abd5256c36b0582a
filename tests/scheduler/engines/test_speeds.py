"""An engine's speed, as it reports it, and what a token of service takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.planning.pace import PrefillPace
from scheduler.engines.speeds import Speeds
from scheduler.shared.messages import Counters, StepCosts

durations = st.just(0.0) | st.floats(1e-6, 5.0)


def learned(*steps: tuple[int, int, int, float, float]) -> StepCosts:
    """What an engine reports after steps of (rows, prompt tokens, context, decode seconds, prefill
    seconds)."""
    pace = PrefillPace(512)
    for rows, tokens, context, decode, prefill in steps:
        pace.observe_decode(decode, rows)
        pace.observe_prefill(prefill, tokens, context)
    return pace.costs()


@given(st.floats(0.001, 0.5), st.floats(0.05, 1.0), st.floats(0.0, 0.01), st.floats(0.0, 1e-6))
def test_it_finds_the_line_that_the_engines_steps_lie_on(
    base: float, row_share: float, token: float, token_context: float
) -> None:
    """Base, cost of a row, and cost of a prompt token beside rows and behind a context."""
    row = row_share * base

    def step(rows: int, tokens: int, context: int) -> tuple[int, int, int, float, float]:
        prefill = 0.002 + tokens * (token + context * token_context)
        return rows, tokens, context, base + rows * row, prefill if tokens else 0.0

    speeds = Speeds(512, learned(*[step(1 + at % 32, 64 * (at % 5), 1024 * (at % 7)) for at in range(300)]))
    assert speeds.row_seconds == pytest.approx(row, rel=0.1)
    assert speeds.step_seconds(8) == pytest.approx(base + 8 * row, rel=0.05)
    expected = 2 * (base + 8 * row + 0.002) + 1024 * (token + 2048 * token_context)
    assert speeds.prefill_seconds(1024, 8, 2048) == pytest.approx(expected, rel=0.1)


def test_an_engine_that_restarts_keeps_what_it_has_not_measured_again() -> None:
    """And its totals begin at zero."""
    speeds = Speeds(512)
    speeds.take(
        Counters(steps=50, running=1, generated_tokens=50, busy_seconds=0.5, costs=StepCosts(step=0.01))
    )
    speeds.engine_started()
    assert speeds.step_seconds(0) == 0.01
    speeds.take(Counters(steps=1, prefilled_tokens=10, busy_seconds=0.01, costs=StepCosts(token=0.001)))
    assert speeds.step_seconds(0) == 0.01
    assert speeds.prefill_seconds(100, 0) == pytest.approx(0.1)
    assert speeds.service_token_seconds(2.0) is not None


@given(st.floats(0.001, 1.0), st.integers(0, 600), st.integers(0, 64), st.floats(1, 4))
def test_a_token_of_service_takes_what_the_engine_took_for_all(
    seconds: float, prefilled: int, rows: int, weight: float
) -> None:
    """The last hundred steps count; an output token counts as several."""
    speeds = Speeds(512)
    for steps in range(1, 40):
        speeds.take(
            Counters(
                steps=steps,
                busy_seconds=steps * seconds,
                prefilled_tokens=steps * prefilled,
                generated_tokens=steps * rows,
            )
        )
    service = prefilled + weight * rows
    found = speeds.service_token_seconds(weight)
    assert found is None if not service else found == pytest.approx(seconds / service)


@given(
    st.lists(
        st.tuples(st.integers(0, 32), st.integers(0, 2048), st.integers(0, 9999), durations, durations),
        max_size=60,
    )
)
def test_no_figure_is_ever_negative(steps: list[tuple[int, int, int, float, float]]) -> None:
    """Whatever the steps were: a cost below zero would draw all requests."""
    speeds = Speeds(512, learned(*steps))
    assert speeds.row_seconds >= 0
    assert speeds.step_seconds(0) >= 0
    assert speeds.prefill_seconds(4096, 3, 500) >= 0
