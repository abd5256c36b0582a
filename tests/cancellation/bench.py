"""A scheduler on a scripted engine whose every step is visible, and clients that leave on command."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.plan import StepPlan
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import SchedulerError
from scheduler.events import Failed, Finished, StreamEvent, TextDelta, TokenLogprobs
from scheduler.request import GenerationRequest
from scheduler.service import RequestStream, Scheduler
from scheduler.shared.messages import Load, ScriptedPlan
from scheduler.telemetry.labels import OUTCOMES
from tests.contracts.journal import kv_bytes
from tests.fakes.faulty_backend import HEALTHY, EngineDeath, Faults, FaultyBackend
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import Events, ask, make_scheduler


class EngineObserver:
    """Makes scripted back ends and records their work, over all lives of the engine."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.steps = 0
        self.rows: set[int] = set()
        self.most_rows = 0
        self.admitted: list[int] = []
        self.joined_at: dict[int, int] = {}
        """The number of steps that had begun when a request joined the batch."""
        self.left_at: dict[int, int] = {}
        self.before_step: Callable[[], None] = lambda: None
        self.deaths_at_start = 0
        """How many of the next engines die while they load."""

    def __call__(self, load: Load) -> Backend:
        if self.deaths_at_start:
            self.deaths_at_start -= 1
            raise EngineDeath
        self.rows.clear()
        return _Observed(load.scripted, self._faults, self)


class _Observed(FaultyBackend):
    def __init__(self, plan: ScriptedPlan, faults: Faults, observer: EngineObserver) -> None:
        super().__init__(plan, faults, sleep=lambda seconds: None)
        self._observer = observer

    def _admit(self, sequence: EngineSequence) -> None:
        submit = sequence.submit
        super()._admit(sequence)
        seen = self._observer
        seen.admitted.append(submit.request_id)
        seen.joined_at[submit.request_id] = seen.steps
        seen.rows.add(submit.request_id)
        seen.most_rows = max(seen.most_rows, len(seen.rows))

    def _remove(self, request_id: int) -> None:
        super()._remove(request_id)
        self._left(request_id)

    def _step(self, plan: StepPlan) -> StepResult:
        self._observer.before_step()
        self._observer.steps += 1
        result = super()._step(plan)
        for retired in result.retired:
            self._left(retired.request_id)
        return result

    def _left(self, request_id: int) -> None:
        self._observer.left_at[request_id] = self._observer.steps
        self._observer.rows.remove(request_id)


@dataclass
class Client:
    """Follows one request to its end, or until `leave` is called."""

    request: GenerationRequest
    events: list[StreamEvent] = field(default_factory=list)
    refusal: SchedulerError | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    stays: float = math.inf
    """Leave this number of seconds after coming."""
    stream: RequestStream | None = None

    async def follow(self, scheduler: Scheduler) -> None:
        self.scope.deadline = trio.current_time() + self.stays
        with self.scope:
            try:
                async with scheduler.stream(self.request) as self.stream:
                    async for event in Events(self.stream):
                        self.events.append(event)
            except SchedulerError as error:
                self.refusal = error

    def leave(self) -> None:
        self.scope.cancel()

    @property
    def text(self) -> str:
        return "".join([event.text for event in self.events if isinstance(event, TextDelta)])

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        texts = (event for event in self.events if isinstance(event, TextDelta))
        return [entry for text in texts for entry in text.logprobs]

    @property
    def finals(self) -> list[Finished | Failed]:
        return [event for event in self.events if isinstance(event, Finished | Failed)]


class Bench:
    """One scheduler, its loopback engine and their observer."""

    def __init__(
        self,
        plan: ScriptedPlan | None = None,
        *,
        max_slots: int = 1,
        lookahead: int = 1,
        max_queue: int = 1024,
        faults: Faults = HEALTHY,
        **intake: Any,
    ) -> None:
        self.observer = EngineObserver(faults)
        self.launcher = LoopbackLauncher(self.observer)
        self.scheduler = make_scheduler(
            self.launcher, plan, max_slots=max_slots, lookahead=lookahead, max_queue=max_queue, **intake
        )
        self._look_seconds = max(0.0005, plan.step_seconds / 4 if plan else 0.0)

    async def come(self, nursery: trio.Nursery, client: Client) -> Client:
        """Start `client`; when this returns it is accepted (or refused), and no step has begun since."""
        nursery.start_soon(client.follow, self.scheduler)
        while client.stream is None and client.refusal is None:
            await trio.lowlevel.checkpoint()
        return client

    async def strand(self, nursery: trio.Nursery) -> Client:
        """Return one with the beginning of a long answer, whose engine has just died."""
        client = await self.come(nursery, Client(ask(max_tokens=1000)))
        await self.wait_for(lambda: bool(client.text))
        self.launcher.kill()
        await trio.testing.wait_all_tasks_blocked()
        return client

    async def kill_after(self, seconds: float) -> None:
        """The engine, if one is ready then."""
        await trio.sleep(seconds)
        if self.scheduler.operations.statistics().engine.ready is not None:
            self.launcher.kill()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; check it four times a step."""
        while not condition():  # noqa: ASYNC110 (virtual time: nothing is waited for)
            await trio.sleep(self._look_seconds)

    def outcomes(self) -> dict[str, int]:
        """Requests by outcome, without the zeros."""
        values = {outcome: self.sample("penstock_requests_total", outcome=outcome) for outcome in OUTCOMES}
        return {outcome: int(value) for outcome, value in values.items() if value}

    def sample(self, name: str, **labels: str) -> float:
        return sample(self.scheduler.metrics.registry, name, **labels)

    def check_nothing_is_left(self) -> None:
        """No table of either process has an entry: no deadline is watched, no charge is open, no slot is
        taken."""
        statistics, queue = self.scheduler.operations.statistics(), self.scheduler.queue
        assert (statistics.queued, statistics.in_engine, statistics.stalled_seconds) == (0, 0, 0.0)
        assert len(self.scheduler.pool.expiry) == len(queue) == queue.prompt_tokens == queue.tenants == 0
        assert not queue._dispatched
        assert self.sample("penstock_queued_requests") == 0
        assert self.sample("penstock_engine_requests") == 0
        assert self.sample("penstock_running_slots") == 0
        assert self.sample("penstock_kv_bytes") == 0
        assert self.observer.rows == set()
        assert self.launcher.loop is not None
        assert self.launcher.loop.idle
        assert self.launcher.backend is not None
        assert kv_bytes(self.launcher.backend) == 0
