"""`GET /v1/scheduler/requests/ID`: a request opens to its time line, while it waits, runs and soon after."""

from __future__ import annotations

import json
from typing import Any

import httpx
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.shared.messages import ScriptedPlan
from scheduler.telemetry.request_recorder import KEPT
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

PLAN = ScriptedPlan(step_seconds=0.1, prefill_tokens_per_step=20)


async def opened(client: httpx.AsyncClient, request_id: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/scheduler/requests/{request_id}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == request_id
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


@trio_test
async def test_a_request_opens_while_it_waits_and_runs_and_after_its_end(autojump_clock: MockClock) -> None:
    """The spans are seconds from its arrival; no word of the prompt or the answer is in them."""
    scheduler = make_scheduler(LoopbackLauncher(), PLAN, max_slots=1, lookahead=1)
    answers: list[Any] = []
    async with running(scheduler) as nursery, client_of(scheduler) as client:

        async def post(name: str) -> None:
            answers.append(
                (await client.post("/v1/chat/completions", json=chat(f"secret {name} " * 4))).json()
            )

        for name in ("first", "second", "third"):
            nursery.start_soon(post, name)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.25)
        report = (await client.get("/v1/scheduler")).json()
        ids = [one["id"] for one in report["running"]] + [report["waits"][0]["oldest_id"]]
        before = [(await opened(client, one))[0] for one in ids]
        await trio.sleep(20)
        after = [(await opened(client, one))[0] for one in ids]
    assert ids == [one["id"] for one in answers]
    assert [(report["state"], report["outcome"], report["waits_for"]) for report in before] == [
        ("prefilling", None, ""),
        ("submitted", None, "slot"),
        ("queued", None, "engines_full"),
    ]
    for report in after:
        assert (report["state"], report["outcome"], report["output_tokens"]) == ("retired", "length", 8)
        spans = report["spans"]
        assert (spans[0]["start"], spans[-1]["end"]) == (0, report["total_seconds"])
        assert sum(span["tokens"] for span in spans) == report["prompt_tokens"] - report["cached_tokens"]
        assert [span["phase"] for span in spans][-2:] == ["prefill", "decode"]
    assert "secret" not in json.dumps([before, after])


@trio_test
async def test_one_that_is_not_known_any_more_is_404(autojump_clock: MockClock) -> None:
    """The last ones that ended are kept, and no more than those."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        ids = [
            (await client.post("/v1/chat/completions", json=chat(max_tokens=1))).json()["id"]
            for _ in range(KEPT + 1)
        ]
        assert len(await opened(client, ids[1])) == 1
        gone = await client.get(f"/v1/scheduler/requests/{ids[0]}")
        nobody = await client.get(f"/v1/scheduler/requests/{ids[1]}", params={"model": "nobody"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "request_not_found")
    assert nobody.json()["error"]["code"] == "model_not_found"
