"""Counters that only grow, whatever becomes of the engines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import (
    DeadlineUnmeetable,
    Draining,
    QueueFull,
    SchedulerError,
    TenantLimit,
    Unavailable,
)
from scheduler.link.messages import Counters
from scheduler.telemetry.metrics import OUTCOMES, REJECTIONS, EngineTotals, Metrics, rejection_reason

COUNTED = {
    "penstock_engine_steps_total": "steps",
    "penstock_prefilled_tokens_total": "prefilled_tokens",
    "penstock_generated_tokens_total": "generated_tokens",
    "penstock_engine_step_seconds_total": "busy_seconds",
}
increments = st.tuples(*[st.integers(0, 1000)] * 7)
lives = st.lists(st.lists(increments, max_size=6), max_size=5)


def read(metrics: Metrics, name: str) -> float:
    value = metrics.registry.get_sample_value(name)
    assert value is not None, f"no sample {name}"
    return value


@settings(max_examples=60, deadline=None)
@given(lives)
def test_totals_over_restarts_are_the_sum_of_what_every_engine_did(
    lives: list[list[tuple[int, ...]]],
) -> None:
    """Each engine counts from zero; ours never go back and miss nothing."""
    metrics = Metrics()
    totals = EngineTotals(metrics)
    expected = dict.fromkeys(COUNTED, 0.0)
    for life in lives:
        engine = Counters()
        for steps, prefilled, generated, busy, running, waiting, kv_bytes in life:
            engine = Counters(
                engine.steps + steps,
                engine.prefilled_tokens + prefilled,
                engine.generated_tokens + generated,
                engine.busy_seconds + busy / 8,
                running,
                waiting,
                kv_bytes,
            )
            before = {name: read(metrics, name) for name in COUNTED}
            totals.take(engine)
            assert all(read(metrics, name) >= before[name] for name in COUNTED)
            assert read(metrics, "penstock_running_slots") == running
            assert read(metrics, "penstock_kv_bytes") == kv_bytes
        totals.forget()
        for name, field in COUNTED.items():
            expected[name] += getattr(engine, field)
            assert read(metrics, name) == pytest.approx(expected[name])
        assert read(metrics, "penstock_running_slots") == read(metrics, "penstock_kv_bytes") == 0


def test_every_outcome_is_there_from_the_start() -> None:
    """A rate over a series that does not exist yet misses its first event."""
    metrics = Metrics()
    for outcome in OUTCOMES:
        value = metrics.registry.get_sample_value("penstock_requests_total", {"outcome": outcome})
        assert value == 0
    for reason in REJECTIONS:
        assert metrics.registry.get_sample_value("penstock_rejections_total", {"reason": reason}) == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QueueFull, "queue_full"),
        (TenantLimit, "tenant_limit"),
        (DeadlineUnmeetable, "deadline"),
        (Draining, "draining"),
        (Unavailable, "unavailable"),
    ],
)
def test_every_refusal_has_its_reason(error: type[SchedulerError], reason: str) -> None:
    """One of those that are there from the start."""
    assert rejection_reason(error("no")) == reason
    assert reason in REJECTIONS


def test_services_do_not_share_their_numbers() -> None:
    """A registry each: two schedulers in one process, as in tests, count for themselves."""
    one, two = Metrics(), Metrics()
    one.steps.inc()
    assert read(one, "penstock_engine_steps_total") == 1
    assert read(two, "penstock_engine_steps_total") == 0
