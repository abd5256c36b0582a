"""The operators' view of the scheduler: reports, gauges, the prefix cache."""

from __future__ import annotations

from collections.abc import Callable

import trio

from scheduler.engine_events import EngineEvents, EngineSender
from scheduler.errors import Unavailable
from scheduler.link.messages import Inspect, Inspection
from scheduler.requests.lifecycle import State
from scheduler.stages import Stages
from scheduler.statistics import EngineStatistics, SchedulerReport, SchedulerStatistics
from scheduler.telemetry import observation
from scheduler.telemetry.metrics import EngineMetrics, Metrics


class Operations:
    """Reads the stages. Changes nothing, but can clear the prefix cache."""

    def __init__(
        self,
        stages: Stages,
        sender: EngineSender,
        events: EngineEvents,
        engine: Callable[[], EngineStatistics],
        metrics: Metrics,
        engine_metrics: EngineMetrics,
    ) -> None:
        self._stages = stages
        self._sender = sender
        self._events = events
        self._engine = engine
        self.metrics = metrics
        self._engine_metrics = engine_metrics

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """What the engine's check at load found necessary; empty until an engine is ready."""
        ready = self._engine().ready
        return () if ready is None else ready.fallbacks

    def statistics(self) -> SchedulerStatistics:
        now = trio.current_time()
        blocked = self._stages.admission.blocked(now)
        return SchedulerStatistics(
            queued=len(self._stages.queue),
            in_engine=len(self._stages.multiplexer),
            draining=self._stages.admission.draining,
            stalled_seconds=self._stages.stall.seconds(now),
            engine=self._engine(),
            blocked=blocked,
            blocked_seconds=0.0 if blocked is None else self._stages.admission.unblock_seconds(now),
        )

    def report(self) -> SchedulerReport:
        """Return all waiting and running requests, and the bounds. Too expensive to call every second."""
        now = trio.current_time()
        return SchedulerReport(
            draining=self._stages.admission.draining,
            blocked=self._stages.admission.blocked(now),
            departures_per_second=self._stages.admission.rate.per_second(now),
            last_step_seconds=self._stages.stall.last_step_seconds(now),
            kv_cache_share=self._events.bounds.kv_cache_share,
            prefill_chunk_ceiling=self._events.bounds.chunk_tokens,
            engine_bound_requests=self._stages.dispatcher.credits,
            queue=self._stages.queue.statistics(now),
            running=tuple(record.statistics(now) for record in self._stages.multiplexer),
        )

    def observe(self) -> None:
        """Update every gauge for a scrape: ages grow while nothing happens. O(flows)."""
        now = trio.current_time()
        if not self._events.budget_inspected and self._sender.connected:
            # The reply carries the KV budget; no caller waits for it.
            self._sender.send(Inspect(query=0, top=0))
            self._events.budget_inspected = True
        self.observe_queue()
        observation.observe_flows(self.metrics, self._stages.queue.statistics(now).flows)
        observation.observe_engines(self.metrics, [self._engine().condition.value])
        observation.observe_states(self._engine_metrics, self._stages.multiplexer)
        self.metrics.awaiting_engine.set(
            sum(record.state is State.AWAITING_ENGINE for record in self._stages.multiplexer)
        )
        self._engine_metrics.stalled_seconds.set(self.statistics().stalled_seconds)
        self._engine_metrics.last_step_age.set(self._stages.stall.last_step_seconds(now) or 0.0)

    def observe_queue(self) -> None:
        self.metrics.queued.set(len(self._stages.queue))
        self.metrics.queued_tokens.set(self._stages.queue.prompt_tokens)
        self.metrics.oldest_queued.set(self._stages.queue.oldest_seconds(trio.current_time()))
        self._engine_metrics.on_board.set(len(self._stages.multiplexer))

    async def inspect_cache(self, clear: bool = False, top: int = 10, head_tokens: int = 0) -> Inspection:
        """Return the content of the prefix cache, at most a second old; with `clear`, after evicting all that
        no row uses. Raise Unavailable if no engine is running."""
        if not self._sender.connected:
            raise Unavailable("the engine is not running", retry_after_seconds=1.0)
        return await self._stages.inspections.inspect(self._sender.send, clear, top, head_tokens)
