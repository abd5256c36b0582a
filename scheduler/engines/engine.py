"""One engine over all its processes: its requests, its bounds, its speed, and what its deaths mean for them.

What dies with a process is in its `EngineProcess`. The engine decides what concerns itself alone; what
concerns other engines or the queue, the pool reconciles after each event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import structlog
import trio

from scheduler.config import SchedulerConfig, load_message
from scheduler.engine_bounds import EngineBounds
from scheduler.engines.adapters import PoolAdapters
from scheduler.engines.boundary import EngineProvision, MemoryShare
from scheduler.engines.condition import EngineState, condition_of
from scheduler.engines.deadlines import StepDeadlines
from scheduler.engines.death import CrashLoopBreaker, Death
from scheduler.engines.multiplexer import Multiplexer
from scheduler.engines.placement import Candidate
from scheduler.engines.poison import count_death, culprit_of, judge, poison, takes_suspect
from scheduler.engines.speeds import Speeds
from scheduler.engines.stall_watch import StallWatch
from scheduler.engines.supervisor import EngineNeverReady, Supervisor
from scheduler.errors import EngineLost
from scheduler.prefix_estimate import PrefixEstimate
from scheduler.processes.inspections import Inspections
from scheduler.processes.process import EngineLauncher
from scheduler.requests.answer_reading import AnswerReading
from scheduler.requests.lifecycle import Event
from scheduler.requests.lifecycle import State as RequestState
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING, Requests
from scheduler.shared.messages import (
    Alive,
    Begun,
    Counters,
    Inspection,
    Load,
    Ready,
    StepOutput,
    ToEngine,
)
from scheduler.shared.model_fingerprint import fingerprint
from scheduler.statistics import DeathCause, EngineCondition, MemberStatistics
from scheduler.telemetry import observation
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.engine_totals import EngineTotals
from scheduler.telemetry.metrics import ModelMetrics
from scheduler.telemetry.observation import RequestSamples

_log = structlog.get_logger("scheduler")
STARTS_UNTIL_BLOCKED = 2
"""After this many failed starts in a row it takes nothing more."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What a pool gives to all its engines. They run in the tasks that read their links: nothing may wait."""

    config: SchedulerConfig
    provision: EngineProvision
    metrics: ModelMetrics
    samples: RequestSamples
    clock: Callable[[], float]
    engines: Mapping[str, Engine]
    """All of them, by name."""
    requests: Requests
    stepped: Callable[[Sequence[StreamRecord]], None]
    """Called when a step has advanced these requests, and may have ended others."""
    reconcile: Callable[[Engine], None]
    """Called when an engine's process has become ready, has ended, or its end is explained."""
    adapters: PoolAdapters
    refusal: Callable[[Ready], str]
    """Returns why an engine that is ready cannot serve here, or an empty string if it can."""
    reading: AnswerReading
    telemetry: Containment


class EngineProcess:
    """One process of an engine, from Ready to the end of its link: all that dies with it is a field here.
    `likely`: what its prefix cache is likely to have."""

    def __init__(
        self,
        ready: Ready,
        began_at: float,
        send: Callable[[ToEngine], None],
        stall: StallWatch,
        totals: EngineTotals,
        likely: PrefixEstimate,
    ) -> None:
        self.ready = ready
        self.began_at = began_at
        self.send = send
        """Sends a message to the process, or drops it after the process's end."""
        self.stall = stall
        self.totals = totals
        self.likely = likely
        self.inspections = Inspections(send)
        self.budget_inspected = False
        """Whether its KV budget was inspected."""
        self._scope = trio.CancelScope()

    async def watch(self) -> None:
        """Kill it if it hangs. Return at its end."""
        with self._scope:
            await self.stall.run()

    def end(self) -> None:
        """Release all tasks that wait for the process: its link has ended."""
        self._scope.cancel()
        self.inspections.close()


