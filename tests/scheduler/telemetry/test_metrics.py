"""The metrics that exist from the start, and the label of each refusal."""

from __future__ import annotations

import pytest

from scheduler.errors import (
    DeadlineUnmeetable,
    Draining,
    QueueFull,
    SchedulerError,
    TenantLimit,
    Unavailable,
)
from scheduler.telemetry.labels import OUTCOMES, REJECTIONS
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.observation import rejection_reason


def read(metrics: Metrics, name: str) -> float:
    value = metrics.registry.get_sample_value(name)
    assert value is not None, f"no sample {name}"
    return value


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
    one.session_moves.inc()
    assert read(one, "penstock_session_moves_total") == 1
    assert read(two, "penstock_session_moves_total") == 0
