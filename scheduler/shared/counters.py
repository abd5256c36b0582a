"""What an engine counts, as each step's output brings it: totals since its process started, and gauges. What
operators read of them is declared here, once (`figures.py`)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from scheduler.shared.figures import counter, gauge
from scheduler.shared.wire_struct import WireStruct

_EVICTED = (
    "penstock_prefix_evicted_tokens",
    "Evicted tokens: for lack of room, superseded by a session's newer turn, or cleared.",
)


class CacheCounters(msgspec.Struct, array_like=True, gc=False):
    """Totals of the prefix cache since the engine process started, and what it holds. Its owner counts in
    one, and reports copies."""

    query_tokens: Annotated[
        int,
        counter(
            "penstock_prefix_query_tokens",
            "Prompt tokens looked up in the prefix cache.",
            vllm=("prefix_cache_queries",),
        ),
    ] = 0
    hit_tokens: Annotated[
        int,
        counter(
            "penstock_prefix_hit_tokens",
            "Prompt tokens found in the prefix cache, so not computed.",
            history="cached",
            vllm=("prefix_cache_hits", "prompt_tokens_cached"),
        ),
    ] = 0
    stored_tokens: Annotated[
        int, counter("penstock_prefix_stored_tokens", "Tokens inserted into the prefix cache.")
    ] = 0
    evicted_budget_tokens: Annotated[int, counter(*_EVICTED, ("reason", "budget"))] = 0
    evicted_superseded_tokens: Annotated[int, counter(*_EVICTED, ("reason", "superseded"))] = 0
    evicted_cleared_tokens: Annotated[int, counter(*_EVICTED, ("reason", "cleared"))] = 0
    kept_tokens: Annotated[int, gauge("penstock_prefix_tokens", "Tokens that the prefix cache holds.")] = 0
    kept_bytes: Annotated[
        int,
        gauge(
            "penstock_prefix_bytes",
            "Bytes that the prefix cache holds.",
            live="prefix_bytes",
            history="prefix_bytes",
        ),
    ] = 0


class DiskCounters(msgspec.Struct, array_like=True, gc=False):
    """Totals of the disk tier since the engine process started, and what it holds. Its owner counts in one,
    and reports copies."""

    files: int = 0
    nbytes: Annotated[int, gauge("penstock_prefix_disk_bytes", "Bytes that the disk tier holds.")] = 0
    pending_bytes: int = 0
    """Queued for the writer."""
    reads: Annotated[int, counter("penstock_prefix_disk_reads", "Files read by the disk tier.")] = 0
    read_bytes: int = 0
    writes: Annotated[int, counter("penstock_prefix_disk_writes", "Files written by the disk tier.")] = 0
    write_bytes: int = 0
    dropped_writes: Annotated[
        int,
        counter(
            "penstock_prefix_disk_dropped_writes",
            "Writes that the disk tier dropped because it was behind or full.",
        ),
    ] = 0
    """Also those whose parent is missing, and those while writes are paused after an error."""
    evicted_files: int = 0
    errors: Annotated[
        dict[str, int],
        counter(
            "penstock_prefix_disk_errors", "Files that were damaged, foreign or missing, and failed writes."
        ),
    ] = msgspec.field(default_factory=dict)
    """By kind (`engine/disk/disk_tier.py`: ErrorKind)."""
    hit_tokens: Annotated[
        int, counter("penstock_prefix_disk_hit_tokens", "Prompt tokens read from disk, so not computed.")
    ] = 0


class DeviceMemory(WireStruct, frozen=True):
    """Current state of MLX's allocator, in bytes."""

    active: Annotated[
        int, gauge("penstock_device_active_bytes", "Bytes of live arrays in MLX's allocator.")
    ] = 0
    cached: Annotated[
        int, gauge("penstock_device_cached_bytes", "Freed bytes that MLX keeps for new arrays.")
    ] = 0
    peak: Annotated[
        int, gauge("penstock_device_peak_bytes", "Peak of active bytes since the engine started.")
    ] = 0
    recommended: Annotated[
        int,
        gauge(
            "penstock_device_recommended_bytes",
            "Working set that the device recommends; 0 if it has no figure (a CPU).",
        ),
    ] = 0


_GUARD = (
    "penstock_memory_guard_bytes",
    "The memory guard's last reading: used by the engine, its limit, what the system can still give,"
    " and the expected peak of a prefill chunk; -1: unknown.",
)


