"""Follow an engine's totals, over restarts of its process. What is no field is observed as they grow."""

from __future__ import annotations

import structlog

from scheduler.shared.counters import DraftCounters
from scheduler.shared.messages import Counters, MemoryState
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.labels import (
    DRAFT_SOURCES,
    RELIEF_LEVELS,
    STEPS,
)

_log = structlog.get_logger("engine")


class EngineTotals:
    """Follows the totals of an engine's process. Call `forget` when the process is lost: the next one starts
    at zero."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics

    def take(self, now: Counters) -> None:
        # First, so that if an instrument raises, the others do not count the same increments again.
        last, self._metrics.now = self._metrics.now, now
        self._take_steps(now, last)
        if now.drafts != last.drafts:
            self._take_drafts(now.drafts, last.drafts)
        if now.guard.relief != last.guard.relief:
            self._take_relief(now.guard, last.guard)

    def _take_steps(self, now: Counters, last: Counters) -> None:
        """Observe the steps since the last totals, usually one. An engine sends no output while it prefills
        again for resumed requests: those steps and the next one are counted as equal."""
        metrics, steps = self._metrics, now.steps - last.steps
        busy = now.busy_seconds - last.busy_seconds
        rows = now.generated_tokens - last.generated_tokens - (_accepted(now) - _accepted(last))
        prefilled = now.prefilled_tokens - last.prefilled_tokens
        kind = STEPS[0 if not prefilled else 1 if rows else 2]
        for _ in range(steps):
            metrics.step_seconds[kind].observe(busy / steps)
            metrics.step_rows.observe(rows / steps)
            metrics.step_prefill.observe(prefilled / steps)

    def _take_drafts(self, now: DraftCounters, last: DraftCounters) -> None:
        metrics = self._metrics
        for source, (proposed, accepted) in now.sources.items():
            label = source if source in DRAFT_SOURCES else DRAFT_SOURCES[-1]
            before = last.sources.get(source, (0, 0))
            metrics.draft_tokens[label].inc(proposed - before[0])
            metrics.accepted_draft_tokens[label].inc(accepted - before[1])

    def _take_relief(self, now: MemoryState, last: MemoryState) -> None:
        _log.warning(
            "memory_relief",
            engine=self._metrics.engine,
            level=RELIEF_LEVELS[now.relief],
            before=RELIEF_LEVELS[last.relief],
            used_bytes=now.used,
            limit_bytes=now.limit,
            available_bytes=now.available,
            pressure=now.pressure,
            chunk_peak_bytes=now.chunk_peak,
        )

    def forget(self) -> None:
        self._metrics.past, self._metrics.now = self._metrics.totals, Counters()


def _accepted(counters: Counters) -> int:
    """Return how many tokens rows have got beyond one a step."""
    return sum(accepted for _, accepted in counters.drafts.sources.values())
