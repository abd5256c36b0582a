"""The supervisor's `EngineListener`: how requests react to the engine's messages, start and death."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
import trio

from scheduler.config import SchedulerConfig
from scheduler.errors import EngineLost, SchedulerError, Unavailable
from scheduler.link.messages import Inspection, Ready, StepOutput, ToEngine
from scheduler.recovery.death import CrashLoopBreaker, Death
from scheduler.recovery.poison import count_death, culprit_of, poison, spare
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.stages import Stages
from scheduler.statistics import DeathCause, EngineStatistics
from scheduler.telemetry import observation
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.engine_totals import EngineTotals
from scheduler.telemetry.metrics import EngineMetrics, Metrics

_log = structlog.get_logger("scheduler")


class EngineSender:
    """Sends to the engine while one is ready; drops messages otherwise."""

    def __init__(self) -> None:
        self._send: Callable[[ToEngine], None] | None = None

    @property
    def connected(self) -> bool:
        return self._send is not None

    def connect(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send

    def disconnect(self) -> None:
        self._send = None

    def send(self, message: ToEngine) -> None:
        if self._send is not None:
            self._send(message)


@dataclass(frozen=True, slots=True)
class _Lost:
    """An engine's end as the link saw it, and the requests on board."""

    cause: str
    on_board: Sequence[StreamRecord]
    suspects: Sequence[StreamRecord]


