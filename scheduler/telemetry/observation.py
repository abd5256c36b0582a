"""Convert requests, and the states of queue and engines, to samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import trio

from scheduler.errors import (
    Draining,
    InvalidRequest,
    QueueFull,
    SchedulerError,
    TenantLimit,
)
from scheduler.events import FinishReason
from scheduler.requests.record import StreamRecord
from scheduler.shared.messages import Inspection, Ready
from scheduler.statistics import DeathCause, FlowStatistics, PieceStatistics
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.labels import CONDITIONS, OTHER
from scheduler.telemetry.metrics import ModelMetrics

FINISHED = tuple(reason.value for reason in FinishReason)


def start_of(record: StreamRecord) -> str:
    if record.resumed:
        return "resumed"
    return "warm" if 2 * record.cached_tokens >= len(record.submit.prompt) else "cold"


class RequestSamples:
    """What the multiplexer sees of requests, as samples. Contained: a fault must not end a stream."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._containment = Containment(metrics.server)

    def submitted(self, record: StreamRecord, now: float) -> None:
        """It was sent to its first engine."""
        self._containment.sample(lambda: self._metrics.queue_seconds.observe(now - record.arrived_at))

    def resumed(self) -> None:
        self._containment.sample(self._metrics.resumed.inc)

    def tokens(self, record: StreamRecord, now: float) -> None:
        """A step gave tokens. Called once, before `record` counts the first of them. However many they are,
        they are one piece of the stream and one inter-token gap, as in vLLM: tokens that come at once have no
        gap between them."""
        self._containment.sample(self._tokens, record, now)

    def _tokens(self, record: StreamRecord, now: float) -> None:
        metrics = self._metrics
        if record.lost_at is not None:
            metrics.resume_seconds.observe(now - record.lost_at)
            record.lost_at = None
        if record.last_token_at is not None:
            metrics.itl.observe(now - record.last_token_at)
            return
        metrics.ttft[start_of(record)].observe(now - record.arrived_at)
        if record.dispatched_at is not None:
            metrics.prefill_seconds.observe(now - record.dispatched_at)

    def late_token(self) -> None:
        """A token came after the end of its answer, or after its reader had left."""
        self._containment.sample(self._metrics.late_tokens.inc)

    def cancelled(self, seconds: float) -> None:
        """Time from Cancel sent to Retired received."""
        self._containment.sample(self._metrics.cancel_seconds.observe, seconds)


def observe_accepted(metrics: ModelMetrics, records: Iterable[StreamRecord]) -> None:
    """Count prompt tokens. Each prompt counts once, because its choices share it."""
    metrics.prompt_tokens.inc(sum(len(record.submit.prompt) for record in records if record.choice == 0))


def observe_end(metrics: ModelMetrics, record: StreamRecord, now: float) -> None:
    """Sample a request that has retired. Latencies are those of finished requests only: a cancel is not a
    fast answer."""
    assert record.outcome is not None, "a request left without an outcome"
    metrics.requests[record.outcome].inc()
    for fault, calls in record.pipeline.call_faults.items():
        metrics.malformed_calls.labels(record.pipeline.call_notation, fault).inc(calls)
    tenant = metrics.tenant_label(record.request.tenant)
    metrics.tenant_prefill[tenant].inc(record.uncached_tokens)
    metrics.tenant_output[tenant].inc(record.output_tokens)
    if record.outcome not in FINISHED:
        return
    metrics.e2e.observe(now - record.arrived_at)
    metrics.request_prompt_tokens.observe(len(record.submit.prompt))
    metrics.request_output_tokens.observe(record.output_tokens)
    if record.first_token_at is not None and record.last_token_at is not None:
        decoding = record.last_token_at - record.first_token_at
        metrics.decode_seconds.observe(decoding)
        if record.output_tokens > 1:
            metrics.tpot.observe(decoding / (record.output_tokens - 1))


