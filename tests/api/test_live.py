"""The live page's stream: snapshots until the drain is done, of all engines together and of each."""

from __future__ import annotations

import json
from typing import Any

import trio.testing
from trio.testing import trio_test

from api.live import snapshot
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running


def named(body: str, name: str) -> list[Any]:
    blocks = [block.split("\ndata: ", 1) for block in body.split("\n\n") if block.startswith("event: ")]
    return [json.loads(data) for event, data in blocks if event == f"event: {name}"]


@trio_test
async def test_snapshots_come_until_the_drain_is_done(autojump_clock: trio.testing.MockClock) -> None:
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
    assert [one["number"] for one in recent] == [1, 2, 3]
    assert [one["outcome"] for one in recent] == ["length"] * 3
    assert snapshots[-1]["generated_tokens"] == 24
    assert [(line["engine"], line["condition"]) for line in snapshots[-1]["engines"]] == [("0", "ready")]
    assert named(body, "cache")[0]["enabled"] is True
    assert "secret" not in body


@trio_test
async def test_figures_are_sums_over_engines(autojump_clock: trio.testing.MockClock) -> None:
    """And each engine's own rows and memory are in its line."""
    scheduler = make_scheduler(lambda number: LoopbackLauncher(), max_slots=4, engines=2)
    async with running(scheduler):
        for name, factor in (("0", 1), ("1", 10)):
            engine = scheduler.metrics.of_engine(name)
            engine.slots.set(4)
            engine.running.set(factor)
            engine.kv_bytes.set(2 * factor)
            engine.prefix_bytes.set(3 * factor)
            engine.kv_budget.set(100)
            engine.weights_bytes.set(1000)
            engine.generated_tokens.inc(5 * factor)
            engine.prefilled_tokens.inc(6 * factor)
            engine.prefix_hit_tokens.inc(7 * factor)
        body = snapshot(scheduler)
    assert body["slots"] == 8
    assert (body["generated_tokens"], body["prefilled_tokens"], body["cached_tokens"]) == (55, 66, 77)
    assert body["memory"] == {
        "running_bytes": 22,
        "prefix_bytes": 33,
        "budget_bytes": 200,
        "weights_bytes": 2000,
    }
    lines = [(line["engine"], line["running_slots"], line["running_bytes"]) for line in body["engines"]]
    assert lines == [("0", 1, 2), ("1", 10, 20)]
