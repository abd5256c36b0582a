"""Samples of requests and gauges: bounded labels, latencies of finished requests, vLLM's names."""

from __future__ import annotations

from functools import partial

import pytest
from trio.testing import MockClock, trio_test

from scheduler.errors import Draining, QueueFull, SchedulerError, TenantLimit, Unavailable
from scheduler.shared.messages import ScriptedPlan
from scheduler.statistics import FlowStatistics
from scheduler.telemetry.labels import REJECTIONS
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from scheduler.telemetry.observation import observe_flows, rejection_reason
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import Events, answer, ask, make_scheduler, running


def series(metrics: ModelMetrics) -> int:
    return sum(len(family.samples) for family in metrics.registry.collect())


def flow(tenant: str, session: str = "", priority: int = 0) -> FlowStatistics:
    return FlowStatistics(
        priority=priority,
        tenant=tenant,
        session=session,
        requests=1,
        prompt_tokens=10,
        oldest_seconds=1.0,
        tenant_service_tokens=0.0,
        session_service_tokens=0.0,
    )


def test_ten_thousand_tenants_and_sessions_make_no_series() -> None:
    """A client that chooses its own name must not fill the collector's disk."""
    metrics = Metrics(["acme"]).of_model("tiny")
    before = series(metrics)
    flows = [flow(f"tenant-{n}", f"session-{n}", n % 21 - 10) for n in range(10_000)]
    observe_flows(metrics, [*flows, flow("acme")])
    for n in range(10_000):
        metrics.tenant_output[metrics.tenant_label(f"tenant-{n}")].inc()
    assert series(metrics) == before
    value = partial(sample, metrics.registry)
    assert value("penstock_tenant_queued_requests", tenant="other") == 10_000
    assert value("penstock_tenant_queued_requests", tenant="acme") == 1


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


@trio_test
async def test_a_request_leaves_its_samples(autojump_clock: MockClock) -> None:
    """Cold first, warm afterwards; phases add up."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01))
    async with running(scheduler):
        for _ in range(3):
            await answer(scheduler, ask("hello", tenant="acme"))
        scheduler.operations.observe()
    value = partial(sample, scheduler.metrics.registry)
    assert value("penstock_time_to_first_token_seconds_count", start="cold") == 1
    assert value("penstock_time_to_first_token_seconds_count", start="warm") == 2
    assert value("penstock_time_per_output_token_seconds_sum") == pytest.approx(0.03)
    phases = ("queue", "prefill", "decode")
    parts = [value(f"penstock_{phase}_seconds_sum") for phase in phases]
    assert sum(parts) == pytest.approx(value("penstock_request_seconds_sum"))
    assert value("penstock_tenant_output_tokens_total", tenant="other") == 24
    assert value("penstock_stalled_seconds", engine="0") == 0
    assert value("penstock_engines", condition="ready") == 1
    assert sample(scheduler.metrics.registry, "penstock_model_info", engine="0") == 1


@trio_test
async def test_a_cancel_is_timed_until_the_engine_lets_go(autojump_clock: MockClock) -> None:
    """Within two steps; and it does not count as an answer's latency."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.5))
    async with running(scheduler):
        async with scheduler.stream(ask(max_tokens=1000)) as stream:
            async for _ in Events(stream):
                break
        await scheduler.wait_idle()
    value = partial(sample, scheduler.metrics.registry)
    assert value("penstock_cancel_seconds_count") == 1
    assert 0 < value("penstock_cancel_seconds_sum") <= 1.0
    assert value("penstock_request_seconds_count") == 0
