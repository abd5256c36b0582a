"""`/health`, `/ready`, `/metrics`, `/docs`: the endpoints for operators and load balancers."""

from __future__ import annotations

from importlib.metadata import version

import httpx
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import trio_test

from api.admin.engines import rounded
from scheduler.config import RecoveryConfig
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running


@trio_test
async def test_ready_follows_the_engine(autojump_clock: trio.testing.MockClock) -> None:
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
async def test_health_is_about_progress(autojump_clock: trio.testing.MockClock) -> None:
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
async def test_metrics_count_what_happened(autojump_clock: trio.testing.MockClock) -> None:
    """Prometheus's own parser reads them, and the numbers match the requests."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        for _ in range(3):
            await client.post("/v1/chat/completions", json=chat())
        await client.post("/v1/chat/completions", json=chat(temperature=9))
        await client.post("/v1/chat/completions", json=chat("refuse me"))
        text = (await client.get("/metrics")).text
    samples = {
        (sample.name, tuple(value for name, value in sample.labels.items() if name != "model")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    prompt = len("<user>hello\n<assistant>")
    assert samples["penstock_requests_total", ("length",)] == 3
    assert samples["penstock_requests_total", ("cancelled",)] == 0
    assert samples["penstock_requests_total", ("invalid",)] == 1
    assert samples["penstock_prompt_tokens_total", ()] == 3 * prompt
    assert samples["penstock_prefilled_tokens_total", ("0",)] == prompt + 2
    assert samples["penstock_prefix_query_tokens_total", ("0",)] == 3 * prompt
    assert samples["penstock_prefix_hit_tokens_total", ("0",)] == 2 * (prompt - 1)
    assert samples["penstock_generated_tokens_total", ("0",)] == 24
    assert samples["penstock_time_to_first_token_seconds_count", ("cold",)] == 1
    assert samples["penstock_time_to_first_token_seconds_count", ("warm",)] == 2
    assert samples["penstock_inter_token_seconds_count", ()] == 21
    assert samples["penstock_request_seconds_count", ()] == 3
    assert samples["penstock_queued_requests", ()] == 0
    assert samples["penstock_running_slots", ("0",)] == 0
    assert samples["penstock_kv_bytes", ("0",)] == 0
    assert samples["penstock_engine_up", ("0",)] == 1


@trio_test
async def test_the_scheduler_shows_who_waits_and_who_runs(autojump_clock: trio.testing.MockClock) -> None:
    """Queue by flow, requests in the engine, bounds and speeds."""
    plan = ScriptedPlan(step_seconds=0.01)
    scheduler = make_scheduler(
        LoopbackLauncher(), plan, max_slots=1, lookahead=0, max_queue=10, max_queued_tokens=1000
    )
    async with client_of(scheduler) as client:
        before = (await client.get("/v1/scheduler")).json()
        (starting,) = before.pop("engines")
        assert starting == {
            "engine": "0",
            "condition": "starting",
            "draining": False,
            "restarts": 0,
            "failed_starts": 0,
            "last_death": None,
            "last_death_cause": None,
            "requests": 0,
            "bound_requests": 1,
            "kv_cache_share": 1.0,
            "prefill_chunk_ceiling": 512,
            "last_step_seconds": None,
            "stalled_seconds": 0.0,
            "prefill_tokens_per_second": None,
            "decode_step_seconds": None,
            "report": None,
        }
        assert before == {
            "draining": False,
            "engine": None,
            "restarts": 0,
            "last_death": None,
            "last_death_cause": None,
            "blocked": None,
            "departures_per_second": None,
            "last_step_seconds": None,
            "kv_cache_share": 1.0,
            "prefill_chunk_ceiling": 512,
            "engine_bound_requests": 1,
            "queue": {
                "requests": 0,
                "prompt_tokens": 0,
                "oldest_seconds": 0.0,
                "bound_requests": 10,
                "bound_prompt_tokens": 1000,
                "bound_requests_per_tenant": None,
                "flows": [],
            },
            "running": [],
            "waits": [],
            "prompt_pieces": {"tokens": 0, "kept_tokens": 0, "held_bytes": 0},
        }
        async with running(scheduler) as nursery:
            for _ in range(10):
                await client.post("/v1/chat/completions", json=chat())
            nursery.start_soon(_post, client)
            await trio.testing.wait_all_tasks_blocked()
            for session in ("s1", "s1", "s2"):
                nursery.start_soon(_post_in, client, session)
                # One by one: trio starts tasks of one batch in any order.
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.045)
            # The report waits for the engine's part; the metrics are current.
            metrics = (await client.get("/metrics")).text
            report = (await client.get("/v1/scheduler")).json()
            await trio.sleep(5)
            after = (await client.get("/v1/scheduler")).json()
    prompt = len("<user>hello\n<assistant>")
    (slot,) = report["engine"]["slots"]
    assert (slot["prompt_tokens"], slot["cached_tokens"], slot["preemptions"]) == (prompt, prompt - 1, 0)
    assert slot["charged_bytes"] == 64 * (1 + 8)
    assert report["engine"]["decode_step_seconds"] is None, "the virtual clock stands still inside a step"
    (one,) = report["running"]
    assert one["id"].startswith("chatcmpl-")
    assert one["request_id"] == slot["request_id"]
    assert one == {
        "id": one["id"],
        "choice": 0,
        "engine": "0",
        "request_id": one["request_id"],
        "tenant": "",
        "session": "",
        "priority": 0,
        "state": "decoding",
        "outcome": None,
        "prompt_tokens": prompt,
        "prefilled_tokens": prompt,
        "cached_tokens": prompt - 1,
        "output_tokens": 4,
        "max_tokens": 8,
        "resumed": 0,
        "dispatched_seconds": 0.0,
        "first_token_seconds": 0.01,
        "total_seconds": 0.045,
        "waits_for": "",
        "spans": [],
    }
    (wait,) = report["waits"]
    assert (wait["tenant"], wait["reason"], wait["requests"]) == ("", "engines_full", 3)
    assert wait["oldest_seconds"] == 0.045
    flows = sorted(report["queue"]["flows"], key=lambda flow: str(flow["session"]))
    assert [(flow["session"], flow["requests"], flow["prompt_tokens"]) for flow in flows] == [
        ("s1", 2, 2 * prompt),
        ("s2", 1, prompt),
    ]
    assert all(flow["oldest_seconds"] == 0.045 for flow in flows)
    assert all(flow["tenant_service_tokens"] > 0 for flow in flows)
    assert report["queue"]["oldest_seconds"] == 0.045
    assert report["departures_per_second"] > 5
    assert report["last_step_seconds"] == 0.005
    assert 'penstock_oldest_queued_seconds{model="tiny"} 0.045' in metrics
    assert f'penstock_queued_prompt_tokens{{model="tiny"}} {3 * prompt}.0' in metrics
    assert (after["running"], after["queue"]["flows"]) == ([], [])


@trio_test
async def test_the_scheduler_shows_what_the_last_step_was_planned_to_do(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With field names, unlike the list on the link; requests by their numbers in `running`."""
    plan = ScriptedPlan(step_seconds=0.01, prefill_tokens_per_step=50)
    scheduler = make_scheduler(LoopbackLauncher(), plan, max_slots=2)
    async with running(scheduler) as nursery, client_of(scheduler) as client:
        before = (await client.get("/v1/scheduler")).json()["engine"]["plan"]
        await trio.sleep(5)  # An engine's reply is reused for a second.
        nursery.start_soon(_post, client)
        await trio.sleep(0.025)
        nursery.start_soon(_post, client, "x" * 300)
        await trio.sleep(0.025)
        report = (await client.get("/v1/scheduler")).json()
        ids = {one["state"]: one["request_id"] for one in report["running"]}
        during = report["engine"]["plan"]
        await trio.sleep(5)
        after = (await client.get("/v1/scheduler")).json()["engine"]["plan"]
    assert (before["decoding"], before["reason"]) == (0, "idle")
    assert during == {
        "preempted": [],
        "admitted": [],
        "chunks": {str(ids["prefilling"]): 50},
        "decoding": 1,
        "reason": "unknown_speed",
        "predicted_seconds": None,
        "target_seconds": None,
    }
    assert (after["chunks"], after["reason"]) == ({}, "decode_only")


def test_small_numbers_keep_three_digits() -> None:
    """A step of a small model takes less than a millisecond."""
    given = {"a": 0.00031415, "b": [12.34567], "c": 1234.5678, "d": 0.0, "e": -0.00012345, "f": 7}
    assert rounded(given) == {"a": 0.000314, "b": [12.346], "c": 1234.568, "d": 0.0, "e": -0.000123, "f": 7}


async def _post_in(client: httpx.AsyncClient, session: str) -> None:
    await client.post("/v1/chat/completions", json=chat(), headers={"session-id": session})


@trio_test
async def test_the_api_describes_itself_without_the_outside_world(
    autojump_clock: trio.testing.MockClock,
) -> None:
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
async def test_ready_says_why_nothing_is_admitted(autojump_clock: trio.testing.MockClock) -> None:
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
