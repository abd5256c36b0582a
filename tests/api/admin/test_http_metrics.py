"""HTTP metrics by route and status, with labels that clients cannot multiply."""

from __future__ import annotations

from functools import partial

import httpx
import pytest
import trio
import trio.testing
from prometheus_client import exposition as classic
from trio.testing import trio_test

from api.admin.exposition import exposition_of
from api.admin.http_metrics import ServerMetrics
from api.http.refusals import Refusal
from api.http.statistics import ServerStatistics
from scheduler.telemetry.labels import HTTP_REFUSALS
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.vllm_names import VllmNames
from tests.api.client import app_of, chat, client_of, several
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import answer, ask, make_scheduler, running


@trio_test
async def test_answers_are_counted_by_template_and_status(autojump_clock: trio.testing.MockClock) -> None:
    """A hundred paths are one route, and an unknown method is `other`."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        await client.post("/v1/chat/completions", json=chat())
        await client.post("/v1/chat/completions", json=chat(temperature=9))
        for n in range(100):
            await client.get(f"/nowhere/{n}")
            await client.get(f"/v1/models/{n}")
        await client.request("BREW", "/coffee")
    value = scheduler.metrics.registry.get_sample_value

    def counted(method: str, route: str, status: str) -> float | None:
        labels = {"method": method, "route": route, "status": status}
        return value("penstock_http_requests_total", labels)

    assert counted("POST", "/v1/chat/completions", "200") == 1
    assert counted("POST", "/v1/chat/completions", "400") == 1
    assert counted("GET", "other", "404") == 100
    assert counted("GET", "/v1/models/{name:path}", "404") == 100
    assert counted("other", "other", "404") == 1
    (family,) = scheduler.metrics.server.http_requests.family.collect()
    assert len(family.samples) == 5


@trio_test
async def test_the_servers_own_counts_are_metrics(autojump_clock: trio.testing.MockClock) -> None:
    """Each once, at any number of scrapes."""
    assert {refusal.value for refusal in Refusal} == set(HTTP_REFUSALS)
    scheduler = make_scheduler(LoopbackLauncher())
    tally = ServerStatistics()
    server = ServerMetrics(scheduler.metrics.server, tally.snapshot)
    value = scheduler.metrics.registry.get_sample_value
    async with client_of(scheduler, server=server) as client:
        for open_connections in (3, 2):
            tally.open_connections = open_connections
            tally.refusals_total[Refusal.MALFORMED] += 2
            tally.accept_failures_total += 5
            for _ in range(2):
                await client.get("/metrics")
            assert value("penstock_http_connections") == open_connections
    assert value("penstock_http_refusals_total", {"reason": "malformed_request"}) == 4
    assert value("penstock_http_refusals_total", {"reason": "body_timeout"}) == 0
    assert value("penstock_http_accept_failures_total") == 10


@trio_test
async def test_a_scrape_is_of_every_model(autojump_clock: trio.testing.MockClock) -> None:
    """One registry; each model's gauges are brought up to date, and none has another's figures."""
    metrics = Metrics()
    names = ("tiny", "large")
    schedulers = [make_scheduler(LoopbackLauncher(), metrics=metrics.of_model(name)) for name in names]
    app = app_of(several(dict(zip(names, schedulers, strict=True))))
    async with running(schedulers[0]), running(schedulers[1]):
        await answer(schedulers[1], ask(max_tokens=5))
        await trio.sleep(7)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            assert (await client.get("/metrics")).status_code == 200
    read = partial(sample, metrics.registry)
    for model, (tokens, age) in {"tiny": (0, 0.0), "large": (5, 7.0)}.items():
        assert read("penstock_generated_tokens_total", model=model, engine="0") == tokens
        assert read("penstock_last_step_age_seconds", model=model, engine="0") == pytest.approx(age, abs=0.1)
        assert read("penstock_engines", model=model, condition="ready") == 1
    assert read("penstock_http_requests_total", route="/metrics") == 1


@trio_test
async def test_a_scrape_of_many_models_lets_streams_go_on(autojump_clock: trio.testing.MockClock) -> None:
    """After each family; the text is the library's own."""
    metrics = Metrics()
    for number in range(20):
        metrics.of_model(f"model-{number}").of_engine("0")
    metrics.registry.register(VllmNames(metrics))
    families = len(list(metrics.registry.collect()))
    turns = 0

    async def stream() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        before = turns
        text = await exposition_of(metrics.registry)
        nursery.cancel_scope.cancel()
    assert text == classic.generate_latest(metrics.registry)
    # Whichever of the two tasks has its first turn first.
    assert turns - before >= families - 1
