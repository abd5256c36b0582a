"""Drive one scenario against one target, once: record every request, and always end."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
import msgspec
import trio

from loadtests.agents import Agents, MakeClient
from loadtests.percentiles import percentile
from loadtests.record import GeneratorHealth, Outcome, RequestRecord, RunRecord, void
from loadtests.scenario import Closed, OfCapacity, Population, Scenario
from loadtests.scrape import Scraper
from loadtests.sender import Sender
from loadtests.targets import Target
from loadtests.workload import Workload

_TICK_SECONDS = 0.05


def default_client(request_seconds: float) -> MakeClient:
    """Make HTTP clients with a read timeout. They share one TLS context: making one costs 20 ms of processor
    time."""
    context = ssl.create_default_context()
    timeout = httpx.Timeout(request_seconds, connect=10.0, pool=None)
    return lambda: httpx.AsyncClient(timeout=timeout, verify=context, trust_env=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of a run, for a display."""

    elapsed_seconds: float
    sent: int = 0
    in_flight: int = 0
    finished: int = 0
    failed: int = 0
    deltas: int = 0


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
        self._probing = trio.CancelScope()
        self._measuring = trio.CancelScope()
        self._interrupted = False
        self._started = 0.0
        self._sender: Sender | None = None

    def interrupt(self) -> None:
        self._interrupted = True
        self._probing.cancel()
        self._measuring.cancel()

    def progress(self) -> Progress:
        elapsed, sender = trio.current_time() - self._started, self._sender
        if sender is None:
            return Progress(elapsed)
        return Progress(elapsed, sender.sent, sender.in_flight, sender.finished, sender.failed, sender.deltas)

    async def run(self, round_: int = 0) -> RunRecord:
        """Run the scenario from its first request to its last, or to its bounds."""
        # Set again below: the probe's time is not part of the run, but a display may read it already.
        self._started = trio.current_time()
        capacity = await self._capacities()
        started_at = datetime.now(UTC)
        self._started = trio.current_time()
        health = HealthMeter()
        bounds = self._scenario.bounds
        self._measuring.deadline = self._started + bounds.seconds + bounds.request_seconds
        async with trio.open_nursery() as background, self._make_client() as metrics_client:
            scraper = Scraper(metrics_client, self._target.metrics_url or "", self._started)
            sender = self._sender = Sender(self._target, self._salt, self._started, scraper.hung_up)
            agents = Agents(
                self._scenario, self._workload, sender, self._make_client, self._started, health.lateness
            )
            background.start_soon(health.run)
            if self._target.metrics_url is not None:
                await scraper.sample()
                background.start_soon(scraper.run)
            with self._measuring:
                await agents.run(capacity)
            ended_at = trio.current_time() - self._started
            if self._target.metrics_url is not None and not self._interrupted:
                # The target counts the last requests a moment after their clients have the answers.
                await trio.sleep(0.2)
                await scraper.sample(keep=True)
            generator = health.result()
            background.cancel_scope.cancel()
        steady_until = min(agents.steady_until, ended_at)
        record = self._record(started_at, ended_at, steady_until, capacity, sender, scraper, generator)
        return msgspec.structs.replace(record, round=round_)

    def _record(
        self,
        started_at: datetime,
        ended_at: float,
        steady_until: float,
        capacity: dict[str, float],
        sender: Sender,
        scraper: Scraper,
        generator: GeneratorHealth,
    ) -> RunRecord:
        scenario = self._scenario
        return RunRecord(
            target=self._target.name,
            url=self._target.url,
            model=self._target.model,
            scenario=scenario.name,
            description=scenario.description,
            settings=_settings(scenario, capacity),
            salt=self._salt,
            seed=scenario.seed,
            started=started_at.isoformat(timespec="seconds"),
            warm_up_seconds=scenario.warm_up_seconds,
            steady_until=steady_until,
            ended_at=ended_at,
            interrupted=self._interrupted,
            ttft_slo_seconds=scenario.slo.ttft_seconds,
            tpot_slo_seconds=scenario.slo.tpot_seconds,
            unmeasured=tuple(
                population.name for population in scenario.populations if not population.measured
            ),
            requests=tuple(
                _with_freed(record, scraper.freed.get(record.index))
                for record in sorted(sender.records, key=lambda record: record.index)
            ),
            generator=generator,
            server=tuple(scraper.samples),
        )

    # --- what the target can do

    async def _capacities(self) -> dict[str, float]:
        """Return requests per second of each population whose arrivals are relative to it, without those
        whose probe was interrupted."""
        found: dict[str, float] = {}
        with self._probing:
            for population in self._scenario.populations:
                if isinstance(population.arrivals, OfCapacity):
                    found[population.name] = await self._capacity(population, population.arrivals)
        return found

    async def _capacity(self, population: Population, plan: OfCapacity) -> float:
        """Return the requests per second that the target finishes in a closed loop; nothing is recorded."""
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


def _settings(scenario: Scenario, capacity: dict[str, float]) -> dict[str, str]:
    settings = {
        population.name: population.model_dump_json(exclude_defaults=True, exclude={"name"})
        for population in scenario.populations
    }
    if scenario.replay is not None:
        settings["replay"] = scenario.replay.model_dump_json()
    settings["bounds"] = scenario.bounds.model_dump_json()
    for name, rate in capacity.items():
        settings[f"{name}: measured capacity"] = f"{rate:.2f} requests/s"
    return settings


def _with_freed(record: RequestRecord, seconds: float | None) -> RequestRecord:
    return record if seconds is None else msgspec.structs.replace(record, freed_after_seconds=seconds)


class HealthMeter:
    """Measure whether the load generator kept up; if it did not, its figures are its own and not the
    target's. It runs beside the load; `lateness` also records how late scheduled requests were sent."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._cpu_started = time.process_time()
        self._started = trio.current_time()

    async def run(self) -> None:
        while True:
            due = trio.current_time() + _TICK_SECONDS
            await trio.sleep_until(due)
            self._lags.append(trio.current_time() - due)

    def lateness(self, seconds: float) -> None:
        self._lags.append(seconds)

    def result(self) -> GeneratorHealth:
        elapsed = trio.current_time() - self._started
        cpu_share = (time.process_time() - self._cpu_started) / elapsed if elapsed > 0 else 0.0
        lags = sorted(self._lags) or [0.0]
        p99 = percentile(lags, 0.99)
        return GeneratorHealth(
            cpu_share=cpu_share,
            lag_p50_seconds=percentile(lags, 0.5),
            lag_p99_seconds=p99,
            void=void(cpu_share, p99),
        )
