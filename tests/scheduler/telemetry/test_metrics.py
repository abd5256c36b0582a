"""The label of each refusal, and whose numbers a registry has."""

from __future__ import annotations

import pytest

from scheduler.errors import (
    Draining,
    QueueFull,
    SchedulerError,
    TenantLimit,
    Unavailable,
)
from scheduler.telemetry.labels import REJECTIONS
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.observation import rejection_reason
from tests.fakes.samples import sample


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QueueFull("no"), "queue_full"),
        (TenantLimit("no", retry_after_seconds=1.0), "tenant_limit"),
        (Draining("no"), "draining"),
        (Unavailable("no"), "unavailable"),
    ],
)
def test_every_refusal_has_its_reason(error: SchedulerError, reason: str) -> None:
    """One of those that are there from the start."""
    assert rejection_reason(error) == reason
    assert reason in REJECTIONS


def test_services_do_not_share_their_numbers() -> None:
    """A registry each: two schedulers in one process, as in tests, count for themselves."""
    one, two = Metrics().of_model("tiny"), Metrics().of_model("tiny")
    one.session_moves.inc()
    assert sample(one.registry, "penstock_session_moves_total") == 1
    assert sample(two.registry, "penstock_session_moves_total") == 0