class MemoryState(WireStruct, frozen=True):
    """The last reading of the memory guard, in bytes."""

    relief: Annotated[
        int,
        gauge(
            "penstock_memory_relief",
            "What the engine gives up for lack of memory, and what came before: 1 cached prefixes, 2 large"
            " chunks, 3 admission, 4 running rows.",
        ),
    ] = 0
    """`scheduler/engine/budget/policy.py`: Relief; 0: nothing."""
    used: Annotated[int, gauge(*_GUARD, ("part", "used"))] = 0
    limit: Annotated[int, gauge(*_GUARD, ("part", "limit"))] = 0
    """The limit in force; 0 if there is none."""
    available: Annotated[int, gauge(*_GUARD, ("part", "available"))] = -1
    """What the system or container can still give; -1: unknown."""
    pressure: int = 0
    """The system's memory pressure: 0 normal, 1 warning, 2 critical."""
    chunk_peak: Annotated[int, gauge(*_GUARD, ("part", "chunk_peak"))] = 0
    """The expected peak of the next prefill chunk."""


class StepCosts(WireStruct, frozen=True):
    """Seconds, as the engine has fitted them to its latest steps (`engine/planning/pace.py`); 0: not
    measured, or part of another cost."""

    step: float = 0.0
    """Seconds of a step that decodes, whatever its rows."""
    row: float = 0.0
    """Seconds of each further row."""
    chunk: float = 0.0
    """Seconds of a prefill chunk, whatever its tokens."""
    token: float = 0.0
    """Seconds of each prompt token."""
    token_context: float = 0.0
    """Seconds of each prompt token, for each token of its context."""


class DraftCounters(WireStruct, frozen=True):
    """Totals of drafts since the engine process started."""

    steps: Annotated[int, counter("penstock_draft_steps", "Steps that verified drafted tokens.")] = 0
    sources: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Drafted tokens by source (`engine/drafts/speculation.py`): proposed, and accepted."""


class Counters(msgspec.Struct, array_like=True, gc=False):
    """Totals since the engine process started (they only grow), and current gauges. The loop counts in one,
    and reports copies."""

    steps: int = 0
    """Steps in which the model ran; those that only return pending tokens do not count."""
    prefilled_tokens: Annotated[
        int,
        counter(
            "penstock_prefilled_tokens",
            "Prompt tokens computed.",
            history="prefilled",
        ),
    ] = 0
    generated_tokens: Annotated[
        int,
        counter(
            "penstock_generated_tokens",
            "Tokens generated.",
            live="generated_tokens",
            history="generated",
            vllm=("generation_tokens",),
        ),
    ] = 0
    busy_seconds: float = 0.0
    running: Annotated[
        int,
        gauge(
            "penstock_running_slots",
            "Slots in use, prefilling or decoding.",
            live="running_slots",
            history="running",
            vllm=("num_requests_running",),
        ),
    ] = 0
    waiting: Annotated[
        int,
        gauge(
            "penstock_engine_waiting_requests",
            "Requests that the engine holds without a slot.",
            live="waiting_requests",
            history="engine_waiting",
        ),
    ] = 0
    kv_bytes: Annotated[
        int,
        gauge(
            "penstock_kv_bytes",
            "Bytes of KV cache that running rows hold.",
            live="running_bytes",
            history="running_bytes",
        ),
    ] = 0
    preemptions: Annotated[
        int,
        counter("penstock_preemptions", "Preemptions because KV memory ran out.", vllm=("num_preemptions",)),
    ] = 0
    re_prefilled_tokens: Annotated[
        int, counter("penstock_re_prefilled_tokens", "Prompt tokens computed again after a preemption.")
    ] = 0
    """Part of `prefilled_tokens`."""
    cache: CacheCounters = msgspec.field(default_factory=CacheCounters)
    memory: DeviceMemory = DeviceMemory()
    preempted: Annotated[
        int, gauge("penstock_preempted_requests", "Preempted requests that wait to continue.")
    ] = 0
    """Part of `waiting`."""
    row_tokens: Annotated[
        int, gauge("penstock_row_tokens", "Tokens of running rows, shared ones counted once per row.")
    ] = 0
    shared_row_tokens: Annotated[
        int,
        gauge(
            "penstock_shared_row_tokens",
            "Tokens of running rows that are read from the prefix cache without a copy.",
        ),
    ] = 0
    """Part of `row_tokens`."""
    guard: MemoryState = MemoryState()
    chunk_ceiling: int = 0
    """The ceiling of a step's prompt tokens, as far as it has climbed since a device timeout."""
    costs: StepCosts = StepCosts()
    drafts: DraftCounters = DraftCounters()
    disk: DiskCounters = msgspec.field(default_factory=DiskCounters)
