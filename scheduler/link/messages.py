"""Every type that crosses between the two processes, and the version of their shape.

Plain data, msgpack arrays on the wire (field order is the format: append, never reorder, and raise
PROTOCOL_VERSION with any change). Both processes come from one installation, so a mismatch means a
broken deployment; the handshake refuses it by name. No message stops the engine: end of file does.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

PROTOCOL_VERSION = 8
MAX_TOP_LOGPROBS = 20
"""As many of the likeliest tokens in a token's place as a request may ask for (OpenAI's bound)."""
MAX_GRAMMAR_BYTES = 256 << 10
"""Of one request's grammar. Agents' tools together come to some 100 KB; 290 KB of nothing but properties took
the library 3 s."""


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Acyclic plain data, so the garbage collector need not look at the thousands made a second."""


class ScriptedPlan(_Message, frozen=True):
    """How the scripted back end behaves; by default it takes no time and never stops an answer by itself."""

    step_seconds: float = 0.0
    prefill_tokens_per_step: int = 512
    vocabulary: int = 8192
    stop_after: int = 0
    """The position at which a request's first stop token is emitted; 0: never."""


class Load(_Message, frozen=True, tag="load"):
    """First frame down: what to run. Answered by Loading..., then Ready or Fault."""

    version: int
    backend: Literal["mlx", "scripted"]
    model_folder: str
    max_slots: int
    prefill_chunk_tokens: int
    prefill_rows: int
    weights_dtype: Literal["auto", "stored", "float32", "bfloat16", "float16"]
    scripted: ScriptedPlan
    kv_cache_bytes: int = -1
    """For kept prefixes and running rows together; 0 keeps no prefixes, -1 takes what the device allows."""
    kv_disk: str = ""
    """Folder of the disk tier; empty: there is none."""
    kv_disk_bytes: int = 0
    itl_target_ms: float = 0.0
    """Longest step that prefill may make while others decode; 0: in proportion to their own steps."""
    kv_cache_share: float = 1.0
    """Of `kv_cache_bytes`, what may be used: less than all after an engine that ran out of memory."""


class Sampling(_Message, frozen=True):
    """How tokens are chosen. `temperature` 0 is greedy, and then the cut-offs have no effect.

    The cut-offs act as mlx-lm's samplers do (top-p, then min-p, then top-k, on the untempered
    distribution). `repetition_penalty` counts prompt and output, the presence and frequency
    penalties count output only, as vLLM does. `seed` is never absent: a request without one is
    given one at admission, so that its tokens can be computed again.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


class Submit(_Message, frozen=True, tag="submit"):
    """One accepted request. Ids are the parent's, count upwards and are never used again."""

    request_id: int
    prompt: list[int]
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    salt: str = ""
    """Prefixes are shared among equal salts only."""
    session: str | None = None
    system_tokens: int = 0
    """Where the system prompt ends; 0: there is none."""
    boundaries: tuple[int, ...] = ()
    """Positions at which another prompt is likely to leave this one: where messages begin and end."""
    done_tokens: int = 0
    """The last so many of `prompt` are the beginning of its answer, which goes on behind them: nothing of it
    changes. `max_tokens` and `min_tokens` count them."""
    top_logprobs: int | None = None
    """None: no log-probabilities; else its tokens' own, and those of so many of the likeliest instead."""
    min_tokens: int = 0
    """None of its first so many tokens is a stop token, but where its grammar allows no other."""
    grammar: str = ""
    """What the answer is held to, as llguidance writes grammars, from its first token on; empty: nothing. At
    most MAX_GRAMMAR_BYTES, which the parent sees to."""


class Cancel(_Message, frozen=True, tag="cancel"):
    """End this request. No answer of its own: each Submit gets exactly one Retired, and this one may
    have crossed it on the way."""

    request_id: int


class Inspect(_Message, frozen=True, tag="inspect"):
    """Tell what the prefix cache holds, after letting go of what is not in use if `clear`. Answered by one
    Inspection with the same `query`."""

    query: int
    clear: bool = False
    top: int = 10
    head_tokens: int = 0
    """How many of a trunk's first token ids to tell; 0 tells nothing of anyone's prompt."""


class Loading(_Message, frozen=True, tag="loading"):
    """A stage of loading, for the operator's eyes."""

    stage: str


class Ready(_Message, frozen=True, tag="ready"):
    """The engine can take requests."""

    version: int
    device: str
    model_type: str
    vocabulary: int
    kv_bytes_per_token: int
    weights_bytes: int
    weights_dtype: str


