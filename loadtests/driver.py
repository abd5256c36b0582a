"""Drive one scenario against one target, once: record every request, and always end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count

import httpx
import trio

from loadtests.client import Answer, MakeClient, ask
from loadtests.figures import percentile
from loadtests.record import GeneratorHealth, Outcome, RequestRecord, RunRecord
from loadtests.scenario import Burst, Closed, OfCapacity, Poisson, Population, Scenario
from loadtests.server_side import scrape
from loadtests.targets import Target, build_body
from loadtests.workload import Ask, Session, Workload

_TICK_SECONDS = 0.05


class Driver:
    """One run. `interrupt` ends it early, also during its capacity probe; the record has what was measured
    until then."""

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
        self._scope = trio.CancelScope()
        self._interrupted = False
        self._started = 0.0
        self._health = HealthMeter()
        self._sent = 0
        self._in_flight: dict[int, Answer] = {}
        self._records: list[RequestRecord] = []
        self._steady_until = float("inf")
        """After it fewer clients are active than the scenario wants."""

    def interrupt(self) -> None:
        self._interrupted = True
        self._scope.cancel()

    @property
    def progress(self) -> str:
        failed = sum(record.outcome is not Outcome.OK for record in self._records)
        return (
            f"{self._now():.1f} of {self._scenario.bounds.seconds:g} s: {self._sent} sent,"
            f" {len(self._in_flight)} in flight, {len(self._records)} ended, {failed} of them failed"
        )

    async def run(self, round_: int = 0) -> RunRecord:
        """Run the scenario from its first request to its last, or to its bounds."""
        scenario, bounds = self._scenario, self._scenario.bounds
        # Set again below: the probe's time is not part of the run, but a display may read it already.
        self._started = trio.current_time()
        capacity: dict[str, float] = {}
        with self._scope:
            for population in scenario.populations:
                if isinstance(population.arrivals, OfCapacity):
                    capacity[population.name] = await self._capacity(population, population.arrivals)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._started = trio.current_time()
        self._scope = trio.CancelScope(deadline=self._started + bounds.seconds + bounds.request_seconds)
        if self._interrupted:
            self._scope.cancel()
        async with trio.open_nursery() as background, self._make_client() as metrics:
            background.start_soon(self._health.run)
            before = await scrape(metrics, self._target.metrics_url, self._started)
            with self._scope:
                await self._agents(capacity)
            ended_at = self._now()
            if before and not self._interrupted:
                # The target counts the last requests a moment after their clients have the answers.
                await trio.sleep(0.2)
            after = await scrape(metrics, self._target.metrics_url, self._started)
            background.cancel_scope.cancel()
        return RunRecord(
            target=self._target.name,
            url=self._target.url,
            model=self._target.model,
            scenario=scenario.name,
            description=scenario.description,
            settings=_settings(scenario, capacity),
            salt=self._salt,
            started=started,
            warm_up_seconds=scenario.warm_up_seconds,
            steady_until=min(self._steady_until, ended_at),
            ended_at=ended_at,
            interrupted=self._interrupted,
            ttft_slo_seconds=scenario.slo.ttft_seconds,
            tpot_slo_seconds=scenario.slo.tpot_seconds,
            unmeasured=tuple(one.name for one in scenario.populations if not one.measured),
            requests=tuple(sorted(self._records, key=lambda record: record.index)),
            generator=self._health.result(),
            server=(*before, *after),
            round=round_,
        )

    async def _capacity(self, population: Population, plan: OfCapacity) -> float:
        """Return the requests per second that the target finishes in a closed loop; nothing is recorded."""
        closed = Closed(kind="closed", clients=plan.probe_clients)
        probing = population.model_copy(update={"arrivals": closed, "start_seconds": 0.0})
        bounds = self._scenario.bounds.model_copy(update={"seconds": plan.probe_seconds})
        scenario = self._scenario.model_copy(update={"populations": (probing,), "bounds": bounds})
        salt = f"{self._salt}-probe"
        probe = await Driver(scenario, self._target, self._make_client, salt, self._tokens_per_word).run()
        finished = (r.outcome is Outcome.OK and r.ended_at <= plan.probe_seconds for r in probe.requests)
        return max(sum(finished), 1) / plan.probe_seconds

    # --- agents

    async def _agents(self, capacity: dict[str, float]) -> None:
        async with trio.open_nursery() as nursery:
            for population in self._scenario.populations:
                nursery.start_soon(self._population, population, capacity.get(population.name, 0.0))

    async def _population(self, population: Population, capacity: float) -> None:
        await trio.sleep(population.start_seconds)
        numbers = count()

        async def client() -> None:
            while self._may_send() and (number := next(numbers)) < (population.sessions or float("inf")):
                await self._session(self._workload.session(population, number), self._now())
            if population.measured and population.turns.most == 1:
                self._steady_until = min(self._steady_until, self._now())

        async with trio.open_nursery() as nursery:
            if isinstance(plan := population.arrivals, Closed):
                for _ in range(plan.clients):
                    nursery.start_soon(client)
                return
            rng = random.Random(f"{self._scenario.seed}/{population.name}/arrivals")
            begun = trio.current_time()
            for number, offset in enumerate(offsets(plan, rng, capacity)):
                if number == population.sessions or offset >= self._scenario.bounds.seconds:
                    return
                await trio.sleep_until(begun + offset)
                if not self._may_send():
                    return
                self._health.lateness(trio.current_time() - begun - offset)
                session = self._workload.session(population, number)
                nursery.start_soon(self._session, session, begun + offset - self._started)

    async def _session(self, session: Session, scheduled_at: float) -> None:
        async with self._make_client() as client:
            for turn in range(1, session.turns + 1):
                await trio.sleep(session.gap_before(turn))
                if not self._may_send():
                    return
                due = scheduled_at if turn == 1 else self._now()
                answer = await self._send(client, session, turn, session.ask(turn), due)
                if not answer.whole:
                    return
                session.answered(answer.text)
                async with trio.open_nursery() as nursery:
                    for subagent in session.subagents(turn):
                        nursery.start_soon(self._session, subagent, self._now())

    def _may_send(self) -> bool:
        bounds = self._scenario.bounds
        return self._sent < bounds.requests and self._now() < bounds.seconds

    def _now(self) -> float:
        return trio.current_time() - self._started

    # --- requests

    async def _send(
        self, client: httpx.AsyncClient, session: Session, turn: int, wish: Ask, due: float
    ) -> Answer:
        """Send one request and follow it to its end. A cancelled one is recorded, too."""
        index, self._sent = self._sent, self._sent + 1
        answer = self._in_flight[index] = Answer(sent_at=trio.current_time())
        # With the salt, because the target may remember the agents of a probe or of an earlier run.
        headers = {**self._target.headers, "x-session-id": f"{self._salt} {session.id}"}
        if wish.timeout_seconds is not None:
            headers["x-request-timeout"] = f"{wish.timeout_seconds:g}"
        url, body = self._target.url_of(wish.questions), build_body(wish, self._target)
        try:
            await ask(client, url, body, answer, headers, wish.timeout_seconds)
        finally:
            del self._in_flight[index]
            self._records.append(self._record(index, session, turn, wish, due, answer))
        return answer

    def _record(
        self, index: int, session: Session, turn: int, wish: Ask, due: float, answer: Answer
    ) -> RequestRecord:
        return RequestRecord(
            index=index,
            population=session.population,
            tenant=session.tenant,
            # A subagent's requests belong to its parent's session: "agents-3/1" to "agents-3".
            session=session.id.partition("/")[0],
            turn=turn,
            session_turns=session.turns,
            scheduled_at=due,
            sent_at=answer.sent_at - self._started,
            stamps=tuple(stamp - self._started for stamp in answer.stamps),
            ended_at=answer.ended_at - self._started,
            outcome=answer.outcome,
            status=answer.status,
            detail=answer.detail,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            reusable_share=wish.reusable_share,
        )


def offsets(plan: Burst | Poisson | OfCapacity, rng: random.Random, capacity: float) -> Iterator[float]:
    """Yield when sessions of an open loop start, in ascending seconds; `capacity`: what the target finishes
    in a second. Gaps are Gamma-distributed with the mean 1/rate."""
    if isinstance(plan, Burst):
        yield from [0.0] * plan.clients
        return
    rate, shape = (
        (plan.rate, plan.burstiness) if isinstance(plan, Poisson) else (plan.multiple * capacity, 1.0)
    )
    at = 0.0
    while True:
        at += rng.gammavariate(shape, 1 / (rate * shape))
        yield at


def _settings(scenario: Scenario, capacity: dict[str, float]) -> dict[str, str]:
    settings = {
        population.name: population.model_dump_json(exclude_defaults=True, exclude={"name"})
        for population in scenario.populations
    }
    settings["bounds"] = scenario.bounds.model_dump_json()
    return settings | {
        f"{one}: measured capacity": f"{rate:.2f} requests/s" for one, rate in capacity.items()
    }


class HealthMeter:
    """Measure whether the load generator kept up; if it did not, its figures are its own and not the
    target's. It runs beside the load; `lateness` also records how late scheduled requests were sent."""

    def __init__(self) -> None:
        self._lags = [0.0]
        self._cpu_started = self._started = 0.0

    async def run(self) -> None:
        self._cpu_started, self._started = time.process_time(), trio.current_time()
        while True:
            due = trio.current_time() + _TICK_SECONDS
            await trio.sleep_until(due)
            self._lags.append(trio.current_time() - due)

    def lateness(self, seconds: float) -> None:
        self._lags.append(seconds)

    def result(self) -> GeneratorHealth:
        elapsed = trio.current_time() - self._started
        cpu_share = (time.process_time() - self._cpu_started) / elapsed if elapsed > 0 else 0.0
        return GeneratorHealth(cpu_share=cpu_share, lag_p99_seconds=percentile(sorted(self._lags), 0.99))
