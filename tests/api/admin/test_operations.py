"""`/health`, `/ready`, `/metrics`, `/docs`: the endpoints for operators and load balancers."""

from __future__ import annotations

from importlib.metadata import version

import httpx
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.config import RecoveryConfig
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running


@trio_test
async def test_ready_follows_the_engine(autojump_clock: MockClock) -> None:
    """503 before the first engine is up and while a dead one is replaced; 200 otherwise."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher)
    async with client_of(scheduler) as client:
        before = await client.get("/ready")
        assert (before.status_code, before.json()["status"]) == (503, "starting")
        assert (await client.head("/ready")).status_code == 503
        async with running(scheduler):
            assert (await client.get("/ready")).status_code == 200
            launcher.kill()
            await trio.testing.wait_all_tasks_blocked()
            during = await client.get("/ready")
            assert (during.status_code, during.json()["status"]) == (503, "restarting")
            assert (await client.get("/health")).status_code == 200
            await scheduler.wait_ready()
            after = await client.get("/ready")
            assert (after.status_code, after.json()["restarts"]) == (200, 1)


@trio_test
async def test_health_is_about_progress(autojump_clock: MockClock) -> None:
    """An engine that hangs inside a step is reported, although its process lives."""
    scheduler = make_scheduler(LoopbackLauncher(faulty(hang_at_step=3)))
    async with running(scheduler) as nursery, client_of(scheduler) as client:
        await trio.sleep(1000)
        assert (await client.get("/health")).status_code == 200, "an idle engine is no stalled one"
        nursery.start_soon(_post, client)
        await trio.sleep(59)
        assert (await client.get("/health")).json()["status"] == "ok"
        await trio.sleep(2)
        stalled = await client.get("/health")
        assert (stalled.status_code, stalled.json()["status"]) == (503, "stalled")
        nursery.cancel_scope.cancel()


async def _post(client: httpx.AsyncClient, text: str = "hello") -> None:
    await client.post("/v1/chat/completions", json=chat(text))


@trio_test
async def test_the_api_describes_itself_without_the_outside_world(autojump_clock: MockClock) -> None:
    """`/docs` loads its scripts from this server: it works on a machine without network."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        page = (await client.get("/docs")).text
        assert "https://" not in page
        script = page.split('src="')[1].split('"')[0]
        assert (await client.get(script)).status_code == 200
        described = (await client.get("/openapi.json")).json()
    assert "/v1/chat/completions" in described["paths"]
    assert described["info"]["version"] == version("penstock")


@trio_test
async def test_ready_says_why_nothing_is_admitted(autojump_clock: MockClock) -> None:
    """In a crash loop: 503 with the reason and a time, also while an engine is up."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher, recovery=RecoveryConfig(max_engine_deaths=2))
    async with running(scheduler), client_of(scheduler) as client:
        for _ in range(2):
            await scheduler.wait_ready()
            launcher.kill()
            await trio.testing.wait_all_tasks_blocked()
        await scheduler.wait_ready()
        closed = await client.get("/ready")
        assert (closed.status_code, closed.json()["status"]) == (503, "unstable")
        assert "died 2 times within 60 seconds" in closed.json()["reason"]
        assert closed.headers["retry-after"] == "30"
        refused = await client.post("/v1/chat/completions", json=chat())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        await trio.sleep(30)
        assert (await client.get("/ready")).status_code == 200