class LogprobsOut(_Message, frozen=True):
    """Natural logarithms of the model's own probabilities (no temperature, no penalty): of the token that was
    chosen, and of the likeliest with their ids, best first. None is below -9999."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class TokenOut(_Message, frozen=True):
    """One token of one row in one step; `logprobs` where its request asked for them."""

    request_id: int
    token: int
    logprobs: LogprobsOut | None = None


class PrefillOut(_Message, frozen=True):
    """`done` of `total` prompt tokens of this request are in its cache, `cached` of them from a prefix
    that was kept or was computed for another request."""

    request_id: int
    done: int
    total: int
    cached: int = 0


RetireReason: TypeAlias = Literal["stop", "length", "cancelled", "refused", "failed"]


class Retired(_Message, frozen=True):
    """The engine holds nothing of this request any more. The last that is heard of it.

    "stop": its last token is one of its stop tokens. "refused": it could never run (`detail` is for
    the client). "failed": something of its own broke (`detail` says what).
    """

    request_id: int
    reason: RetireReason
    detail: str = ""


class CacheCounters(_Message, frozen=True):
    """Totals of the prefix cache since the engine process started; `held_bytes` is of this moment."""

    query_tokens: int = 0
    hit_tokens: int = 0
    stored_tokens: int = 0
    evicted_budget_tokens: int = 0
    evicted_superseded_tokens: int = 0
    evicted_cleared_tokens: int = 0
    complaints: int = 0
    """What the integrity check found wrong, in all its runs."""
    held_bytes: int = 0
    disk_hit_tokens: int = 0
    """Tokens that came back from disk."""
    disk_reads: int = 0
    disk_writes: int = 0
    disk_dropped_writes: int = 0
    disk_errors: int = 0
    disk_bytes: int = 0
    held_tokens: int = 0
    """At this moment."""


class DeviceMemory(_Message, frozen=True):
    """What MLX's allocator holds at this moment, in bytes."""

    active: int = 0
    cached: int = 0
    """Freed by us and kept by MLX for the next array."""
    peak: int = 0
    """Most that was active at once, since the engine process started."""
    recommended: int = 0
    """What the device says that a process should not exceed; 0 where it says nothing (a CPU)."""


class Counters(_Message, frozen=True):
    """Totals since the engine process started (they only grow), and gauges of this moment."""

    steps: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    busy_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    kv_bytes: int = 0
    preemptions: int = 0
    re_prefilled_tokens: int = 0
    """Of `prefilled_tokens`: computed again after a preemption."""
    cache: CacheCounters = CacheCounters()
    model_seconds: float = 0.0
    """Of `busy_seconds`: in mlx-lm's own step, which computes the model and waits for its results."""
    between_seconds: float = 0.0
    """Outside of steps, with rows on board that waited for the next one."""
    memory: DeviceMemory = DeviceMemory()
    preempted: int = 0
    """Of `waiting`: those that ran and gave way."""
    row_tokens: int = 0
    """Of running rows, whoever else has them."""
    shared_row_tokens: int = 0
    """Of `row_tokens`: in the prefix cache, where the row attends to them."""


class PrefixReport(_Message, frozen=True):
    """A prefix that came back: its length, how many stored continuations stand on it, its hits."""

    tokens: int
    references: int
    hits: int
    head: list[int]


class CacheReport(_Message, frozen=True):
    """What the prefix cache holds, and totals since the engine started."""

    budget_bytes: int
    running_bytes: int
    nodes: int
    tokens: int
    snapshots: int
    segment_bytes: int
    snapshot_bytes: int
    key_bytes: int
    replaced_bytes: int
    leases: int
    query_tokens: int
    hit_tokens: int
    stored_tokens: int
    evicted_tokens: dict[str, int]
    trunks: list[PrefixReport]
    complaints: list[str]


class DiskReport(_Message, frozen=True):
    """The disk tier now, and totals since the engine started."""

    files: int
    nbytes: int
    pending_bytes: int
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int
    dropped_writes: int
    evicted_files: int
    errors: dict[str, int]
    hit_tokens: int


class SlotReport(_Message, frozen=True):
    """One running request, as the engine has it. `charged_bytes`: what it holds, with a reserve."""

    request_id: int
    prefilled_tokens: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    preemptions: int
    charged_bytes: int


class PlanReport(_Message, frozen=True):
    """What the engine's last step that computed was planned to do (`scheduler/engine/plan.py`)."""

    preempted: list[int]
    admitted: list[int]
    chunks: dict[str, int]
    """Prompt tokens by request id."""
    decoding: int
    reason: str
    """Why the step takes as long as it does."""
    predicted_seconds: float | None
    target_seconds: float | None
    """How long it may take, because others wait for a token; None: no token waits for it."""


class EngineReport(_Message, frozen=True):
    """What the engine is doing and how fast it has found itself to be."""

    slots: list[SlotReport]
    waiting: int
    decode_step_seconds: float | None
    prefill_tokens_per_second: dict[str, float]
    """By "chunk/context", each the lower end of its bucket."""
    steps: int
    plan: PlanReport | None = None


class Inspection(_Message, frozen=True, tag="inspection"):
    """The answer to an Inspect. `cache` is None where no prefixes are kept."""

    query: int
    freed_bytes: int
    cache: CacheReport | None
    disk: DiskReport | None = None
    engine: EngineReport | None = None


class StepOutput(_Message, frozen=True, tag="step"):
    """All that one step did, for all slots."""

    tokens: list[TokenOut]
    prefills: list[PrefillOut]
    retired: list[Retired]
    counters: Counters


class Fault(_Message, frozen=True, tag="fault"):
    """The engine cannot go on and is about to exit."""

    error: str


ToEngine: TypeAlias = Load | Submit | Cancel | Inspect
FromEngine: TypeAlias = Loading | Ready | StepOutput | Inspection | Fault
