"""A scripted run in virtual time, and every figure that operators read of it: `python -m
tests.api.admin.figures_run` writes them into `figures/`, with which a test compares the run's.

Two engines, of which one dies and returns; prefixes that are hit, pinned and cleared; a disk tier on which
blocks were written, read, dropped and damaged. Families and keys are in alphabetical order: theirs means
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import trio
from prometheus_client import CollectorRegistry, exposition
from trio.testing import MockClock

from scheduler.config import RecoveryConfig
from scheduler.engine.backend import Cache
from scheduler.service import Scheduler
from scheduler.shared.messages import DiskCounters, Load, ScriptedPlan
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.vllm_names import VllmNames
from tests.api.client import chat, client_of
from tests.fakes.faulty_backend import HEALTHY, FaultyBackend
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

FOLDER = Path(__file__).parent / "figures"
PLAN = ScriptedPlan(step_seconds=0.25, prefill_tokens_per_step=256)


KINDS = ("damaged", "denied", "foreign", "full", "io", "missing")
DISK = DiskCounters(
    files=2,
    nbytes=1606,
    reads=5,
    read_bytes=4015,
    writes=3,
    write_bytes=2409,
    dropped_writes=1,
    errors={**dict.fromkeys(KINDS, 0), "foreign": 1},
    hit_tokens=768,
)


class _Engine(FaultyBackend):
    """The scripted back end, with a disk tier at rest."""

    def __init__(self, load: Load) -> None:
        super().__init__(
            load.scripted,
            HEALTHY,
            sleep=lambda seconds: None,
            kv_cache_bytes=load.kv_cache_bytes,
            clock=trio.current_time,
            memory_limit_bytes=int(load.memory_limit),
        )

    @property
    def cache(self) -> Cache | None:
        found = super().cache
        return None if found is None else Cache(found.prefixes, lambda: DISK)


async def run() -> dict[str, str]:
    """Return the text of each file by its name."""
    launchers = [LoopbackLauncher(_Engine) for _ in range(2)]
    server = Metrics(["acme"])
    server.registry.register(VllmNames(server))
    scheduler = make_scheduler(
        launchers.__getitem__,
        PLAN,
        max_slots=2,
        engines=2,
        kv_cache_bytes=150_000,
        memory_limit=220_000,
        recovery=RecoveryConfig(),
        metrics=server.of_model("tiny"),
    )
    async with running(scheduler), client_of(scheduler) as client:
        await trio.sleep(1.05)
        await _work(scheduler, client, launchers)
        bodies: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, client, bodies)
            await trio.sleep(0.11)
            nursery.start_soon(_ask, client, "while it is watched", 9)
            await trio.sleep(1.6)
            found = {
                "metrics.txt": metrics_text(server.registry),
                "cache.json": _pretty((await client.get("/v1/cache")).json()),
                "scheduler.json": _pretty((await client.get("/v1/scheduler")).json()),
            }
            await trio.sleep(2.0)
            scheduler.start_drain()
        found["live.json"] = _pretty(list(_events(bodies[0])))
        return found


async def _work(scheduler: Scheduler, client: httpx.AsyncClient, launchers: list[LoopbackLauncher]) -> None:
    for turn in range(3):
        await _ask(client, "a prefix that others share " * 20 + "again" * turn, 6)
    await client.post("/v1/cache", json={"prompt": "pinned " * 30, "keep_alive": "-1"})
    async with trio.open_nursery() as nursery:
        for number in range(7):
            nursery.start_soon(_ask, client, f"{number} of many " * (20 + 9 * number), 4 + number, "acme")
            await trio.sleep(0.13)
        await trio.sleep(0.6)
        launchers[1].kill()
    await trio.sleep(3.0)
    await _ask(client, "a prefix that others share " * 20, 2)
    await client.request("DELETE", "/v1/cache")
    await _ask(client, "a prefix that others share " * 20, 2)
    await _ask(client, "a prefix that others share " * 20, 2)
    assert scheduler.operations.statistics().engine.restarts == 1


async def _ask(client: httpx.AsyncClient, text: str, tokens: int, user: str = "other") -> None:
    body = chat(text, max_tokens=tokens, user=user)
    (await client.post("/v1/chat/completions", json=body)).raise_for_status()


async def _watch(client: httpx.AsyncClient, bodies: list[str]) -> None:
    bodies.append((await client.get("/live")).text)


def _events(body: str) -> Iterator[dict[str, Any]]:
    """Yield the first event of each name, and the last snapshot."""
    named = [tuple(block.split("\ndata: ", 1)) for block in body.split("\n\n") if block.startswith("event: ")]
    first = {name: json.loads(data) for name, data in reversed(named)}
    yield first
    last = json.loads([data for name, data in named if name == "event: snapshot"][-1])
    del (
        last["history"],
        last["time"],
    )  # A sample and a snapshot may be due at one time: trio runs them in any order.
    yield {"last": last}


def metrics_text(registry: CollectorRegistry) -> str:
    """Return the exposition with its families in alphabetical order."""
    return "".join(sorted(re.split("(?m)^(?=# HELP )", exposition.generate_latest(registry).decode())))


def _pretty(found: Any) -> str:
    """Return JSON without the random part of ids."""
    return re.sub(r"chatcmpl-\w+", "chatcmpl-ID", json.dumps(found, indent=1, sort_keys=True)) + "\n"


def figures() -> dict[str, str]:
    """Return the run's figures, each file's text by its name. About a second."""
    return trio.run(run, clock=MockClock(autojump_threshold=0))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in figures().items():
        (FOLDER / name).write_text(text)
