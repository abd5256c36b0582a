"""What the scheduler tells of itself: frozen records of one moment, for operators' eyes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.link.messages import Ready


class DeathCause(StrEnum):
    """A closed set: it is a metric's label."""

    OUT_OF_MEMORY = "out_of_memory"
    """The device or the machine had none left for what the engine asked of it."""
    BUFFER_LIMIT = "buffer_limit"
    """Metal allows a process so many buffers (499,000) of any size: less memory would not have helped."""
    GPU_TIMEOUT = "gpu_timeout"
    """The system took the device away, because one piece of work kept it for too long."""
    GPU_ERROR = "gpu_error"
    """Another failure that Metal or CUDA reported."""
    FAULT = "fault"
    """An exception, or it said what cannot be."""
    KILLED = "killed"
    """By a signal, without a word why: from outside, by the kernel for lack of memory, or a crash."""
    EXIT = "exit"
    """It ended by itself and did not say why."""
    WEDGE = "wedge"
    """It lived and made no progress, and was killed for it."""
    START = "start"
    """It was never ready, and neither memory nor the device was why."""
    STOPPED = "stopped"
    """We are shutting down."""


class EngineCondition(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The supervisor's view of its engine at one moment."""

    condition: EngineCondition
    restarts: int
    failed_starts: int
    """Engines in a row that died before they were ready."""
    last_death: str | None
    ready: Ready | None
    death_cause: DeathCause | None = None
    """Of the last one that died. Until its process has ended and its stderr is read: how the talk with it
    came to its end."""


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """The scheduler at one moment. `in_engine` includes those whose engine was lost and who wait for the
    next one; `stalled_seconds` is 0 while nothing is expected of the engine. `blocked`: why nothing is
    admitted, and for how many seconds that will be so."""

    queued: int
    in_engine: int
    draining: bool
    stalled_seconds: float
    engine: EngineStatistics
    blocked: str | None
    blocked_seconds: float


@dataclass(frozen=True, slots=True)
class FlowStatistics:
    """The waiting requests of one session of one tenant in one priority band.

    Service is attained tokens (uncached prefill + weight x output), halved every half-life; the tenant's is
    the same in all of its sessions' records.
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
    """Everything that waits. `bound_*` are what may wait; None: no bound of that kind."""

    requests: int
    prompt_tokens: int
    oldest_seconds: float
    bound_requests: int
    bound_prompt_tokens: int | None
    bound_requests_per_tenant: int | None
    flows: tuple[FlowStatistics, ...]


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """One request that the engine holds. `state` is of `lifecycle.State`, in small letters; `age_seconds`
    counts from its arrival, `running_seconds` from its first progress."""

    id: str
    request_id: int
    """What the engine calls it, in its slots and plans."""
    tenant: str
    session: str
    priority: int
    state: str
    prompt_tokens: int
    prefilled_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    age_seconds: float
    running_seconds: float | None


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """`GET /v1/scheduler`. `kv_cache_share`: of the budget for keys and values, what engines may use since
    one ran out of memory. `departures_per_second`, of a full engine, is None until there is a measurement,
    and `last_step_seconds` (its age) until there was a step."""

    draining: bool
    blocked: str | None
    departures_per_second: float | None
    last_step_seconds: float | None
    kv_cache_share: float
    engine_bound_requests: int
    queue: QueueStatistics
    running: tuple[RunningStatistics, ...]
