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
from tests.fakes.samples import sample


def test_every_outcome_is_there_from_the_start() -> None:
    """A rate over a series that does not exist yet misses its first event."""
    registry = Metrics().of_model("tiny").registry
    for outcome in OUTCOMES:
        assert sample(registry, "penstock_requests_total", outcome=outcome) == 0
    for reason in REJECTIONS:
        assert sample(registry, "penstock_rejections_total", reason=reason) == 0


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
    one, two = Metrics().of_model("tiny"), Metrics().of_model("tiny")
    one.session_moves.inc()
    assert sample(one.registry, "penstock_session_moves_total") == 1
    assert sample(two.registry, "penstock_session_moves_total") == 0
