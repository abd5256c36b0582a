"""Run load for hours and kill an engine every minute: nothing may grow, and no answer may change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import trio

from loadtests.chaos.answers import Answer, ask
from loadtests.chaos.levels import Level, levels, of_process, that_grow
from loadtests.chaos.questions import questions
from loadtests.chaos.run import SERVER
from loadtests.chaos.strikes import Strike, strike
from loadtests.chaos.victim import Victim, victim

_QUESTIONS = 200
"""How many questions are asked in rotation, so that each has an earlier answer to compare with."""
_CLIENTS = 8
_LEAVER_EVERY = 7
"""In every sequence of this many requests, the client of one disconnects in the middle."""
_LEAVES_AFTER_SECONDS = 0.3
_PATIENT = ("--stall-seconds", "30")
"""Engines are killed here, never made to hang; a slow engine on a busy machine must not be declared hung."""
_SAMPLE_SECONDS = 2.0
_SLACK = {
    "server: resident bytes": 24e6,
    "server: open files": 4.0,
    "server: threads": 4.0,
    "engine: resident bytes": 64e6,
    "engine: open files": 2.0,
    "engine: threads": 2.0,
    "engine: bytes of live MLX buffers": 32e6,
    "engine: bytes of rows": 32e6,
    "engine: bytes of kept prefixes": 32e6,
    "requests in the server": 12.0,
}


@dataclass(frozen=True, slots=True)
class SoakPlan:
    seconds: float = 3600.0
    warm_up_seconds: float = 120.0
    kill_every_seconds: float = 60.0
    kv_cache_bytes: int = 64 << 20
    """Small, so that the cache is full after the warm-up and must stay so."""


@dataclass(slots=True)
class Soak:
    """The result of the soak."""

    seconds: float = 0.0
    answers: int = 0
    failed: int = 0
    parted: int = 0
    kills: int = 0
    integrity_complaints: float = 0.0
    levels: list[Level] = field(default_factory=list)
    greedy_parted: int = 0

    def complaints(self) -> Iterator[str]:
        if self.failed:
            yield f"{self.failed} answers failed"
        if self.greedy_parted:
            yield f"{self.greedy_parted} greedy answers changed"
        if self.integrity_complaints:
            yield f"the prefix cache complained {self.integrity_complaints:g} times"
        yield from that_grow(self.levels)


async def run(plan: SoakPlan, note: Callable[[str], None]) -> Soak:
    """Run the soak. Raise LaunchError if the server does not start."""
    soak = Soak()
    arguments = [*SERVER, *_PATIENT, "--kv-cache-bytes", str(plan.kv_cache_bytes)]
    async with (
        victim(arguments) as server,
        httpx.AsyncClient(timeout=600.0, limits=httpx.Limits(max_connections=None), trust_env=False) as http,
    ):
        began = trio.current_time()
        samples: list[dict[str, float]] = []
        with trio.move_on_after(plan.seconds):
            async with trio.open_nursery() as nursery:
                numbers = itertools.count()
                known: dict[int, Answer] = {}
                for _ in range(_CLIENTS):
                    nursery.start_soon(_client, http, server.url, numbers, known, soak)
                nursery.start_soon(_kill, server, plan.kill_every_seconds, soak)
                await trio.sleep(plan.warm_up_seconds)
                await _watch(server, http, samples, note)
        soak.seconds = trio.current_time() - began
        soak.integrity_complaints = (await server.metrics(http))["penstock_prefix_integrity_complaints_total"]
        soak.levels = levels(samples, _SLACK)
    return soak


async def _client(
    http: httpx.AsyncClient, url: str, numbers: Iterator[int], known: dict[int, Answer], soak: Soak
) -> None:
    asked = questions(_QUESTIONS, seed=0, with_json=False)
    for number in numbers:
        question = asked[number % _QUESTIONS]
        if number % _LEAVER_EVERY == 0:
            with trio.move_on_after(_LEAVES_AFTER_SECONDS):
                await ask(http, url, question)
            continue
        answer = await ask(http, url, question)
        soak.answers += 1
        soak.failed += not answer.whole
        if answer.whole:
            parted = answer.outcome != known.setdefault(question.number, answer).outcome
            soak.parted += parted
            soak.greedy_parted += parted and question.greedy


async def _kill(server: Victim, every_seconds: float, soak: Soak) -> None:
    while True:
        await trio.sleep(every_seconds)
        if (pid := server.engine_pid()) is not None:
            with suppress(ProcessLookupError):
                strike(pid, Strike.KILL)
                soak.kills += 1


async def _watch(
    server: Victim, http: httpx.AsyncClient, samples: list[dict[str, float]], note: Callable[[str], None]
) -> None:
    while True:
        metrics = await server.metrics(http)
        sample = {f"server: {name}": value for name, value in of_process(server.process.pid).items()}
        sample["requests in the server"] = (
            metrics["penstock_queued_requests"] + metrics["penstock_engine_requests"]
        )
        if metrics["penstock_engine_up"] and (pid := server.engine_pid()) is not None:
            with suppress(OSError):
                sample |= {f"engine: {name}": value for name, value in of_process(pid).items()}
            if (live_bytes := server.mlx_bytes()) is not None:
                sample["engine: bytes of live MLX buffers"] = live_bytes
            sample["engine: bytes of rows"] = metrics["penstock_kv_bytes"]
            sample["engine: bytes of kept prefixes"] = metrics["penstock_prefix_bytes"]
        samples.append(sample)
        note(", ".join(f"{name} {value:,.0f}" for name, value in sample.items()))
        await trio.sleep(_SAMPLE_SECONDS)
