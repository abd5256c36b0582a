"""The live page's stream: snapshots until the drain is done, of all engines together and of each."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import trio
from fastapi import FastAPI
from trio.testing import MockClock, trio_test

from api.admin.live import PAGE, live_routes
from scheduler.requests.lifecycle import State
from scheduler.requests.time_line import RESUMED
from scheduler.shared.waits import REASONS
from scheduler.telemetry.history import COLUMNS
from tests.api.client import chat, client_of, several
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running


def keys_of(table: str) -> set[str]:
    """Return the keys of an object in the page's script that begins as `table` does."""
    found = re.search(re.escape(table) + r"=\{(.*?)\};", PAGE)
    assert found is not None
    return set(re.findall(r"(\w+):[\[\"]", found[1]))


def test_the_page_has_words_for_every_reason_and_phase() -> None:
    """An unknown one would be shown by its code."""
    assert keys_of("const WAITS") == set(REASONS)
    assert PAGE.count("textContent=who(r)") == 2, (
        "names that are long keep their ends, in which agents differ"
    )
    assert keys_of("const PHASES") == {*State, RESUMED} - {State.ENDING, State.CANCELLING, State.RETIRED}


def named(body: str, name: str) -> list[Any]:
    blocks = [block.split("\ndata: ", 1) for block in body.split("\n\n") if block.startswith("event: ")]
    return [json.loads(data) for event, data in blocks if event == f"event: {name}"]


@trio_test
async def test_snapshots_come_until_the_drain_is_done(autojump_clock: MockClock) -> None:
    """Each request is shown once, no prompt text at all, and the stream does not delay the drain."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler) as nursery, client_of(scheduler) as client:
        bodies: list[str] = []

        async def watch() -> None:
            bodies.append((await client.get("/live")).text)

        nursery.start_soon(watch)
        for _ in range(3):
            await client.post("/v1/chat/completions", json=chat("a secret"))
            await trio.sleep(1)
        scheduler.start_drain()
        await trio.sleep(1)
        (body,) = bodies
    snapshots = named(body, "snapshot")
    assert 5 <= len(snapshots) <= 9
    recent = [one for snapshot in snapshots for one in snapshot["recent"]]
    assert [one["outcome"] for one in recent] == ["length"] * 3
    assert len({one["id"] for one in recent}) == 3
    assert snapshots[-1]["generated_tokens"] == 24
    assert [(line["engine"], line["condition"]) for line in snapshots[-1]["engines"]] == [("0", "ready")]
    assert named(body, "cache")[0]["enabled"] is True
    assert "secret" not in body


@trio_test
async def test_who_comes_late_gets_the_last_minutes_first(autojump_clock: MockClock) -> None:
    """The first snapshot has every sample that is kept, each later one what came since; none comes twice."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler) as nursery, client_of(scheduler) as client:
        await answer(scheduler, ask(max_tokens=40))
        await trio.sleep(100.25)
        bodies: list[str] = []

        async def watch() -> None:
            bodies.append((await client.get("/live")).text)

        nursery.start_soon(watch)
        await trio.sleep(5)
        scheduler.start_drain()
        await trio.sleep(1)
    histories = [snapshot["history"] for snapshot in named(bodies[0], "snapshot")]
    assert len(histories[0]["time"]) == 100
    assert sum(histories[0]["generated"]) == 40
    assert {len(later["time"]) for later in histories[1:]} == {0, 1}
    assert all(tuple(later) == COLUMNS for later in histories)
    times = [time for history in histories for time in history["time"]]
    assert times == sorted(set(times))


@trio_test
async def test_a_stream_is_of_one_model_and_lists_them_all(autojump_clock: MockClock) -> None:
    """The first one's unless another is named; it ends when the whole server is drained."""
    tiny, large = (make_scheduler(LoopbackLauncher()) for _ in range(2))
    app = FastAPI()
    app.include_router(live_routes(several({"tiny": tiny, "owner/large": large})))
    transport, bodies = httpx.ASGITransport(app), dict[str, str]()
    over = dict[str, float]()
    async with running(large) as nursery, httpx.AsyncClient(transport=transport, base_url="http://x") as http:

        async def watch(query: str) -> None:
            bodies[query] = (await http.get(f"/live{query}")).text
            over[query] = trio.current_time()

        nursery.start_soon(watch, "")
        nursery.start_soon(watch, "?model=owner/large")
        await answer(large, ask(max_tokens=5))
        await trio.sleep(1)
        tiny.start_drain()
        await trio.sleep(1)
        assert over == {}
        large.start_drain()
        await trio.sleep(1)
        assert len(over) == 2
    first, second = (named(bodies[query], "snapshot")[-1] for query in ("", "?model=owner/large"))
    assert (first["model"], first["generated_tokens"], first["engine"]["condition"]) == (
        "tiny",
        0,
        "starting",
    )
    assert (second["model"], second["generated_tokens"]) == ("owner/large", 5)
    assert second["engine"]["condition"] == "ready"
    lists = [[(one["model"], one["condition"]) for one in body["models"]] for body in (first, second)]
    assert lists == [[("tiny", "loading"), ("owner/large", "ready")]] * 2
    recent = [one["id"] for one in named(bodies["?model=owner/large"], "snapshot")[0]["recent"]]
    assert recent in ([], ["test-hello"])
    assert not any(body["recent"] for body in named(bodies[""], "snapshot"))


@trio_test
async def test_a_server_that_retires_ends_its_streams(autojump_clock: MockClock) -> None:
    """An open page would keep the old process alive; it connects again, and sees the new one."""
    scheduler = make_scheduler(LoopbackLauncher())
    models = several({"tiny": scheduler})
    app = FastAPI()
    app.include_router(live_routes(models))
    over: list[float] = []
    async with (
        running(scheduler) as nursery,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http,
    ):

        async def watch() -> None:
            await http.get("/live")
            over.append(trio.current_time())

        nursery.start_soon(watch)
        await trio.sleep(2.1)
        assert not over
        models.fleet.retiring = True
        await trio.sleep(1)
        assert over
        nursery.cancel_scope.cancel()