def observe_refusal(metrics: ModelMetrics, outcome: str, error: BaseException) -> None:
    """Count a request that was rejected, or whose client disconnected, before it was accepted."""
    metrics.requests[outcome].inc()
    if outcome == "rejected":
        metrics.rejections[rejection_reason(error)].inc()


def outcome_before_acceptance(error: BaseException) -> str:
    match error:
        case InvalidRequest():
            return "invalid"
        case SchedulerError():
            return "rejected"
        case trio.Cancelled():
            return "cancelled"
        case _:
            return "error"


def rejection_reason(error: BaseException) -> str:
    """Return the metric label of a rejection."""
    match error:
        case QueueFull():
            return "queue_full"
        case TenantLimit():
            return "tenant_limit"
        case Draining():
            return "draining"
        case _:
            return "unavailable"


def observe_pieces(metrics: ModelMetrics, now: PieceStatistics, before: PieceStatistics) -> None:
    """Sample what tokenizing cost since `before`."""
    kept = now.kept_tokens - before.kept_tokens
    metrics.tokenized["kept"].inc(kept)
    metrics.tokenized["made"].inc(now.tokens - before.tokens - kept)
    metrics.pieces_bytes.set(now.held_bytes)


def observe_flows(metrics: ModelMetrics, flows: Iterable[FlowStatistics]) -> None:
    """Sample the queue by tenant. O(flows): for a scrape, not for every request."""
    depth, oldest = Counter[str](), defaultdict[str, float](float)
    service = defaultdict[int, dict[str, float]](dict)
    for flow in flows:
        tenant = metrics.tenant_label(flow.tenant)
        depth[tenant] += flow.requests
        oldest[tenant] = max(oldest[tenant], flow.oldest_seconds)
        service[flow.priority][flow.tenant] = flow.tenant_service_tokens
    for tenant in (*metrics.tenants, OTHER):
        metrics.tenant_queued[tenant].set(depth[tenant])
        metrics.tenant_oldest[tenant].set(oldest[tenant])
    gaps = [max(attained.values()) - min(attained.values()) for attained in service.values()]
    metrics.service_gap.set(max(gaps, default=0.0))


def observe_engines(metrics: ModelMetrics, conditions: Iterable[str]) -> None:
    """Sample how many engines are in each condition. `conditions`: one of CONDITIONS for each engine."""
    engines = Counter(conditions)
    for condition in CONDITIONS:
        metrics.by_condition[condition].set(engines[condition])


def observe_states(engine: EngineMetrics, records: Iterable[StreamRecord]) -> None:
    """Sample how many requests the engine has in each state. `records`: those of its requests."""
    states = Counter(record.shown_state for record in records)
    for state, gauge in engine.by_state.items():
        gauge.set(states[state])


def observe_ready(engine: EngineMetrics, ready: Ready) -> None:
    engine.up.set(1)
    engine.weights_bytes.set(ready.weights_bytes)
    engine.describe_model(
        {
            "model_type": ready.model_type,
            "device": ready.device,
            "weights_dtype": ready.weights_dtype,
            "kv_cache_dtype": ready.kv_cache_dtype,
            "fallbacks": ",".join(ready.fallbacks),
        }
    )


def observe_loss(engine: EngineMetrics, *, stopped: bool) -> None:
    """Sample that an engine's process is gone, or going. `stopped`: it was stopped on purpose, and another
    model gets its memory."""
    engine.up.set(0)
    if stopped:
        engine.weights_bytes.set(0)
        engine.kv_budget.set(0)
    else:
        engine.deaths.inc()


def observe_death(engine: EngineMetrics, cause: DeathCause) -> None:
    if cause is not DeathCause.STOPPED:
        engine.restarts[cause.value].inc()


def observe_inspection(engine: EngineMetrics, inspection: Inspection) -> None:
    """Sample the KV budget, which inspections report because the device decides it."""
    if inspection.cache is not None:
        engine.kv_budget.set(inspection.cache.budget_bytes)
