"""Two engines over TCP behind one queue, and what becomes of sixteen streams when one of them is far away,
dies, or its link does. Real processes and real time; a relay is the network."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from scheduler.cluster.joined import JoinedEngines
from scheduler.processes.listener import Listener
from scheduler.processes.process import EngineLauncher
from scheduler.service import Scheduler
from scheduler.shared.hello import new_token
from scheduler.shared.messages import ScriptedPlan
from scheduler.statistics import DeathCause, EngineCondition, MemberStatistics
from tests.cancellation.bench import Client
from tests.examples import sampled
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import MOST_STEP_TOKENS, holding_in_engine_process
from tests.fakes.local_machine import LOOPBACK, LocalMachine
from tests.fakes.relay import Relay
from tests.fakes.scheduling import ask, make_scheduler
from tests.repo.tree import ROOT

STREAMS = 16
TOKENS = 80
_BEGUN_TOKENS = 8
PLAN = ScriptedPlan(step_seconds=0.02)
_LIMIT_SECONDS = 120.0
"""It only keeps a broken test from waiting for ever."""


@dataclass
class Farm:
    """A scheduler, and by number what each of its engines dials through and runs on."""

    scheduler: Scheduler
    relays: list[Relay]
    machines: list[LocalMachine]
    hold: Path
    """While it exists, each engine stops in the middle of its streams, however late the other is."""

    def engine(self, number: int) -> int:
        """The process id of its newest engine."""
        return self.machines[number].pids[-1]

    def members(self) -> list[MemberStatistics]:
        return [member.statistics(trio.current_time()) for member in self.scheduler.pool]

    def ready(self) -> bool:
        return [member.condition for member in self.members()] == [EngineCondition.READY] * 2


@asynccontextmanager
async def farm(folder: Path, delay_seconds: float = 0.0, stall_seconds: float = 120.0) -> AsyncIterator[Farm]:
    with trio.fail_after(_LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            yield await _started(nursery, folder, delay_seconds, stall_seconds)
            nursery.cancel_scope.cancel()


async def _started(nursery: trio.Nursery, folder: Path, delay_seconds: float, stall_seconds: float) -> Farm:
    scheduler = make_scheduler(
        _none_here,
        PLAN,
        engines=0,
        engines_join=True,
        must_start=False,
        max_slots=STREAMS // 2,
        lookahead=0,
        stall_seconds=stall_seconds,
    )
    joined, token = JoinedEngines(scheduler.pool), new_token()
    nursery.start_soon(scheduler.run)
    nursery.start_soon(joined.run)
    port: int = await nursery.start(Listener(token, joined.arrived).serve, LOOPBACK, 0)
    tokens = STREAMS // 2 * (_BEGUN_TOKENS + MOST_STEP_TOKENS)
    source = holding_in_engine_process(STREAMS // 2, tokens, folder)
    (folder / "sitecustomize.py").write_text(source)
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    at = Farm(scheduler, [Relay(port, delay_seconds) for _ in range(2)], [], folder / "hold")
    for number, relay in enumerate(at.relays):
        via: int = await nursery.start(relay.serve)
        at.machines.append(LocalMachine(folder, via, token, str(number), environment))
        nursery.start_soon(at.machines[-1].run)
        # In their order: the first one that dials is engine 0.
        while len(scheduler.pool.names) <= number:  # noqa: ASYNC110 (other processes)
            await trio.sleep(0.01)
    while not at.ready():  # noqa: ASYNC110 (other processes)
        await trio.sleep(0.01)
    return at


def _none_here(number: int) -> EngineLauncher:
    raise AssertionError("no engine is started here")


async def streams(at: Farm, strike: Callable[[Farm], None]) -> None:
    """Sixteen streams, disturbed when each has begun: each gets what it would have got undisturbed."""
    at.hold.touch()
    clients = [Client(ask(f"stream {number}", max_tokens=TOKENS)) for number in range(STREAMS)]
    async with trio.open_nursery() as people:
        for client in clients:
            people.start_soon(client.follow, at.scheduler)
        while any(len(client.text.split()) < _BEGUN_TOKENS for client in clients):  # noqa: ASYNC110
            await trio.sleep(0.005)
        assert not any(client.finals for client in clients)
        at.hold.unlink()
        strike(at)
    for client in clients:
        await check_undisturbed(client, ScriptedPlan())


def _nothing(at: Farm) -> None:
    pass


@pytest.mark.parametrize("delay_ms", sampled([0, 1, 10, 50], [10]))
def test_streams_are_the_same_over_a_slow_link(delay_ms: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with farm(tmp_path, delay_ms / 1000) as at:
            await streams(at, _nothing)
            # How frames come together is the kernel's choice.
            assert all(relay.pieces > 10 for relay in at.relays)
            assert [member.restarts for member in at.members()] == [0, 0]

    trio.run(main)


STRIKES: dict[str, Callable[[Farm], None]] = {
    "engine killed": lambda at: os.kill(at.engine(0), signal.SIGKILL),
    "link cut": lambda at: at.relays[0].cut(),
    "link frozen": lambda at: at.relays[0].freeze(),
    "engine stopped": lambda at: os.kill(at.engine(0), signal.SIGSTOP),
}


@pytest.mark.parametrize("strike", sampled(STRIKES, ["link cut", "link frozen"]))
def test_no_stream_changes_when_one_engine_is_lost(strike: str, tmp_path: Path) -> None:
    """The other one goes on with all of them; the lost one is started again, on the same device. Where
    nothing is closed, and the network answers, the stall watch declares it hung and cuts its link: what it
    sends then reaches nobody."""
    hangs = strike in ("link frozen", "engine stopped")

    async def main() -> None:
        async with farm(tmp_path, stall_seconds=4.0 if hangs else 120.0) as at:
            stopped = at.engine(0)
            try:
                await streams(at, STRIKES[strike])
                lost, other = at.members()
                assert other.restarts == 0
                assert lost.last_death_cause is (DeathCause.HUNG if hangs else DeathCause.KILLED)
            finally:
                with suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
            if not hangs:
                while not at.ready():  # noqa: ASYNC110 (other processes)
                    await trio.sleep(0.01)
                await streams(at, _nothing)
                assert [member.restarts for member in at.members()] == [1, 0]

    trio.run(main)
