"""What engines on other machines cost the server, and what their distance costs the clients.

The server, without HTTP, runs on a real scripted engine: by the socket pair of a child process, over TCP, and
over TCP through a relay that delays each piece. Engines and relays are other processes, so that the processor
time of this one is the server's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from os import environ
from pathlib import Path
from statistics import median
from typing import TypeVar

import trio

from loadtests.pool.local_machine import LOOPBACK, LocalMachine
from loadtests.pool.simulation import prepared
from scheduler.cluster.joined import JoinedLauncher
from scheduler.config import EngineConfig, SchedulerConfig
from scheduler.engines.boundary import EngineProvision
from scheduler.events import Failed
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.processes.listener import Dialed, Listener
from scheduler.processes.process import EngineLauncher, ProcessLauncher
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.offload import Lane
from scheduler.prompt.preparation import Preparation
from scheduler.request import GenerationRequest, TokenPrompt
from scheduler.service import Scheduler
from scheduler.shared.hello import new_token
from scheduler.shared.messages import ScriptedPlan

_T = TypeVar("_T")
SOCKET_PAIR = -1.0
"""Stands in the place of a delay, for the link that is a socket pair."""
_STOP_SECONDS = 5.0
_WARM_UP_SECONDS = 2.0
_PROMPT_TOKENS = 32
_OUTPUT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class LinksPlan:
    """`delays_ms`: of TCP links, one way. Each link is measured for `seconds`, in each of `rounds` turns."""

    delays_ms: tuple[float, ...] = (0, 1, 10, 50)
    step_seconds: float = 0.02
    slots: int = 16
    seconds: float = 8.0
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class LinkCost:
    """`delay_ms` is SOCKET_PAIR for a child process."""

    delay_ms: float
    tokens_per_second: float
    cpu_seconds_per_token: float

    @property
    def link(self) -> str:
        if self.delay_ms == SOCKET_PAIR:
            return "socket pair"
        return f"TCP, {self.delay_ms:g} ms one way" if self.delay_ms else "TCP"


def run(plan: LinksPlan, note: Callable[[str], None]) -> list[LinkCost]:
    """Measure in turns: socket pair, TCP by delay, and again. Return the medians over the rounds."""
    preparation = prepared()
    found: dict[float, list[LinkCost]] = {}
    for _ in range(plan.rounds):
        for delay_ms in (SOCKET_PAIR, *plan.delays_ms):
            one = trio.run(partial(_measure, plan, preparation, delay_ms))
            found.setdefault(delay_ms, []).append(one)
            cost = 1e6 * one.cpu_seconds_per_token
            note(f"{one.link}: {one.tokens_per_second:.1f} tokens/s, {cost:.0f} µs of the server a token")
    return [
        LinkCost(
            delay_ms,
            median(one.tokens_per_second for one in rounds),
            median(one.cpu_seconds_per_token for one in rounds),
        )
        for delay_ms, rounds in found.items()
    ]


async def _measure(plan: LinksPlan, preparation: Preparation, delay_ms: float) -> LinkCost:
    async with _launcher(delay_ms) as launcher, trio.open_nursery() as nursery:
        scripted = ScriptedPlan(plan.step_seconds, vocabulary=inspect(EMBEDDED_FOLDER).vocabulary)
        engine = EngineConfig("scripted", str(EMBEDDED_FOLDER), max_slots=plan.slots, scripted=scripted)
        scheduler = Scheduler(
            SchedulerConfig(engine), preparation, EngineProvision(lambda number: launcher), _in_place
        )
        nursery.start_soon(scheduler.run)
        await scheduler.wait_ready()
        # Two more than slots: the next step fills a freed one without a round trip.
        for number in range(plan.slots + 2):
            nursery.start_soon(_client, scheduler, number)
        await trio.sleep(_WARM_UP_SECONDS)
        before = (_tokens(scheduler), trio.current_time(), time.process_time())
        await trio.sleep(plan.seconds)
        cpu = time.process_time() - before[-1]
        tokens, seconds = _tokens(scheduler) - before[0], trio.current_time() - before[1]
        nursery.cancel_scope.cancel()
    return LinkCost(delay_ms, tokens / seconds, cpu / max(1, tokens))


async def _client(scheduler: Scheduler, number: int) -> None:
    """Send one prompt after another. Answers differ in length, so that rows end at different steps."""
    for turn in count():
        request = GenerationRequest(
            f"client-{number}-{turn}",
            TokenPrompt((300 + number, 300 + turn % 1000) * (_PROMPT_TOKENS // 2)),
            max_tokens=_OUTPUT_TOKENS // 2 + (7 * number + 11 * turn) % _OUTPUT_TOKENS,
            ignore_eos=True,
        )
        async with scheduler.stream(request) as stream:
            async for event in stream:
                assert not isinstance(event, Failed), event


def _tokens(scheduler: Scheduler) -> float:
    samples = (sample for family in scheduler.metrics.registry.collect() for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == "penstock_generated_tokens_total")


@asynccontextmanager
async def _launcher(delay_ms: float) -> AsyncIterator[EngineLauncher]:
    if delay_ms == SOCKET_PAIR:
        yield ProcessLauncher(environ, _STOP_SECONDS)
        return
    launcher, token = JoinedLauncher(), new_token()

    def arrived(dialed: Dialed) -> None:
        launcher.offer(dialed)

    with tempfile.TemporaryDirectory() as caches:
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(Listener(token, arrived).serve, LOOPBACK, 0)
            with _relayed(port, delay_ms / 1000) as via:
                nursery.start_soon(LocalMachine(Path(caches), via, token).run)
                yield launcher
            nursery.cancel_scope.cancel()


@contextmanager
def _relayed(port: int, delay_seconds: float) -> Iterator[int]:
    """Yield a port that reaches `port` with this delay; without a delay, `port` itself."""
    if not delay_seconds:
        yield port
        return
    command = [sys.executable, "-m", "loadtests.pool.relay", str(port), str(delay_seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
        assert relay.stdin is not None
        assert relay.stdout is not None
        yield int(relay.stdout.readline())
        relay.stdin.close()


async def _in_place(work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
    await trio.lowlevel.checkpoint()
    return work()
