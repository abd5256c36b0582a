"""Snapshots of the scheduler's state, as frozen records for operators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.shared.messages import Ready


class DeathCause(StrEnum):
    """Why an engine died. A closed set: it is a metric label."""

    OUT_OF_MEMORY = "out_of_memory"
    """The device or the machine had no memory for an allocation of the engine."""
    BUFFER_LIMIT = "buffer_limit"
    """The process reached Metal's limit of 499,000 buffers of any size: less memory would not have helped."""
    GPU_TIMEOUT = "gpu_timeout"
    """The system aborted GPU work because one command buffer ran for too long."""
    GPU_VICTIM = "gpu_victim"
    """macOS ended or ignored its GPU work because of what another process did."""
    GPU_ERROR = "gpu_error"
    """Another failure that Metal or CUDA reported."""
    FAULT = "fault"
    """An exception, or a message that breaks the protocol."""
    KILLED = "killed"
    """Killed from outside, by a signal that no fault of its own raises: an operator, or the system. Also: the
    link of an engine on another machine ended without a message."""
    CRASHED = "crashed"
    """A signal of its own, such as SIGSEGV or SIGABRT, without a message."""
    EXIT = "exit"
    """It exited by itself without a message."""
    HUNG = "hung"
    """It made no progress and was killed."""
    START = "start"
    """It died before READY, and neither memory nor the device was the reason."""
    STOPPED = "stopped"
    """The service is shutting down."""


class EngineCondition(StrEnum):
    STARTING = "starting"
    READY = "ready"
    QUARANTINE = "quarantine"
    """It is ready, and clears a request of its deaths, which computes alone: all new ones wait."""
    RESTARTING = "restarting"
    UNLOADED = "unloaded"
    """Its model is not loaded: there is no process, until a request asks for the model."""
    FAILED = "failed"
    """It could never be started, and no further attempt is made."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """All engines of a pool as one."""

    condition: EngineCondition
    restarts: int
    failed_starts: int
    """Engines in a row that died before they were ready."""
    last_death: str | None
    ready: Ready | None
    death_cause: DeathCause | None = None
    """The cause of the last engine's death. Preliminary (how the link ended) until its process has exited and
    its stderr is read."""


@dataclass(frozen=True, slots=True)
class MemberStatistics:
    """One engine of the pool. `requests`: those that it holds, at most `bound_requests`. `kv_cache_share`:
    the share of the KV budget that it may use, lowered when it runs out of memory. `prefill_chunk_ceiling`:
    the most prompt tokens of a step, halved when the device times out, and climbing back.
    `last_step_seconds`: age of the last step, None before the first. Speeds are None until they are
    measured."""

    engine: str
    condition: EngineCondition
    draining: bool
    restarts: int
    failed_starts: int
    last_death: str | None
    last_death_cause: DeathCause | None
    requests: int
    bound_requests: int
    kv_cache_share: float
    prefill_chunk_ceiling: int
    last_step_seconds: float | None
    stalled_seconds: float
    prefill_tokens_per_second: float | None
    decode_step_seconds: float | None


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """The scheduler at one moment. `engine` is all engines together: ready if one is. `in_engine` includes
    requests that await another engine. `stalled_seconds` is 0 while an engine makes progress or none has
    work. `blocked`: why nothing is admitted, and for how many more seconds, or None while admission is
    open. `clearing`: in a quarantine, whom the others wait for, in words; None otherwise."""

    queued: int
    in_engine: int
    draining: bool
    stalled_seconds: float
    engine: EngineStatistics
    blocked: str | None
    blocked_seconds: float
    clearing: str | None


@dataclass(frozen=True, slots=True)
class FlowStatistics:
    """The waiting requests of one session of one tenant in one priority band.

    Service is attained tokens (uncached prefill + weight x output), halved every half-life. The tenant's is
    the same in the records of all its sessions.
    """

    priority: int
    tenant: str
    session: str
    requests: int
    prompt_tokens: int
    oldest_seconds: float
    tenant_service_tokens: float
    session_service_tokens: float


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """All queued requests. `bound_*` are the bounds on waiting requests, or None where there is none."""

    requests: int
    prompt_tokens: int
    oldest_seconds: float
    bound_requests: int
    bound_prompt_tokens: int | None
    bound_requests_per_tenant: int | None
    flows: tuple[FlowStatistics, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """`phase`: the value of a `lifecycle.State`, or `time_line.RESUMED`. `waits_for`: why the request waits
    for a slot; empty in other phases. `chunks`, `tokens`: the prefill chunks that ended in it, and the prompt
    tokens computed by them."""

    phase: str
    start: float
    end: float
    waits_for: str = ""
    engine: str = ""
    chunks: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestReport:
    """What operators see of one choice of a request from arrival until now, or to its end. It has no text of
    prompt or answer. Seconds count from arrival, and are None for what did not happen."""

    id: str
    choice: int
    request_id: int
    """Its id in the engine's slots and plans."""
    tenant: str
    session: str
    priority: int
    state: str
    """`StreamRecord.shown_state`."""
    outcome: str | None
    """How the request ended, or None while it runs."""
    engine: str | None
    """None while it awaits one."""
    prompt_tokens: int
    prefilled_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    resumed: int
    dispatched_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float
    waits_for: str
    """One of `shared.waits.REASONS`; empty if it runs or has ended."""
    spans: tuple[Span, ...]
    """Their times are seconds since the request's arrival. Empty in lists of requests."""


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """Requests of one tenant that wait for one of `shared.waits.REASONS`. `oldest_seconds` counts from their
    arrival, `oldest_id` is its answer's id; both are None if unknown."""

    tenant: str
    reason: str
    requests: int
    oldest_seconds: float | None
    oldest_id: str | None


@dataclass(frozen=True, slots=True)
class PieceStatistics:
    """Token ids that are kept by piece of text. `tokens` are the prompt tokens since the start, `kept_tokens`
    those of them whose ids were kept."""

    tokens: int = 0
    kept_tokens: int = 0
    held_bytes: int = 0
    """Bytes held at this moment."""


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """`GET /v1/scheduler`. `kv_cache_share` and `prefill_chunk_ceiling` are the least of all engines,
    `last_step_seconds` is the age of their latest step. `departures_per_second` (of full engines) is None
    until it is measured."""

    draining: bool
    blocked: str | None
    departures_per_second: float | None
    last_step_seconds: float | None
    kv_cache_share: float
    prefill_chunk_ceiling: int
    engine_bound_requests: int
    queue: QueueStatistics
    waits: tuple[WaitStatistics, ...]
    running: tuple[RequestReport, ...]
    engines: tuple[MemberStatistics, ...]
    prompt_pieces: PieceStatistics