class Engine:
    """`run` must be running. Its supervisor starts its processes, and reports them here."""

    def __init__(self, name: str, launcher: EngineLauncher, share: MemoryShare, shared: Shared) -> None:
        config = shared.config
        self.name = name
        self.share = share
        self.slots = config.engine.max_slots
        self.draining = False
        """Whether it gets no new requests, and is stopped after its last one."""
        self.quarantined = False
        """Whether it gets no new requests, because a suspect must be alone in its steps."""
        self.bounds = EngineBounds(config.engine.prefill_chunk_tokens)
        """The bounds of its next process; while one runs, with that one's chunk ceiling as it climbs."""
        self.speeds = Speeds(config.engine.prefill_chunk_tokens)
        self.process: EngineProcess | None = None
        """Its process while that is ready, or None."""
        self.lost_at = -math.inf
        self.on_board = shared.requests.at(name)
        """Its requests, by id."""
        self.multiplexer = Multiplexer(
            name,
            shared.requests,
            self.send,
            shared.samples,
            shared.reading,
            shared.clock,
        )
        self.supervisor = Supervisor(launcher, self, config.supervision, shared.refusal)
        self.metrics = shared.metrics.of_engine(name)
        self._shared = shared
        self._config = config
        self._clock = shared.clock
        self._telemetry = shared.telemetry
        self._deadlines = StepDeadlines(config.stall_seconds)
        self._breaker = CrashLoopBreaker(config.recovery)
        self._likely = PrefixEstimate()
        """Estimates the prefix cache of the last process."""
        self.cause: str | None = None
        """Why its last process ended, or None if none has since it was begun."""
        self._suspects: list[StreamRecord] = []
        """Requests that may be to blame for the last death, until its cause is known."""
        self._nursery: trio.Nursery | None = None
        self.metrics.slots.set(self.slots)
        self.metrics.chunk_ceiling.set(self.bounds.chunk_tokens)

    # --- its state

    @property
    def ready(self) -> bool:
        return self.process is not None

    @property
    def running(self) -> bool:
        """Return whether `run` runs or is about to, so that it may have a process."""
        return self.supervisor.running or self._nursery is not None

    @property
    def failed(self) -> bool:
        """Return whether it could not be started, and no start is tried any more."""
        return self.supervisor.state is EngineState.FAILED

    @property
    def given_up(self) -> bool:
        """Return whether it will not take a request again, as far as is known."""
        failed_starts = self.supervisor.failed_starts
        return self.draining or self.failed or failed_starts >= self._config.recovery.max_failed_starts

    @property
    def condition(self) -> EngineCondition:
        supervisor = self.supervisor
        died = supervisor.death_cause is not None
        return condition_of(supervisor.state, died=died, quarantined=self.quarantined)

    def blocked(self, now: float) -> tuple[float, str] | None:
        """Return until when it is not available, and why (a crash loop, or failed starts), or None if it is
        available."""
        if (failure := self.supervisor.failure) is not None:
            return math.inf, failure
        if self.process is not None:
            until, reason = self._stable_at, self._breaker.reason(self.process.began_at)
            return None if reason is None or now >= until else (until, reason)
        if self.cause is None:
            return None
        if self.supervisor.failed_starts >= STARTS_UNTIL_BLOCKED:
            return math.inf, f"the engine does not start: {self.cause}"
        reason = self._breaker.reason(self.lost_at)
        return None if reason is None else (math.inf, reason)

    def _replaceable(self) -> bool:
        """Return whether other engines could take its requests."""
        others = self._shared.engines.values()
        return any(one is not self and one.ready and not one.draining for one in others)

    @property
    def _stable_at(self) -> float:
        assert self.process is not None
        return self.process.began_at + self._config.supervision.stable_seconds

    # --- for placement

    @property
    def requests(self) -> int:
        return len(self.on_board)

    @property
    def credits(self) -> int:
        """Return how many requests it may ever hold."""
        return 0 if self.draining else self.slots + self._config.intake.lookahead

    @property
    def room(self) -> int:
        return max(0, self.credits - self.requests) if self.ready else 0

    def takes_suspect(self, *, alone: bool) -> bool:
        """Return whether it may resume a suspect now. `alone`: beside trusted requests only."""
        return takes_suspect(self.on_board.values(), self.slots, alone=alone)

    @property
    def suspect(self) -> StreamRecord | None:
        """Return the suspect that it runs, if there is one."""
        return next((one for one in self.on_board.values() if one.suspect and not one.trusted), None)

    def candidate(self, record: StreamRecord) -> Candidate:
        prompt = len(record.submit.prompt)
        cached = self._likely.cached_tokens(record.prepared.prefix_blocks, prompt)
        return Candidate(
            self.name,
            self.requests,
            self.slots,
            self._backlog_tokens,
            prompt - cached,
            self.speeds,
            cached,
            max((one.output_tokens for one in self.on_board.values()), default=0),
        )

    @property
    def _backlog_tokens(self) -> int:
        """Return the prompt tokens of its requests that it has yet to compute."""
        tokens = 0
        for record in self.on_board.values():
            match record.state:
                case RequestState.SUBMITTED | RequestState.WAITING:
                    tokens += len(record.submit.prompt) - record.expected_cached_tokens
                case RequestState.PREFILLING:
                    computed = record.prefilled_tokens or record.expected_cached_tokens
                    tokens += len(record.submit.prompt) - computed
                case _:
                    pass
        return tokens

    def take(self, record: StreamRecord) -> None:
        """Send it a request, and assume its prefix cached from now on: later requests with this prefix wait
        for its computation instead of computing it again."""
        if self.process is not None and not self.requests:
            # It was idle: the time without a step was no stall.
            self.process.stall.woke(self._clock())
        record.expected_cached_tokens = self._likely.cached_tokens(
            record.prepared.prefix_blocks, len(record.submit.prompt)
        )
        self._likely.computed(record.prepared.prefix_blocks)
        self.multiplexer.take(record)

    def left(self, record: StreamRecord) -> None:
        """Take note that a request that this engine had is over, and report to its process that its session
        waits from now on, if its answer is over."""
        # The part that it was expected to find cached is not its own: other requests have computed it.
        computed = max(record.prefilled_tokens, record.expected_cached_tokens)
        if record.prefilled_tokens < len(record.submit.prompt):
            self._likely.forget(record.prepared.prefix_blocks, computed)
        try:
            if (ended := record.turn_ended_message()) is not None:
                self.send(ended)
        except Exception:  # A name that cannot be encoded, say. Eviction knows less, and no stream ends.
            _log.exception("turn_end_failed", request=record.request.public_id)

    def send(self, message: ToEngine) -> None:
        """Send a message to its process, or drop it while none is ready."""
        if self.process is not None:
            self.process.send(message)

    # --- its processes

    def begin(self) -> None:
        """Call before `run`: what was known of an earlier attempt no longer counts."""
        self.cause = None
        self.supervisor.begin()

    def forgive(self) -> None:
        """Forget its failed starts, so that it may be started again."""
        self.cause = None
        self.supervisor.forgive()

    async def run(self) -> None:
        """Return when it has been stopped. Raise EngineNeverReady."""
        never_ready: EngineNeverReady | None = None
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    await self.supervisor.run()
                except EngineNeverReady as error:
                    # Raised outside the nursery, which would wrap it in an exception group.
                    never_ready = error
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
        if never_ready is not None:
            raise never_ready

    def stop(self) -> None:
        """End its process, and with it all that it has on board."""
        self.supervisor.stop()

    async def load(self) -> Load:
        """Return what its next process is to load. Raise OSError if the model's files cannot be read, whose
        fingerprint engines on other machines compare."""
        engine, known = self._config.engine, ""
        if engine.model:
            cache_folder = Path(engine.cache_folder) if engine.cache_folder else None
            read = partial(fingerprint, Path(engine.model_folder), cache_folder)
            known = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        adapters = self._shared.adapters.present
        load = load_message(engine, self.bounds, int(self.name), self.share.given(), adapters)
        identified: Load = msgspec.structs.replace(load, fingerprint=known)
        return identified

    def loading(self, stage: str) -> None:
        self._shared.provision.on_loading(self.name, stage)

    def process_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None:
        now = self._clock()
        self.speeds.engine_started()
        if not self._config.engine.kv_disk:
            self._likely = PrefixEstimate()
        stall = StallWatch(
            self._deadlines,
            self.on_board,
            send,
            self.supervisor.declare_hung,
            now,
            self._replaceable,
        )
        process = EngineProcess(ready, now, send, stall, EngineTotals(self.metrics), self._likely)
        self.process = process
        if self._nursery is not None:
            self._nursery.start_soon(process.watch)
        self.share.ready(ready)
        self.loading("")
        self._telemetry.sample(observation.observe_ready, self.metrics, ready)
        _log.info(
            "engine_ready",
            engine=self.name,
            **{name: getattr(ready, name) for name in ready.__struct_fields__},
        )
        for key, reason in ready.refused_adapters:
            _log.error("adapter_lost", engine=self.name, reason=reason)
            self._shared.adapters.lost(key)
        self._shared.reconcile(self)

    def began(self, begun: Begun) -> None:
        assert self.process is not None, "a message of a process that is not ready"
        self.process.stall.began(begun, self._clock())

    def replied(self, reply: Inspection | Alive) -> None:
        process = self.process
        assert process is not None, "a message of a process that is not ready"
        if isinstance(reply, Alive):
            process.stall.pulsed(reply, self._clock())
            return
        process.inspections.answered(reply)
        self._telemetry.sample(observation.observe_inspection, self.metrics, reply)
        process.stall.answered(reply, self._clock())

    def step(self, output: StepOutput) -> None:
        process = self.process
        assert process is not None, "a message of a process that is not ready"
        # Tokens first: a reader waits for them, and nothing that they lead to waits for the counters.
        advanced = self.multiplexer.route(output)
        process.stall.stepped(output, self._clock())
        self._telemetry.run("engine_totals", process.totals.take, output.counters)
        self._follow(process, output.counters)
        self._shared.stepped(advanced)

    def _follow(self, process: EngineProcess, counters: Counters) -> None:
        """Learn from the totals of a step: its speed, how much its cache holds, and that chunks of the
        reported size did not time out, so that the next timeout halves it."""
        self.speeds.take(counters)
        kept_tokens = counters.cache.kept_tokens + counters.row_tokens
        # The backlog is counted only where it matters: this runs at every step.
        if process.likely.tokens > kept_tokens and not self._config.engine.kv_disk:
            process.likely.bound(kept_tokens + self._backlog_tokens)
        tokens = counters.chunk_ceiling
        if tokens and tokens != self.bounds.chunk_tokens:
            self.bounds = self.bounds.climbed(tokens)
            self._telemetry.sample(self.metrics.chunk_ceiling.set, tokens)
            _log.info("prefill_chunk_raised", engine=self.name, tokens=tokens)

    # --- its deaths

    def lost(self, cause: str) -> None:
        self.lost_at, self.cause = self._clock(), cause
        process, self.process = self.process, None
        in_step = () if process is None else process.stall.begun.requests
        stopped = self.supervisor.death_cause is DeathCause.STOPPED
        self._telemetry.sample(observation.observe_loss, self.metrics, stopped=stopped)
        if process is not None:
            process.end()
            self._telemetry.run("engine_totals", process.totals.forget)
        try:
            self._lose(stopped, in_step)
            self._shared.reconcile(self)
        except Exception:
            _log.exception("recovery_failed", engine=self.name)
            self._fail_requests(cause)
            self._shared.reconcile(self)

    def _lose(self, stopped: bool, in_step: Sequence[int]) -> None:
        """Count the death, and let its requests await another engine. `in_step`: what it was doing."""
        if not stopped:
            self._suspects = count_death(self.on_board.values(), in_step)
            self._breaker.died(self.lost_at)
        self.multiplexer.lose_all()

    def _fail_requests(self, cause: str) -> None:
        """Send a final event for every request, in any state that a failed recovery left it in."""
        reason = f"the engine was lost, and its requests could not be resumed: {cause}"
        requests = self._shared.requests
        awaiting = [one for one in requests.at(AWAITING).values() if one.engine == self.name]
        for record in (*self.on_board.values(), *awaiting):
            if record.outcome is None:
                record.fail(EngineLost(reason, retry_after_seconds=10.0))
            requests.move(record, Event.RETIRE)

    def died(self, death: Death) -> None:
        """Judge the suspects, and fail a culprit. This waits until the cause is known: a death by the
        device's watchdog may be the fault of a large chunk, and one by a signal is no request's."""
        self._telemetry.sample(observation.observe_death, self.metrics, death.cause)
        suspects, self._suspects = self._suspects, []
        judge(suspects, death.cause, smallest_chunk=self.bounds.smallest_chunk)
        # A load that fails has used none of its bounds.
        if not self.supervisor.failed_starts:
            self._lower_bounds(death)
        culprit = culprit_of(suspects, self._config.recovery.max_request_deaths)
        if culprit is not None and culprit.state is RequestState.AWAITING_ENGINE:
            self._telemetry.sample(self._shared.metrics.poisonous.inc)
            # The client does not get the line of stderr, which is for the operator.
            culprit.fail(poison(culprit, f"{death.cause.value}: {self.cause}"))
            self._shared.requests.move(culprit, Event.RETIRE)
        self._shared.reconcile(self)

    def _lower_bounds(self, death: Death) -> None:
        before, self.bounds = self.bounds, self.bounds.after(death.cause)
        if (share := self.bounds.kv_cache_share) != before.kv_cache_share:
            self._telemetry.sample(self.metrics.kv_cache_share.set, share)
            _log.warning("kv_budget_lowered", engine=self.name, share=share, reason=death.detail)
        if (tokens := self.bounds.chunk_tokens) != before.chunk_tokens:
            self._telemetry.sample(self.metrics.chunk_ceiling.set, tokens)
            _log.warning("prefill_chunk_lowered", engine=self.name, tokens=tokens, reason=death.detail)

    # --- for operators

    def stalled_seconds(self, now: float) -> float:
        """Return the seconds without progress; 0 while none is expected."""
        return 0.0 if self.process is None else self.process.stall.seconds(now)

    def last_step_seconds(self, now: float) -> float | None:
        """Return the age of its process's last step; None before the first."""
        return None if self.process is None else self.process.stall.last_step_seconds(now)

    def statistics(self, now: float) -> MemberStatistics:
        return MemberStatistics(
            engine=self.name,
            condition=self.condition,
            draining=self.draining,
            restarts=self.supervisor.restarts,
            failed_starts=self.supervisor.failed_starts,
            last_death=self.supervisor.last_death,
            last_death_cause=self.supervisor.death_cause,
            requests=self.requests,
            bound_requests=self.credits,
            kv_cache_share=self.bounds.kv_cache_share,
            prefill_chunk_ceiling=self.bounds.chunk_tokens,
            last_step_seconds=self.last_step_seconds(now),
            stalled_seconds=self.stalled_seconds(now),
            prefill_tokens_per_second=self.speeds.prefill_tokens_per_second,
            decode_step_seconds=self.speeds.decode_step_seconds,
        )
