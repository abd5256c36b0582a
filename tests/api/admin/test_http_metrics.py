"""HTTP metrics by route and status, with labels that clients cannot multiply."""

from __future__ import annotations

import trio
from prometheus_client import exposition as classic
from trio.testing import MockClock, trio_test

from api.admin.metrics import exposition_of
from api.http.refusals import Refusal
from api.http.statistics import ServerStatistics
from scheduler.telemetry.labels import HTTP_REFUSALS
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.vllm_names import VllmNames
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running


@trio_test
async def test_answers_are_counted_by_template_and_status(autojump_clock: MockClock) -> None:
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
async def test_the_servers_own_counts_are_metrics(autojump_clock: MockClock) -> None:
    """Each once, at any number of scrapes."""
    assert {refusal.code for refusal in Refusal} == set(HTTP_REFUSALS)
    scheduler = make_scheduler(LoopbackLauncher())
    tally = ServerStatistics()
    value = scheduler.metrics.registry.get_sample_value
    async with client_of(scheduler, server=tally.snapshot) as client:
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
async def test_a_scrape_of_many_models_lets_streams_go_on(autojump_clock: MockClock) -> None:
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
