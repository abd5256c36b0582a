"""Convert an engine's totals to increments of its counters, which a restart of its process must not reset."""

from __future__ import annotations

import structlog

from scheduler.shared.counters import DraftCounters
from scheduler.shared.messages import CacheCounters, Counters, DeviceMemory, MemoryState
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.labels import (
    DIRECTIONS,
    DRAFT_SECONDS,
    DRAFT_SOURCES,
    ENGINE_PARTS,
    MEMORY_PARTS,
    RELIEF_LEVELS,
    STEPS,
)

_log = structlog.get_logger("engine")


class EngineTotals:
    """Adds what an engine's totals have grown by to its counters. Call `forget` when the process is lost: the
    next one starts at zero."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._last = Counters()

    def take(self, now: Counters) -> None:
        # First, so that if an instrument raises, the others do not count the same increments again.
        metrics, last, self._last = self._metrics, self._last, now
        self._take_steps(now, last)
        metrics.prefilled_tokens.inc(now.prefilled_tokens - last.prefilled_tokens)
        metrics.generated_tokens.inc(now.generated_tokens - last.generated_tokens)
        metrics.preemptions.inc(now.preemptions - last.preemptions)
        metrics.re_prefilled_tokens.inc(now.re_prefilled_tokens - last.re_prefilled_tokens)
        metrics.running.set(now.running)
        metrics.waiting.set(now.waiting)
        metrics.preempted.set(now.preempted)
        metrics.kv_bytes.set(now.kv_bytes)
        metrics.row_tokens.set(now.row_tokens)
        metrics.shared_row_tokens.set(now.shared_row_tokens)
        # Most steps do not change the instruments below: skipping them halves the cost of this method.
        if now.drafts != last.drafts:
            self._take_drafts(now.drafts, last.drafts)
        if now.cache != last.cache:
            self._take_cache(now.cache, last.cache)
        if now.memory != last.memory:
            self._take_memory(now.memory)
        if now.guard != last.guard:
            self._take_guard(now.guard, last.guard)

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
        model = now.model_seconds - last.model_seconds
        parts = (model, busy - model, now.between_seconds - last.between_seconds)
        for part, seconds in zip(ENGINE_PARTS, parts, strict=True):
            # Rounding may make a difference slightly negative, which a counter rejects.
            metrics.seconds[part].inc(max(0.0, seconds))

    def _take_drafts(self, now: DraftCounters, last: DraftCounters) -> None:
        metrics = self._metrics
        metrics.draft_steps.inc(now.steps - last.steps)
        saved = now.saved_seconds - last.saved_seconds
        metrics.draft_seconds[DRAFT_SECONDS[saved < 0]].inc(abs(saved))
        for source, (proposed, accepted) in now.sources.items():
            label = source if source in DRAFT_SOURCES else DRAFT_SOURCES[-1]
            before = last.sources.get(source, (0, 0))
            metrics.draft_tokens[label].inc(proposed - before[0])
            metrics.accepted_draft_tokens[label].inc(accepted - before[1])

    def _take_memory(self, now: DeviceMemory) -> None:
        self._metrics.device_active.set(now.active)
        self._metrics.device_cached.set(now.cached)
        self._metrics.device_peak.set(now.peak)
        self._metrics.device_recommended.set(now.recommended)

    def _take_guard(self, now: MemoryState, last: MemoryState) -> None:
        metrics = self._metrics
        read = (now.used, now.limit, now.available, now.chunk_peak)
        for part, count in zip(MEMORY_PARTS, read, strict=True):
            metrics.memory_guard[part].set(count)
        if now.relief == last.relief:
            return
        metrics.memory_relief.set(now.relief)
        metrics.memory_relief_changes[DIRECTIONS[now.relief < last.relief]].inc()
        _log.warning(
            "memory_relief",
            engine=metrics.engine,
            level=RELIEF_LEVELS[now.relief],
            before=RELIEF_LEVELS[last.relief],
            used_bytes=now.used,
            limit_bytes=now.limit,
            available_bytes=now.available,
            pressure=now.pressure,
            chunk_peak_bytes=now.chunk_peak,
        )

    def _take_cache(self, now: CacheCounters, last: CacheCounters) -> None:
        metrics = self._metrics
        metrics.prefix_query_tokens.inc(now.query_tokens - last.query_tokens)
        metrics.prefix_hit_tokens.inc(now.hit_tokens - last.hit_tokens)
        metrics.prefix_stored_tokens.inc(now.stored_tokens - last.stored_tokens)
        metrics.prefix_complaints.inc(now.complaints - last.complaints)
        evicted = metrics.prefix_evicted_tokens
        evicted["budget"].inc(now.evicted_budget_tokens - last.evicted_budget_tokens)
        evicted["superseded"].inc(now.evicted_superseded_tokens - last.evicted_superseded_tokens)
        evicted["cleared"].inc(now.evicted_cleared_tokens - last.evicted_cleared_tokens)
        metrics.prefix_bytes.set(now.kept_bytes)
        metrics.prefix_tokens.set(now.kept_tokens)
        metrics.disk_hit_tokens.inc(now.disk_hit_tokens - last.disk_hit_tokens)
        metrics.disk_reads.inc(now.disk_reads - last.disk_reads)
        metrics.disk_writes.inc(now.disk_writes - last.disk_writes)
        metrics.disk_dropped_writes.inc(now.disk_dropped_writes - last.disk_dropped_writes)
        metrics.disk_errors.inc(now.disk_errors - last.disk_errors)
        metrics.disk_bytes.set(now.disk_bytes)

    def forget(self) -> None:
        self._last = Counters()
        metrics = self._metrics
        for gauge in (
            *(metrics.running, metrics.waiting, metrics.preempted, metrics.kv_bytes),
            *(metrics.row_tokens, metrics.shared_row_tokens, metrics.prefix_bytes, metrics.prefix_tokens),
            *(metrics.memory_guard[part] for part in MEMORY_PARTS),
        ):
            gauge.set(0)
        self._take_memory(DeviceMemory())
        metrics.memory_relief.set(0)


def _accepted(counters: Counters) -> int:
    """Return how many tokens rows have got beyond one a step."""
    return sum(accepted for _, accepted in counters.drafts.sources.values())