class EngineEvents:
    """`pump` dispatches to the engine while it has room; `fail_queued` fails every queued request."""

    def __init__(
        self,
        stages: Stages,
        sender: EngineSender,
        config: SchedulerConfig,
        metrics: Metrics,
        engine_metrics: EngineMetrics,
        model_name: str,
        on_loading: Callable[[str], None],
        *,
        engine: Callable[[], EngineStatistics],
        pump: Callable[[], None],
        fail_queued: Callable[[SchedulerError], None],
    ) -> None:
        self._stages = stages
        self._sender = sender
        self._config = config
        self._metrics = metrics
        self._engine_metrics = engine_metrics
        self._model_name = model_name
        self._on_loading = on_loading
        self._engine = engine
        self._pump = pump
        self._fail_queued = fail_queued
        self._telemetry = Containment(metrics)
        self._totals = EngineTotals(engine_metrics)
        self._breaker = CrashLoopBreaker(config.recovery)
        self.bounds = config.engine.first_bounds
        """What the next engine may use; while one runs, its ceiling as it climbs."""
        engine_metrics.chunk_ceiling.set(self.bounds.chunk_tokens)
        self._lost: _Lost | None = None
        """The last engine's end, until its cause is known."""
        self.budget_inspected = False
        """Whether this engine's KV budget was inspected."""

    def engine_loading(self, stage: str) -> None:
        self._on_loading(stage)

    def engine_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None:
        self._sender.connect(send)
        self._stages.dispatcher.engine_ready = True
        now = trio.current_time()
        self._stages.stall.engine_ready(now)
        # The time without an engine is no gap between two departures.
        self._stages.admission.rate.pause()
        if (reason := self._breaker.reason(now)) is None:
            self._stages.admission.unblock()
        else:
            self._stages.admission.block(reason, until=now + self._config.supervision.stable_seconds)
        self._telemetry.sample(observation.observe_ready, self._engine_metrics, ready, self._model_name)
        self.budget_inspected = False
        _log.info("engine_ready", **{name: getattr(ready, name) for name in ready.__struct_fields__})
        self._pump()

    def engine_output(self, output: StepOutput) -> None:
        now = trio.current_time()
        self._stages.stall.stepped(output, now)
        self._telemetry.run("engine_totals", self._totals.take, output.counters)
        self._follow_ceiling(output.counters.chunk_ceiling)
        self._stages.multiplexer.route(output)
        for record in self._stages.multiplexer:
            if record.started_at is None and record.state in (State.PREFILLING, State.DECODING):
                record.started_at = now
                self._stages.expiry.watch(record)
            self._stages.queue.observe(record, now)
        if self._stages.multiplexer.awaiting_engine:
            # A suspect may be waiting for another request to become trusted.
            self._pump()

    def engine_inspected(self, inspection: Inspection) -> None:
        self._telemetry.sample(observation.observe_inspection, self._engine_metrics, inspection)
        self._stages.stall.answered(inspection, trio.current_time())
        self._stages.inspections.answered(inspection)

    def engine_lost(self, cause: str) -> None:
        self._sender.disconnect()
        self._stages.dispatcher.engine_ready = False
        self._stages.stall.engine_lost()
        self._telemetry.sample(observation.observe_loss, self._engine_metrics)
        self._telemetry.run("engine_totals", self._totals.forget)
        self._stages.inspections.engine_lost()
        try:
            self._recover(cause, self._engine())
        except Exception:
            _log.exception("recovery_failed")
            self._fail_on_board(f"the engine was lost, and its requests could not be resumed: {cause}")
        self._pump()

    def engine_died(self, death: Death) -> None:
        self._telemetry.sample(observation.observe_death, self._engine_metrics, death.cause)
        timed_out = death.cause is DeathCause.GPU_TIMEOUT
        if self._lost is not None and timed_out and not self.bounds.smallest_chunk:
            spare(self._lost.on_board)
        # A load that fails has used none of its bounds.
        if not self._engine().failed_starts:
            self._lower_bounds(death)
        self._judge(death)

    def _lower_bounds(self, death: Death) -> None:
        before, self.bounds = self.bounds, self.bounds.after(death.cause)
        if (share := self.bounds.kv_cache_share) != before.kv_cache_share:
            self._telemetry.sample(self._engine_metrics.kv_cache_share.set, share)
            _log.warning("kv_budget_lowered", share=share, reason=death.detail)
        if (tokens := self.bounds.chunk_tokens) != before.chunk_tokens:
            self._telemetry.sample(self._engine_metrics.chunk_ceiling.set, tokens)
            _log.warning("prefill_chunk_lowered", tokens=tokens, reason=death.detail)

    def _follow_ceiling(self, tokens: int) -> None:
        """The engine has tried chunks of this size, and lives: the next timeout halves it."""
        if tokens and tokens != self.bounds.chunk_tokens:
            self.bounds = self.bounds.climbed(tokens)
            self._telemetry.sample(self._engine_metrics.chunk_ceiling.set, tokens)
            _log.info("prefill_chunk_raised", tokens=tokens)

    def _judge(self, death: Death) -> None:
        """Fail a culprit. Not before the cause is known: what the device's watchdog ended may be its
        chunk's."""
        lost, self._lost = self._lost, None
        if lost is None:
            return
        culprit = culprit_of(lost.suspects, self._config.recovery.max_request_deaths)
        if culprit is not None and culprit.state is State.AWAITING_ENGINE:
            self._telemetry.sample(self._metrics.poisonous.inc)
            # Without the line of stderr, which is the operator's.
            cause = f"{death.cause.value}: {lost.cause}"
            self._stages.multiplexer.give_up(culprit, poison(culprit, cause))

    def _recover(self, cause: str, engine: EngineStatistics) -> None:
        """Keep requests on board for the next engine; fail all after too many failed starts."""
        if engine.death_cause is DeathCause.STOPPED:
            self._stages.multiplexer.lose_all()
            return
        now = trio.current_time()
        on_board = [
            record for record in self._stages.multiplexer if record.state is not State.AWAITING_ENGINE
        ]
        self._lost = _Lost(cause, on_board, count_death(on_board))
        self._stages.multiplexer.lose_all()
        self._breaker.died(now)
        if (reason := self._breaker.reason(now)) is not None:
            self._stages.admission.block(reason)
        if engine.failed_starts >= _STARTS_UNTIL_BLOCKED:
            reason = f"the engine does not start: {cause}"
            self._stages.admission.block(reason)
            self._fail_queued(Unavailable(reason, retry_after_seconds=10.0))
        if engine.failed_starts >= self._config.recovery.max_failed_starts:
            for record in list(self._stages.multiplexer):
                lost = f"the engine was lost, and no other could be started to resume the request: {cause}"
                self._stages.multiplexer.give_up(record, EngineLost(lost, retry_after_seconds=10.0))

    def _fail_on_board(self, reason: str) -> None:
        """A final event for every request of the lost engine, whatever state a failed recovery left it in."""
        self._stages.multiplexer.end_all(EngineLost(reason, retry_after_seconds=10.0))
        self._stages.multiplexer.lose_all()


_STARTS_UNTIL_BLOCKED = 2
"""After this many failed starts in a row queued requests fail."""
