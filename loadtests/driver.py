"""Drives one scenario against one target, once: agents as tasks, every request recorded, an end for sure.

Each simulated agent owns its HTTP client: that is how real agents connect, and one pool for 256 streams
would cost the generator 7 ms of processor a request.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, assert_never

import httpx
import msgspec
import trio

from loadtests import arrivals
from loadtests.client import Observed, follow
from loadtests.health import HealthMeter
from loadtests.record import Outcome, RequestRecord, RunRecord
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
from loadtests.scrape import Scraper
from loadtests.targets import Target, build_body
from loadtests.workload import Ask, Session, Workload

MakeClient = Callable[[], httpx.AsyncClient]


def default_client(request_seconds: float) -> MakeClient:
    """Clients with a deadline on silence. One TLS context for all: making one costs 20 ms of processor."""
    context = ssl.create_default_context()
    timeout = httpx.Timeout(request_seconds, connect=10.0, pool=None)
    return lambda: httpx.AsyncClient(timeout=timeout, verify=context, trust_env=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment, for a display."""

    elapsed_seconds: float
    sent: int
    in_flight: int
    finished: int
    failed: int
    deltas: int


class Driver:
    """One run. `interrupt` ends it early; what was measured until then is in the record."""

    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        make_client: MakeClient,
        salt: str,
        tokens_per_word: float,
    ) -> None:
        self._scenario = scenario
        self._target = target
        self._make_client = make_client
        self._salt = salt
        self._tokens_per_word = tokens_per_word
        self._workload = Workload(scenario, salt, tokens_per_word)
        self._url = f"{target.url.rstrip('/')}/v1/chat/completions"
        self._scope = trio.CancelScope()
        self._interrupted = False
        self._records: list[RequestRecord] = []
        self._in_flight: dict[int, Observed] = {}
        self._indices = count()
        self._sent = 0
        self._started = 0.0
        self._steady_until = float("inf")

    def interrupt(self) -> None:
        self._interrupted = True
        self._scope.cancel()

    def progress(self) -> Progress:
        done = [record for record in self._records if record.outcome in (Outcome.OK, Outcome.HUNG_UP)]
        return Progress(
            elapsed_seconds=trio.current_time() - self._started,
            sent=self._sent,
            in_flight=len(self._in_flight),
            finished=len(done),
            failed=len(self._records) - len(done),
            deltas=sum(len(record.stamps) for record in self._records)
            + sum(len(observed.stamps) for observed in self._in_flight.values()),
        )

    async def run(self, round_: int = 0) -> RunRecord:
        """The scenario from its first request to its last, or to its bounds."""
        # Set again below: the probe's time is not the run's, but a display may already ask.
        self._started = trio.current_time()
        capacity = {
            population.name: await self._capacity(population, population.arrivals)
            for population in self._scenario.populations
            if isinstance(population.arrivals, OfCapacity)
        }
        started = datetime.now(UTC)
        self._started = trio.current_time()
        health = self._health = HealthMeter()
        bounds = self._scenario.bounds
        self._scope.deadline = self._started + bounds.seconds + bounds.request_seconds
        async with trio.open_nursery() as background, self._make_client() as metrics_client:
            self._scraper = Scraper(metrics_client, self._target.metrics_url or "", self._started)
            background.start_soon(health.run)
            if self._target.metrics_url is not None:
                await self._scraper.sample()
                background.start_soon(self._scraper.run)
            with self._scope:
                async with trio.open_nursery() as agents:
                    for population in self._scenario.populations:
                        agents.start_soon(self._population, population, capacity.get(population.name, 0.0))
                    if self._scenario.replay is not None:
                        agents.start_soon(self._replay, self._scenario.replay)
            ended_at = self._now()
            if self._target.metrics_url is not None and not self._interrupted:
                # What the target counts of the last requests, it counts a moment after their clients.
                await trio.sleep(0.2)
                await self._scraper.sample(keep=True)
            generator = health.result()
            background.cancel_scope.cancel()
        freed = self._scraper.freed
        return RunRecord(
            target=self._target.name,
            url=self._target.url,
            model=self._target.model,
            scenario=self._scenario.name,
            description=self._scenario.description,
            settings=self._settings(capacity),
            salt=self._salt,
            seed=self._scenario.seed,
            started=started.isoformat(timespec="seconds"),
            warm_up_seconds=self._scenario.warm_up_seconds,
            steady_until=min(self._steady_until, ended_at),
            ended_at=ended_at,
            interrupted=self._interrupted,
            ttft_slo_seconds=self._scenario.slo.ttft_seconds,
            tpot_slo_seconds=self._scenario.slo.tpot_seconds,
            unmeasured=tuple(
                population.name for population in self._scenario.populations if not population.measured
            ),
            requests=tuple(
                _with_freed(record, freed.get(record.index))
                for record in sorted(self._records, key=lambda record: record.index)
            ),
            generator=generator,
            server=tuple(self._scraper.samples),
            round=round_,
        )

    # --- who asks when

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
                # From here on fewer clients ask than the scenario wants: the tail is no steady state.
                self._steady_until = min(self._steady_until, self._now())

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
                self._health.lateness(trio.current_time() - begun - offset)
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

    async def _capacity(self, population: Population, plan: OfCapacity) -> float:
        """Requests per second that the target finishes when asked in a closed loop; not recorded."""
        probing = population.model_copy(
            update={"arrivals": Closed(kind="closed", clients=plan.probe_clients), "start_seconds": 0.0}
        )
        bounds = self._scenario.bounds.model_copy(update={"seconds": plan.probe_seconds})
        scenario = self._scenario.model_copy(update={"populations": (probing,), "bounds": bounds})
        probe = Driver(
            scenario, self._target, self._make_client, f"{self._salt}-probe", self._tokens_per_word
        )
        record = await probe.run()
        finished = [
            request
            for request in record.requests
            if request.outcome is Outcome.OK and request.ended_at <= plan.probe_seconds
        ]
        return max(len(finished), 1) / plan.probe_seconds

    # --- what an agent does

    async def _session(self, session: Session, scheduled_at: float) -> None:
        async with self._make_client() as client:
            for turn in range(1, session.turns + 1):
                await trio.sleep(session.gap_before(turn))
                if not self._may_send():
                    return
                due = scheduled_at if turn == 1 else self._now()
                observed = await self._request(client, session, turn, session.ask(turn), due)
                if observed.outcome is not Outcome.OK:
                    return
                session.answered(turn, "".join(observed.text))
                async with trio.open_nursery() as nursery:
                    for subagent in session.subagents(turn):
                        nursery.start_soon(self._session, subagent, self._now())

    async def _request(
        self, client: httpx.AsyncClient, session: Session, turn: int, wish: Ask, due: float
    ) -> Observed:
        index = next(self._indices)
        self._sent += 1
        observed = self._in_flight[index] = Observed(sent_at=trio.current_time())
        # A probe's or an earlier run's agents are others: the target may remember what those have had.
        headers = {"x-session-id": f"{self._salt} {session.id}"}
        if self._target.api_key is not None:
            headers["authorization"] = f"Bearer {self._target.api_key}"
        if wish.timeout_seconds is not None:
            headers["x-request-timeout"] = f"{wish.timeout_seconds:g}"
        body: dict[str, Any] = build_body(wish, self._target)
        try:
            await follow(client, self._url, headers, body, wish, observed)
        finally:
            del self._in_flight[index]
            self._records.append(self._record(index, session, turn, wish, due, observed))
            if observed.outcome is Outcome.HUNG_UP:
                self._scraper.hung_up(index)
        return observed

    def _record(
        self, index: int, session: Session, turn: int, wish: Ask, due: float, observed: Observed
    ) -> RequestRecord:
        details = observed.usage.get("prompt_tokens_details") or {}
        return RequestRecord(
            index=index,
            population=session.population,
            tenant=session.tenant,
            # A subagent's requests are its parent's session's: "agents-3/1" belongs to "agents-3".
            session=session.id.partition("/")[0],
            turn=turn,
            session_turns=session.turns,
            scheduled_at=due,
            sent_at=observed.sent_at - self._started,
            stamps=tuple(stamp - self._started for stamp in observed.stamps),
            ended_at=observed.ended_at - self._started,
            outcome=observed.outcome,
            status=observed.status,
            detail=observed.detail,
            finish_reason=observed.finish_reason,
            prompt_tokens=observed.usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            output_tokens=observed.usage.get("completion_tokens"),
            reusable_share=wish.reusable_share,
            retry_after_seconds=observed.retry_after_seconds,
            correct=_correct(wish, observed),
        )

    def _may_send(self) -> bool:
        bounds = self._scenario.bounds
        return self._sent < bounds.requests and self._now() < bounds.seconds

    def _now(self) -> float:
        return trio.current_time() - self._started

    def _settings(self, capacity: dict[str, float]) -> dict[str, str]:
        settings = {
            population.name: population.model_dump_json(exclude_defaults=True, exclude={"name"})
            for population in self._scenario.populations
        }
        if self._scenario.replay is not None:
            settings["replay"] = self._scenario.replay.model_dump_json()
        settings["bounds"] = self._scenario.bounds.model_dump_json()
        for name, rate in capacity.items():
            settings[f"{name}: measured capacity"] = f"{rate:.2f} requests/s"
        return settings


def _correct(wish: Ask, observed: Observed) -> bool | None:
    """Whether the right answer is in what was said; unknown of an answer that did not come to its end."""
    if wish.expected is None or observed.outcome is not Outcome.OK:
        return None
    return wish.expected in "".join(observed.text)


def _with_freed(record: RequestRecord, seconds: float | None) -> RequestRecord:
    return record if seconds is None else msgspec.structs.replace(record, freed_after_seconds=seconds)
