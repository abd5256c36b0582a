"""One engine of the pool, over all its processes: its supervisor, its requests, its bounds and its speed.

It is its supervisor's listener. What concerns it alone it decides itself; what concerns other engines or the
queue goes to the pool (`Owner`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog
import trio

from scheduler.config import SchedulerConfig
from scheduler.link.channel import EngineSender
from scheduler.link.messages import AdapterLoaded, Counters, Inspection, Load, Ready, StepOutput, ToEngine
from scheduler.link.pending_inspections import PendingInspections
from scheduler.link.process import EngineLauncher
from scheduler.pool.owner import Lost, MemoryShare, Owner
from scheduler.pool.placement import Candidate
from scheduler.pool.speeds import Speeds
from scheduler.prompt.prefix_estimate import PrefixEstimate
from scheduler.recovery.death import CrashLoopBreaker, Death
from scheduler.recovery.poison import count_death, judge, takes_suspect
from scheduler.recovery.stall_watch import StallWatch
from scheduler.recovery.supervisor import EngineNeverReady, Supervisor
from scheduler.requests.lifecycle import State
from scheduler.requests.multiplexer import Multiplexer, RequestObserver
from scheduler.requests.record import StreamRecord
from scheduler.requests.turns import Turns
from scheduler.statistics import DeathCause, EngineCondition, MemberStatistics
from scheduler.telemetry import observation
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.engine_totals import EngineTotals

_log = structlog.get_logger("scheduler")
STARTS_UNTIL_BLOCKED = 2
"""After this many failed starts in a row it takes nothing more."""


class Member:
    """`load` makes the message that a process loads by, within the given bounds."""

    def __init__(
        self,
        name: str,
        config: SchedulerConfig,
        launcher: EngineLauncher,
        owner: Owner,
        metrics: EngineMetrics,
        telemetry: Containment,
        observer: RequestObserver,
        turns: Turns,
        on_loading: Callable[[str], None],
        share: MemoryShare,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.name = name
        self.share = share
        self.slots = config.engine.max_slots
        self.draining = False
        self.quarantined = False
        self.never_ready: str | None = None
        """Why its first process could not be started, and no further one is tried."""
        self.running = False
        """Whether `run` runs: its process may not be gone before it has returned."""
        self.unloaded = not config.load_at_start
        """Whether it has no process on purpose, until its model is loaded."""
        self.bounds = config.engine.first_bounds
        """What its next process may use; while one runs, its ceiling as it climbs."""
        self.speeds = Speeds(config.engine.prefill_chunk_tokens)
        self.likely = PrefixEstimate()
        """What its prefix cache is likely to have."""
        self.sender = EngineSender()
        self.multiplexer = Multiplexer(
            name, self.sender.send, owner.retired, owner.left, observer, turns, clock
        )
        self.inspections = PendingInspections()
        self.adapters = owner.adapters.of_engine(name, self.sender)
        self.stall = StallWatch(
            config.stall_seconds,
            self.multiplexer,
            self.sender.send,
            lambda cause: self.supervisor.declare_hung(cause),
            replaceable=lambda: owner.others_ready(self),
        )
        self.supervisor = Supervisor(launcher, self._load, self, config.supervision, owner.kinship.refusal)
        self.budget_inspected = False
        """Whether this process's KV budget was inspected."""
        self._config = config
        self._owner = owner
        self._clock = clock
        self.metrics = metrics
        self._on_loading = on_loading
        self._telemetry = telemetry
        self._totals = EngineTotals(metrics)
        self._breaker = CrashLoopBreaker(config.recovery)
        self._lost: Lost | None = None
        """Its last process's end, until the cause is known."""
        self.lost_at = -math.inf
        self._blocked: str | None = None
        self._blocked_until = math.inf
        self._scope = trio.CancelScope()
        metrics.slots.set(self.slots)
        metrics.chunk_ceiling.set(self.bounds.chunk_tokens)

    # --- for the dispatcher

    @property
    def ready(self) -> bool:
        return self.sender.connected

    @property
    def linked(self) -> bool:
        """Whether a process of it runs, which may still be loading."""
        return self.supervisor.linked

    @property
    def failed(self) -> bool:
        """Whether it could not be started, and nobody tries."""
        return self.never_ready is not None

    @property
    def requests(self) -> int:
        return len(self.multiplexer)

    @property
    def credits(self) -> int:
        """How many requests it may ever hold."""
        return 0 if self.draining else self.slots + self._config.intake.lookahead

    @property
    def room(self) -> int:
        return max(0, self.credits - self.requests) if self.ready else 0

    @property
    def takes_suspect(self) -> bool:
        return takes_suspect(self.multiplexer, self.slots)

    @property
    def has_suspect(self) -> bool:
        return any(record.suspect and not record.trusted for record in self.multiplexer)

    @property
    def hopeless(self) -> bool:
        """Whether it will not take a request again, as far as is known."""
        if self.draining:
            return True
        failed = self.supervisor.statistics().failed_starts
        return self.never_ready is not None or failed >= self._config.recovery.max_failed_starts

    def candidate(self, record: StreamRecord) -> Candidate:
        prompt = len(record.prepared.prompt)
        uncached = prompt - self.likely.cached_tokens(record.prepared.prefix_blocks, prompt)
        return Candidate(self.name, self.requests, self.slots, self._backlog_tokens, uncached, self.speeds)

    @property
    def _backlog_tokens(self) -> int:
        """Prompt tokens of its requests that it has yet to compute."""
        tokens = 0
        for record in self.multiplexer:
            match record.state:
                case State.SUBMITTED | State.WAITING:
                    tokens += len(record.prepared.prompt) - record.expected_cached_tokens
                case State.PREFILLING:
                    computed = record.prefilled_tokens or record.expected_cached_tokens
                    tokens += len(record.prepared.prompt) - computed
                case _:
                    pass
        return tokens

    def submit(self, record: StreamRecord) -> None:
        self._prepare_for(record)
        self.multiplexer.submit(record)

    def resume(self, record: StreamRecord) -> None:
        self._prepare_for(record)
        self.multiplexer.resume(record)

    def _prepare_for(self, record: StreamRecord) -> None:
        """Its prompt will be in the cache: a request that comes next waits for it, and computes none of
        it."""
        if not self.requests:
            # It was idle: the time without a step was no stall.
            self.stall.woke(self._clock())
        prepared = record.prepared
        record.expected_cached_tokens = self.likely.cached_tokens(
            prepared.prefix_blocks, len(prepared.prompt)
        )
        self.likely.computed(prepared.prefix_blocks)

    def left(self, record: StreamRecord) -> None:
        """A request has left it for good."""
        # What it was expected to find is not its own: other requests have computed it.
        computed = max(record.prefilled_tokens, record.expected_cached_tokens)
        if record.prefilled_tokens < len(record.prepared.prompt):
            self.likely.forget(record.prepared.prefix_blocks, computed)

    # --- its life

    def begin(self) -> None:
        """Call before `run`: what was known of an earlier attempt no longer counts."""
        self.running, self.unloaded = True, False
        self.forgive()
        self._scope = trio.CancelScope()

    def forgive(self) -> None:
        """Its failed starts no longer count."""
        self.never_ready = self._blocked = None

    async def run(self) -> None:
        """Return when it has been stopped. Raise EngineNeverReady."""
        with self._scope:
            never_ready: EngineNeverReady | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.stall.run)
                try:
                    await self.supervisor.run()
                except EngineNeverReady as error:
                    # Raised outside the nursery, which would wrap it in an exception group.
                    never_ready = error
                nursery.cancel_scope.cancel()
            if never_ready is not None:
                raise never_ready

    def stop(self) -> None:
        """End its process, with whatever it has on board."""
        self._scope.cancel()

    def _load(self) -> Load:
        return self._config.engine.load_message(
            self.bounds, int(self.name), self.share.given(), self.adapters.first()
        )

    def engine_loading(self, stage: str) -> None:
        self._on_loading(stage)

    def engine_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None:
        self.sender.connect(send)
        self.speeds.engine_started()
        self.share.ready(ready)
        now = self._clock()
        self.stall.engine_ready(now)
        self._blocked = self._breaker.reason(now)
        self._blocked_until = now + self._config.supervision.stable_seconds
        self._telemetry.sample(observation.observe_ready, self.metrics, ready)
        self.budget_inspected = False
        _log.info(
            "engine_ready",
            engine=self.name,
            **{name: getattr(ready, name) for name in ready.__struct_fields__},
        )
        self.adapters.engine_ready(ready)
        self._owner.engine_ready(self)

    def engine_output(self, output: StepOutput) -> None:
        now = self._clock()
        self.stall.stepped(output, now)
        self._telemetry.run("engine_totals", self._totals.take, output.counters)
        self._follow(output.counters)
        self.share.observe(output.counters, now)
        self.multiplexer.route(output)
        for record in self.multiplexer:
            started = record.started_at is None and record.state in (State.PREFILLING, State.DECODING)
            if started:
                record.started_at = now
            self._owner.engine_progressed(record, now, started=started)
        self._owner.engine_stepped(self)

    def engine_inspected(self, inspection: Inspection) -> None:
        self._telemetry.sample(observation.observe_inspection, self.metrics, inspection)
        self.stall.answered(inspection, self._clock())
        self.inspections.answered(inspection)

    def engine_adapter_loaded(self, reply: AdapterLoaded) -> None:
        self.adapters.answered(reply)

    def engine_lost(self, cause: str) -> None:
        self.lost_at = self._clock()
        self.sender.disconnect()
        self.stall.engine_lost()
        stopped = self.supervisor.statistics().death_cause is DeathCause.STOPPED
        self._telemetry.sample(observation.observe_loss, self.metrics, stopped=stopped)
        self._telemetry.run("engine_totals", self._totals.forget)
        self.inspections.engine_lost()
        self.share.ended()
        self.adapters.engine_lost()
        if self._config.engine.kv_disk is None:
            self.likely.clear()
        try:
            self._owner.engine_lost(self, self._lose(cause), cause)
        except Exception:
            _log.exception("recovery_failed", engine=self.name)
            self._owner.engine_recovery_failed(self, cause)

    def engine_died(self, death: Death) -> None:
        self._telemetry.sample(observation.observe_death, self.metrics, death.cause)
        lost, self._lost = self._lost, None
        if lost is not None:
            judge(lost.suspects, death.cause, smallest_chunk=self.bounds.smallest_chunk)
        # A load that fails has used none of its bounds.
        if not self.supervisor.statistics().failed_starts:
            self._lower_bounds(death)
        self._owner.engine_died(self, lost, death)

    def _lose(self, cause: str) -> list[StreamRecord]:
        """Count the death, and return the requests that await another engine."""
        statistics = self.supervisor.statistics()
        if statistics.death_cause is DeathCause.STOPPED:
            return self.multiplexer.lose_all()
        now = self._clock()
        on_board = list(self.multiplexer)
        self._lost = Lost(cause, count_death(on_board))
        lost = self.multiplexer.lose_all()
        self.quarantined = self.quarantined or any(record.suspect for record in lost)
        self._breaker.died(now)
        if (reason := self._breaker.reason(now)) is not None:
            self._block(reason)
        if statistics.failed_starts >= STARTS_UNTIL_BLOCKED:
            self._block(f"the engine does not start: {cause}")
        return lost

    def _lower_bounds(self, death: Death) -> None:
        before, self.bounds = self.bounds, self.bounds.after(death.cause)
        if (share := self.bounds.kv_cache_share) != before.kv_cache_share:
            self._telemetry.sample(self.metrics.kv_cache_share.set, share)
            _log.warning("kv_budget_lowered", engine=self.name, share=share, reason=death.detail)
        if (tokens := self.bounds.chunk_tokens) != before.chunk_tokens:
            self._telemetry.sample(self.metrics.chunk_ceiling.set, tokens)
            _log.warning("prefill_chunk_lowered", engine=self.name, tokens=tokens, reason=death.detail)

    def _follow(self, counters: Counters) -> None:
        """What the totals of a step tell: its speed, how much its cache holds, and that chunks of the
        reported size did not time out, so that the next timeout halves it."""
        self.speeds.take(counters)
        held_tokens = counters.cache.held_tokens + counters.row_tokens
        # The backlog is counted only where it matters: this runs at every step.
        if self.likely.tokens > held_tokens and self._config.engine.kv_disk is None:
            self.likely.bound(held_tokens + self._backlog_tokens)
        tokens = counters.chunk_ceiling
        if tokens and tokens != self.bounds.chunk_tokens:
            self.bounds = self.bounds.climbed(tokens)
            self._telemetry.sample(self.metrics.chunk_ceiling.set, tokens)
            _log.info("prefill_chunk_raised", engine=self.name, tokens=tokens)

    # --- for operators

    def blocked(self, now: float) -> str | None:
        """Why nobody should count on it: a crash loop, or failed starts."""
        if self.never_ready is not None:
            return self.never_ready
        return self._blocked if now < self._blocked_until else None

    @property
    def blocked_until(self) -> float:
        return math.inf if self.never_ready is not None else self._blocked_until

    def _block(self, reason: str) -> None:
        self._blocked, self._blocked_until = reason, math.inf

    @property
    def condition(self) -> EngineCondition:
        if self.never_ready is not None:
            return EngineCondition.FAILED
        return EngineCondition.UNLOADED if self.unloaded else self.supervisor.statistics().condition

    def statistics(self, now: float) -> MemberStatistics:
        life = self.supervisor.statistics()
        return MemberStatistics(
            engine=self.name,
            condition=self.condition,
            draining=self.draining,
            quarantined=self.quarantined,
            restarts=life.restarts,
            failed_starts=life.failed_starts,
            last_death=life.last_death if self.never_ready is None else self.never_ready,
            last_death_cause=life.death_cause,
            requests=self.requests,
            bound_requests=self.credits,
            kv_cache_share=self.bounds.kv_cache_share,
            prefill_chunk_ceiling=self.bounds.chunk_tokens,
            last_step_seconds=self.stall.last_step_seconds(now),
            stalled_seconds=self.stall.seconds(now),
            prefill_tokens_per_second=self.speeds.prefill_tokens_per_second,
            decode_step_seconds=self.speeds.decode_step_seconds,
        )
