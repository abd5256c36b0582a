"""Machines that dial, in virtual time: each is an engine's loop over memory, kept alive as by launchd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from scheduler.cluster.joined import JoinedEngines
from scheduler.processes.listener import Dialed
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Client
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import ask, make_scheduler

PLAN = ScriptedPlan(step_seconds=0.01)
LONG = 60
RESTART_SECONDS = 1.0


class Machine:
    """Dials the farm again a second after its engine has ended, for as long as it is `on`."""

    def __init__(self, name: str, address: str = "10.0.0.9") -> None:
        self.name, self.address = name, address
        self.on = True
        self.dialed = 0
        self.engine = LoopbackLauncher()

    def kill(self) -> None:
        """End its engine, as by SIGKILL."""
        self.engine.kill()

    def turn_off(self) -> None:
        self.on = False
        self.kill()

    async def run(self, engines: JoinedEngines) -> None:
        while self.on:
            self.dialed += 1
            ours, theirs = trio.testing.memory_stream_pair()
            engines.arrived(Dialed(ours, self.name, self.address))
            await self.engine.serve(theirs)
            await trio.sleep(RESTART_SECONDS)


class Farm:
    """A scheduler whose engines are those that dial."""

    def __init__(self, *machines: Machine) -> None:
        self.machines = list(machines)
        self.scheduler = make_scheduler(
            self._none_here, PLAN, engines=0, engines_join=True, must_start=False, max_slots=4, lookahead=0
        )
        self.engines = JoinedEngines(self.scheduler.pool)
        self._nursery: trio.Nursery | None = None

    @staticmethod
    def _none_here(number: int) -> LoopbackLauncher:
        raise AssertionError("no engine is started here")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.scheduler.run)
            nursery.start_soon(self.engines.run)
            await trio.testing.wait_all_tasks_blocked()
            for machine in self.machines:
                nursery.start_soon(machine.run, self.engines)
                # In their order: the first one is engine 0.
                await trio.testing.wait_all_tasks_blocked()
            yield nursery
            nursery.cancel_scope.cancel()

    def turn_on(self, machine: Machine) -> None:
        assert self._nursery is not None
        machine.on = True
        self.machines.append(machine)
        self._nursery.start_soon(machine.run, self.engines)

    async def until(self, condition: Callable[[], bool]) -> None:
        pause = 0.002
        with trio.fail_after(60):
            while not condition():
                await trio.sleep(pause)
                pause = min(pause * 1.05, 0.5)  # What comes late is not looked for every step.

    async def ready(self, count: int) -> None:
        await self.until(lambda: self.conditions() == ["ready"] * count)

    def conditions(self) -> list[str]:
        return [line.condition.value for line in self.scheduler.operations.report().engines]

    def sample(self, name: str, **labels: str) -> float:
        return sample(self.scheduler.metrics.registry, name, **labels)

    async def come(self, nursery: trio.Nursery, count: int) -> list[Client]:
        """Clients with long answers, each of whom has some tokens when this returns."""
        clients = [Client(ask(f"{number}", max_tokens=LONG)) for number in range(count)]
        for client in clients:
            nursery.start_soon(client.follow, self.scheduler)
        await self.until(lambda: all(len(client.text.split()) > 5 for client in clients))
        return clients
