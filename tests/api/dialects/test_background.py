"""Responses in the background: they are made without their client, who asks for them by their ids."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock, trio_test

from api.access.identity import Identity
from api.dialects.responses.running import MAX_BACKGROUND
from api.dialects.responses.store import ResponseStore
from scheduler.request import PRIORITIES
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import client_of
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.api.dialects.test_official_dialects import FUNCTION, gpt
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

UNDER_WAY = ("queued", "in_progress")
LONG = {"input": "go on", "background": True, "max_output_tokens": 20_000}


def slow(**settings: Any) -> Scheduler:
    return make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=1.0), **settings)


async def begin(client: httpx.AsyncClient, **fields: Any) -> str:
    answer = await client.post("/v1/responses", json={**LONG, **fields})
    assert answer.status_code == 200, answer.text
    begun = answer.json()
    assert begun["status"] in UNDER_WAY
    assert (begun["background"], begun["output"]) == (True, [])
    return str(begun["id"])


async def status(client: httpx.AsyncClient, response_id: str) -> str:
    return str((await client.get(f"/v1/responses/{response_id}")).json()["status"])


@trio_test
async def test_the_official_client_polls_it(autojump_clock: MockClock) -> None:
    """It is the response that a client who waits would get, stored as that one, and can be continued."""
    scheduler = make_scheduler(Playback(SAID, "It is noon."), answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        begun = await client.responses.create(model="tiny", input="What?", tools=[FUNCTION], background=True)
        assert begun.status in UNDER_WAY
        await scheduler.wait_idle()
        await trio.sleep(1)
        found = await client.responses.retrieve(begun.id)
        assert (found.status, [item.type for item in found.output]) == (
            "completed",
            ["reasoning", "message", "function_call"],
        )
        assert found.usage is not None
        assert await client.responses.cancel(found.id) == found, "it is over, and stays as it is"
        after = await client.responses.create(model="tiny", input="And?", previous_response_id=found.id)
        assert after.output_text == "It is noon."


@trio_test
async def test_it_waits_for_its_turn_and_says_so(autojump_clock: MockClock) -> None:
    """Queued behind another one, in progress, cancelled, with its output so far: each seen by its id."""
    scheduler = slow(max_slots=1, lookahead=0)
    async with running(scheduler), client_of(scheduler) as client:
        first, second = await begin(client), await begin(client)
        await trio.sleep(10.5)
        assert [await status(client, one) for one in (first, second)] == ["in_progress", "queued"]
        cancelled = (await client.post(f"/v1/responses/{first}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert len(cancelled["output"][0]["content"][0]["text"].split()) >= 5
        assert (await client.get(f"/v1/responses/{first}")).json() == cancelled
        assert (await client.post(f"/v1/responses/{first}/cancel")).json() == cancelled
        await trio.sleep(10)
        assert await status(client, second) == "in_progress"
        deleted = await client.delete(f"/v1/responses/{second}")
        assert deleted.json()["deleted"]
        assert (await client.get(f"/v1/responses/{second}")).status_code == 404
        with trio.fail_after(10):
            await scheduler.wait_idle()


@trio_test
async def test_it_is_a_request_like_any_other(autojump_clock: MockClock) -> None:
    """Refused where the queue is full, or its prompt and answer are too long; ended at its deadline, and when
    the server ends, which says so as long as it answers."""
    scheduler = slow(max_slots=1, lookahead=0, max_queue=1)
    async with running(scheduler), client_of(scheduler) as client:
        too_long = await client.post("/v1/responses", json={**LONG, "max_output_tokens": 50_000})
        assert too_long.status_code == 400
        begun = [await begin(client, timeout=20), await begin(client)]
        full = await client.post("/v1/responses", json=LONG)
        assert (full.status_code, "retry-after" in full.headers) == (503, True)
        await trio.sleep(30)
        begun.append(await begin(client))
        scheduler.end_all()
        await trio.sleep(1)
        ends = [(await client.get(f"/v1/responses/{one}")).json() for one in begun]
    assert [ended["status"] for ended in ends] == ["failed"] * 3
    says = [ended["error"]["message"] for ended in ends]
    assert says[0]
    assert ["shutting down" in one for one in says] == [False, True, True]


@pytest.mark.parametrize(("most", "size", "status"), [(0, 1 << 20, 400), (4, 0, 400), (4, 100, 200)])
@trio_test
async def test_a_store_without_room_loses_none_in_silence(
    most: int, size: int, status: int, autojump_clock: MockClock
) -> None:
    """Without a store it is refused; an answer larger than the store is not found."""
    scheduler = make_scheduler(Playback("ok"))
    async with running(scheduler), client_of(scheduler, responses=ResponseStore(most, size)) as client:
        answer = await client.post("/v1/responses", json={"input": "a", "background": True})
        assert answer.status_code == status
        await scheduler.wait_idle()
        await trio.sleep(1)
        assert (await client.get(f"/v1/responses/{answer.json().get('id')}")).status_code == 404


@trio_test
async def test_a_tenant_has_a_bound_on_what_it_leaves_behind(autojump_clock: MockClock) -> None:
    """They wait behind all others unless they ask for more, and an operator can end each by its id, but no
    other tenant can."""
    scheduler = slow(max_slots=1, lookahead=0)
    async with running(scheduler), client_of(scheduler, identity=Identity("x-tenant")) as client:
        begun = [await client.post("/v1/responses", json=LONG, headers={"x-tenant": "a"}) for _ in range(65)]
        assert [one.status_code for one in begun] == [200] * MAX_BACKGROUND + [429]
        assert begun[-1].json()["error"]["code"] == "rate_limit_exceeded"
        other = await client.post("/v1/responses", json={**LONG, "priority": 0}, headers={"x-tenant": "b"})
        assert other.status_code == 200
        priorities = {flow.tenant: flow.priority for flow in scheduler.queue.statistics(0.0).flows}
        assert priorities == {"a": PRIORITIES[-1], "b": 0}
        mine = f"/v1/responses/{begun[0].json()['id']}"
        for method, path in (("GET", mine), ("DELETE", mine), ("POST", f"{mine}/cancel")):
            assert (await client.request(method, path, headers={"x-tenant": "b"})).status_code == 404
        for one in begun[:-1]:
            path = f"/v1/scheduler/requests/{one.json()['id']}"
            assert (await client.delete(path)).json()["ended"] == 1
            await trio.sleep(1)
            assert (await client.delete(path)).status_code == 404
        found = await client.get(mine, headers={"x-tenant": "a"})
        assert found.json()["status"] == "failed"
        assert "operator" in found.json()["error"]["message"]
        assert len(scheduler.queue) == 0
        again = await client.post("/v1/responses", json=LONG, headers={"x-tenant": "a"})
        assert again.status_code == 200
