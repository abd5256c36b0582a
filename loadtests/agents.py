"""The simulated agents of one run: when each starts, and the requests of its session, turn by turn.

Each agent owns its HTTP client, as real agents do. One pool for 256 streams would cost the generator 7 ms of
processor time a request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import count
from typing import assert_never

import httpx
import trio

from loadtests import arrivals
from loadtests.record import Outcome
from loadtests.scenario import (
    Burst,
    Closed,
    OfCapacity,
    Poisson,
    Population,
    Ramp,
    Replay,
    Scenario,
    Schedule,
)
from loadtests.sender import Sender
from loadtests.workload import Session, Workload

MakeClient = Callable[[], httpx.AsyncClient]


class Agents:
    """Run a scenario's agents. `started` is the run's start on trio's clock. `on_lateness` gets the seconds
    by which the generator missed each scheduled arrival."""

    def __init__(
        self,
        scenario: Scenario,
        workload: Workload,
        sender: Sender,
        make_client: MakeClient,
        started: float,
        on_lateness: Callable[[float], None],
    ) -> None:
        self._scenario = scenario
        self._workload = workload
        self._sender = sender
        self._make_client = make_client
        self._started = started
        self._on_lateness = on_lateness
        self.steady_until = float("inf")
        """The end of the steady state: after it fewer clients are active than the scenario wants."""

    async def run(self, capacity: Mapping[str, float]) -> None:
        """Run all agents to their ends. `capacity` has the requests per second of each population whose
        arrivals are relative to it."""
        async with trio.open_nursery() as nursery:
            for population in self._scenario.populations:
                nursery.start_soon(self._population, population, capacity.get(population.name, 0.0))
            if self._scenario.replay is not None:
                nursery.start_soon(self._replay, self._scenario.replay)

    # --- arrivals

    async def _population(self, population: Population, capacity: float) -> None:
        await trio.sleep(population.start_seconds)
        plan = population.arrivals
        match plan:
            case Closed(clients=clients):
                await self._closed(population, clients)
            case OfCapacity():
                await self._open(population, arrivals.resolved(plan, capacity))
            case Burst() | Poisson() | Ramp() | Schedule():
                await self._open(population, plan)
            case _:
                assert_never(plan)

    async def _closed(self, population: Population, clients: int) -> None:
        numbers = count()

        async def client() -> None:
            while self._may_send():
                number = next(numbers)
                if population.sessions is not None and number >= population.sessions:
                    break
                await self._session(self._workload.session(population, number), self._now())
            if population.measured and population.turns.most == 1:
                self.steady_until = min(self.steady_until, self._now())

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(client)

    async def _open(self, population: Population, plan: Burst | Poisson | Ramp | Schedule) -> None:
        rng = random.Random(f"{self._scenario.seed}/{population.name}/arrivals")
        begun = trio.current_time()
        left = self._scenario.bounds.seconds - population.start_seconds
        async with trio.open_nursery() as nursery:
            for number, offset in enumerate(arrivals.offsets(plan, rng, left)):
                if population.sessions is not None and number >= population.sessions:
                    return
                await trio.sleep_until(begun + offset)
                if not self._may_send():
                    return
                self._on_lateness(trio.current_time() - begun - offset)
                session = self._workload.session(population, number)
                nursery.start_soon(self._session, session, begun + offset - self._started)

    async def _replay(self, replay: Replay) -> None:
        sessions = self._workload.trace()
        limiter = trio.CapacityLimiter(replay.clients)

        async def one_of_many(session: Session) -> None:
            async with limiter:
                await self._session(session, self._now())

        async with trio.open_nursery() as nursery:
            for at, session in sessions:
                if at is None:
                    nursery.start_soon(one_of_many, session)
                else:
                    await trio.sleep_until(self._started + at)
                    nursery.start_soon(self._session, session, at)

    # --- sessions

    async def _session(self, session: Session, scheduled_at: float) -> None:
        async with self._make_client() as client:
            for turn in range(1, session.turns + 1):
                await trio.sleep(session.gap_before(turn))
                if not self._may_send():
                    return
                due = scheduled_at if turn == 1 else self._now()
                observed = await self._sender.send(client, session, turn, session.ask(turn), due)
                if observed.outcome is not Outcome.OK:
                    return
                session.answered(turn, "".join(observed.answer.text))
                async with trio.open_nursery() as nursery:
                    for subagent in session.subagents(turn):
                        nursery.start_soon(self._session, subagent, self._now())

    def _may_send(self) -> bool:
        bounds = self._scenario.bounds
        return self._sender.sent < bounds.requests and self._now() < bounds.seconds

    def _now(self) -> float:
        return trio.current_time() - self._started
