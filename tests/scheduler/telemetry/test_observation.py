"""Samples of requests and gauges: bounded labels, latencies of finished requests, vLLM's names."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN
from scheduler.request import GenerationRequest
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from scheduler.statistics import FlowStatistics
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from scheduler.telemetry.observation import band_of, observe_flows
from scheduler.telemetry.vllm_names import VllmNames
from tests.cancellation.bench import Bench
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import Events, answer, ask, make_scheduler, running


def series(metrics: ModelMetrics) -> int:
    return sum(len(family.samples) for family in metrics.registry.collect())


def flow(tenant: str, session: str = "", priority: int = 0, **facts: float) -> FlowStatistics:
    return FlowStatistics(
        priority=priority,
        tenant=tenant,
        session=session,
        requests=1,
        prompt_tokens=int(facts.get("tokens", 10)),
        oldest_seconds=facts.get("oldest", 1.0),
        tenant_service_tokens=facts.get("service", 0.0),
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


def test_bands_are_by_the_sign_of_the_priority() -> None:
    """Lower goes first."""
    assert [band_of(priority) for priority in (-10, -1, 0, 1, 10)] == [
        "urgent",
        "urgent",
        "normal",
        "background",
        "background",
    ]
    metrics = Metrics().of_model("tiny")
    observe_flows(metrics, [flow("a", priority=-3, oldest=9.0), flow("b", priority=-1, tokens=5)])
    value = partial(sample, metrics.registry)
    assert value("penstock_band_queued_requests", band="urgent") == 2
    assert value("penstock_band_queued_prompt_tokens", band="urgent") == 15
    assert value("penstock_band_oldest_queued_seconds", band="urgent") == 9.0
    observe_flows(metrics, [])
    assert value("penstock_band_oldest_queued_seconds", band="urgent") == 0.0


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


@trio_test
async def test_who_awaits_an_engine_is_in_no_state_of_one(autojump_clock: MockClock) -> None:
    """Until another has resumed it: then it decodes there."""
    bench = Bench()
    async with running(bench.scheduler), trio.open_nursery() as nursery:
        client = await bench.strand(nursery)
        bench.scheduler.operations.observe()
        assert bench.sample("penstock_awaiting_engine_requests") == 1
        assert bench.sample("penstock_engine_state_requests") == 0
        assert bench.sample("penstock_engines", condition="restarting") == 1
        had = len(client.text)
        await bench.wait_for(lambda: len(client.text) > had)
        bench.scheduler.operations.observe()
        assert bench.sample("penstock_awaiting_engine_requests") == 0
        assert bench.sample("penstock_engine_state_requests", state="decoding") == 1
        assert bench.sample("penstock_engines", condition="ready") == 1
        client.leave()


async def _all_choices(scheduler: Scheduler, request: GenerationRequest) -> None:
    """Read the answers to their ends."""
    with suppress(trio.EndOfChannel):
        async with scheduler.stream(request) as stream:
            while True:
                await stream.receive_choice()


def _check_prompt_tokens(metrics: ModelMetrics) -> tuple[float, float, float]:
    """Check that vLLM's prompt tokens add up, and return all of them, the cached ones and those of finished
    requests."""
    value = partial(sample, metrics.registry)
    whole, cached = value("vllm:prompt_tokens_total"), value("vllm:prompt_tokens_cached_total")
    assert whole == value("vllm:prompt_tokens_by_source_total")
    assert cached == value("vllm:prompt_tokens_by_source_total", source="local_cache_hit")
    assert cached <= whole, "no hit rate above 1"
    return whole, cached, value("vllm:request_prompt_tokens_sum")


@trio_test
async def test_vllms_prompt_tokens_add_up_after_cancels_and_preemptions(autojump_clock: MockClock) -> None:
    """Whatever ended a choice, and however often it began: what engines did is computed or cached."""
    plan = ScriptedPlan(step_seconds=0.01, prefill_tokens_per_step=16)
    scheduler = make_scheduler(LoopbackLauncher(), plan, kv_cache_bytes=200 * KV_BYTES_PER_TOKEN)
    scheduler.metrics.registry.register(VllmNames(scheduler.metrics.server))

    async def leave(text: str, after_seconds: float) -> None:
        with trio.move_on_after(after_seconds):
            await _all_choices(scheduler, ask(text, choices=3, max_tokens=60))

    async with running(scheduler), trio.open_nursery() as nursery:
        for number in range(6):
            stays = ask(f"{number} keeps its place", choices=3, max_tokens=60)
            nursery.start_soon(_all_choices, scheduler, stays)
            nursery.start_soon(leave, f"{number} leaves " + "soon " * 12, 0.03 + 0.2 * number)
    value = partial(sample, scheduler.metrics.registry)
    assert value("vllm:num_preemptions_total") > 0
    assert value("vllm:request_success_total", finished_reason="abort") > 0
    whole, _, finished = _check_prompt_tokens(scheduler.metrics)
    assert whole > finished > 0
