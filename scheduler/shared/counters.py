"""What an engine counts, as each step's output brings it: totals since its process started, and gauges."""

from __future__ import annotations

import msgspec

from scheduler.shared.wire_struct import WireStruct


class CacheCounters(WireStruct, frozen=True):
    """Totals of the prefix cache since the engine process started; `kept_*` and `disk_bytes` are current
    values."""

    query_tokens: int = 0
    hit_tokens: int = 0
    stored_tokens: int = 0
    evicted_budget_tokens: int = 0
    evicted_superseded_tokens: int = 0
    evicted_cleared_tokens: int = 0
    complaints: int = 0
    """Faults found by the integrity check, in all its runs."""
    kept_bytes: int = 0
    disk_hit_tokens: int = 0
    """Tokens read from disk."""
    disk_reads: int = 0
    disk_writes: int = 0
    disk_dropped_writes: int = 0
    disk_errors: int = 0
    disk_bytes: int = 0
    kept_tokens: int = 0


class DeviceMemory(WireStruct, frozen=True):
    """Current state of MLX's allocator, in bytes."""

    active: int = 0
    cached: int = 0
    """Freed, and kept by MLX for new arrays."""
    peak: int = 0
    """Peak of `active` since the engine process started."""
    recommended: int = 0
    """Working set that the device recommends; 0 if it has no figure (a CPU)."""


class MemoryState(WireStruct, frozen=True):
    """The last reading of the memory guard, in bytes."""

    relief: int = 0
    """What is given up (`scheduler/engine/budget/policy.py`: Relief); 0: nothing."""
    used: int = 0
    limit: int = 0
    """The limit in force; 0 if there is none."""
    available: int = -1
    """What the system or container can still give; -1: unknown."""
    pressure: int = 0
    """The system's memory pressure: 0 normal, 1 warning, 2 critical."""
    chunk_peak: int = 0
    """The expected peak of the next prefill chunk."""
    floor: int = 0
    """The least limit with which it runs, without a row; 0: it has no limit."""
    least: int = 0
    """The least limit with which its rows run on; at least `floor`."""
    kept: int = 0
    """The least limit with which it keeps its prefixes, too; at least `least`."""
    asked: int = 0
    """The limit of the last SetMemoryLimit, or the one that it was loaded with."""


class StepCosts(WireStruct, frozen=True):
    """Seconds, as the engine has fitted them to its latest steps (`engine/pace.py`); 0: not measured, or part
    of another cost."""

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

    steps: int = 0
    """Steps that verified drafts."""
    saved_seconds: float = 0.0
    """What steps without drafts would have taken for the same tokens, less what these took."""
    sources: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Drafted tokens by source (`engine/drafts/speculation.py`): proposed, and accepted."""


class Counters(WireStruct, frozen=True):
    """Totals since the engine process started (they only grow), and current gauges."""

    steps: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    busy_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    kv_bytes: int = 0
    preemptions: int = 0
    re_prefilled_tokens: int = 0
    """Part of `prefilled_tokens`: computed again after a preemption."""
    cache: CacheCounters = CacheCounters()
    model_seconds: float = 0.0
    """Part of `busy_seconds`: in mlx-lm's step, which computes the model and waits for its results."""
    between_seconds: float = 0.0
    """Seconds outside steps, while rows waited for the next one."""
    memory: DeviceMemory = DeviceMemory()
    preempted: int = 0
    """Part of `waiting`: preempted requests."""
    row_tokens: int = 0
    """Tokens of running rows; shared ones count once per row."""
    shared_row_tokens: int = 0
    """Part of `row_tokens`: read from the prefix cache without a copy."""
    guard: MemoryState = MemoryState()
    chunk_ceiling: int = 0
    """The ceiling of a step's prompt tokens, as far as it has climbed since a device timeout."""
    costs: StepCosts = StepCosts()
    drafts: DraftCounters = DraftCounters()
