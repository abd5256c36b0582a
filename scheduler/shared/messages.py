"""Every message between the two processes, and the protocol version.

Plain data, msgpack arrays on the wire; a prompt's ids are one binary value (`framing.py`). The field order is
the format: append, never reorder, and raise PROTOCOL_VERSION with any change. Both processes come from one
installation, so a mismatch means a broken deployment; the handshake rejects it by name. No message stops the
engine: end of file does.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from scheduler.shared.counters import CacheCounters as CacheCounters
from scheduler.shared.counters import Counters as Counters
from scheduler.shared.counters import DeviceMemory as DeviceMemory
from scheduler.shared.counters import DiskCounters as DiskCounters
from scheduler.shared.counters import MemoryState as MemoryState
from scheduler.shared.counters import StepCosts as StepCosts
from scheduler.shared.pooling import Pooler
from scheduler.shared.reports import CacheReport
from scheduler.shared.token_ids import TokenIds
from scheduler.shared.waits import WaitOut as WaitOut
from scheduler.shared.waits import WaitReason as WaitReason
from scheduler.shared.wire_struct import WireStruct

PROTOCOL_VERSION = 36
MAX_TOP_LOGPROBS = 20
"""Most alternatives per token that a request may ask for (OpenAI's bound)."""
MAX_KIND_CHARACTERS = 128
MAX_GRAMMAR_BYTES = 256 << 10
"""Bound on one request's grammar. Agents' tools together come to about 100 KB; 290 KB of properties alone
took the library 3 s."""


class ScriptedPlan(WireStruct, frozen=True):
    """How the scripted back end behaves; by default it takes no time and never stops an answer by itself."""

    step_seconds: float = 0.0
    prefill_tokens_per_step: int = 512
    vocabulary: int = 8192
    stop_after: int = 0
    """The position at which a request's first stop token is emitted; 0: never."""


class AdapterSource(WireStruct, frozen=True):
    """A LoRA adapter: where its folder is, and the fingerprint of its files, by which requests name it."""

    name: str
    folder: str
    key: str


class GrammarTokenizer(WireStruct, frozen=True):
    """The model's tokenizer, for its grammars. The server has read it; an engine would import `transformers`
    to read it again, which takes longer than the rest of its start."""

    json: bytes
    """Its `tokenizer.json`, compressed by zlib: 10 to 30 MB of text, of which a quarter remains."""
    eos_token_ids: tuple[int, ...]
    """The tokenizer's own end tokens; the model's configuration may name others."""

    def __repr__(self) -> str:
        return f"GrammarTokenizer({len(self.json)} bytes, eos_token_ids={self.eos_token_ids})"


Float32: TypeAlias = Literal["float32", "tf32"]


class EngineConfig(WireStruct, frozen=True):
    """What engines load and how they run: the part of Load that stays over their lives."""

    backend: Literal["mlx", "scripted"]
    model_folder: str
    max_slots: int = 32
    prefill_chunk_tokens: int = 512
    prefill_rows: int = 8
    weights_dtype: WeightsDtype = "auto"
    scripted: ScriptedPlan = ScriptedPlan()
    kv_cache_bytes: int = -1
    """Bytes for the prefix cache and running rows together. 0: no prefix cache; -1: what the device
    allows."""
    kv_disk: str = ""
    """Folder of the disk tier; empty without one."""
    kv_disk_bytes: int = 32 << 30
    """Bytes on disk that each engine may use."""
    itl_target_ms: float = 0.0
    """Target inter-token latency while prefills run; 0: in proportion to the decode steps."""
    load_check: Literal["auto", "off"] = "auto"
    """Whether to check at load which ways of batching (drafts, padded chunks, shared prefixes, several rows)
    give the model's right tokens."""
    cache_folder: str = ""
    """Folder in which verdicts of that check and digests of weights are kept between starts; empty for
    none."""
    memory_limit: float = 0.0
    """Limit on all that the engines may use: bytes, or up to 1 a share of the device's memory; 0 for the
    default."""
    sharers: int = 1
    """Engines that use the memory of one device: each gets an equal part."""
    adapters: tuple[AdapterSource, ...] = ()
    """LoRA adapters to load with the model."""
    pooler: Pooler | None = None
    """Set for an embedder: each Submit asks for a vector, and no token is computed. None if the model writes
    tokens."""
    model: str = ""
    """What the operator named, a folder or a hub id, where `model_folder` is another machine's."""
    fingerprint: str = ""
    """Fingerprint of the model that it must be (`engine/join/model_source.py`); empty if `model_folder` is
    this machine's."""
    speculation: Literal["auto", "none"] = "auto"
    """Whether rows verify drafts where that is expected to save time."""
    kv_cache_dtype: KvCacheDtype = "auto"
    tokenizer: GrammarTokenizer | None = None
    """The tokenizer for grammars. With None, requests with a grammar are refused."""
    max_model_len: int | None = None
    """The operator's context in tokens, by which longrope models choose their factors; None for the model's
    own."""
    yields: bool = False
    """Whether to yield the processor to the engines of chats."""


class MemoryPart(WireStruct, frozen=True):
    """An engine's part of the memory that several models share, for the life of its process."""

    limit_bytes: int = 0
    whole_bytes: int = 0
    """What all may use together. 0: no other engine lives; it finds that out, and takes its part of it
    (`engine/budget/limits.py`)."""
    sharers: int = 1
    """Engines that share what the system can still give; of this model alone, if `whole_bytes` is 0."""
    beside: tuple[tuple[int, int], ...] = ()
    """The least bytes of each model that is not loaded, on a CPU and elsewhere, in the order in which room is
    left for them."""


class Load(EngineConfig, frozen=True, tag="load"):
    """The first message to the engine: what to run, and within which bounds. `kv_disk`, `adapters` and its
    part of the memory are this engine's own. Answered by Loading messages, then Ready or Fault."""

    version: int = PROTOCOL_VERSION
    kv_cache_share: float = 1.0
    """Share of `kv_cache_bytes` to use: below 1 after an engine ran out of memory."""
    chunk_ceiling: int = 0
    """Ceiling of a step's prompt tokens: below `prefill_chunk_tokens` after a device timeout; 0 if it is no
    lower."""
    climb_chunks: int = 1
    """After this many chunks of its full size the ceiling rises by a quarter."""
    memory_part: MemoryPart | None = None
    """This engine's part of the memory of several models, or None for one model, which has all of it."""


class Sampling(WireStruct, frozen=True):
    """Sampling parameters. `temperature` 0 is greedy, and then the cut-offs have no effect.

    The temperature comes before the cut-offs, of which each looks at all tokens.
    `repetition_penalty` counts prompt and output, the presence and frequency penalties count output only, as
    vLLM does.
    `seed` is never absent: a request without one gets one at admission, so that its tokens can be computed
    again.
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


class ThinkingBudget(WireStruct, frozen=True):
    """How many tokens an answer may reason for, and the token ids of the marks around reasoning.

    What it does to an answer is a function of these fields and the answer's ids so far
    (`scheduler/shared/thinking.py`).
    """

    tokens: int | None
    """The most tokens between opening and end marks, all reasoning of the answer together, or None if
    unlimited."""
    start: tuple[int, ...]
    end: tuple[int, ...]
    """What is forced when the budget is spent."""
    opens: bool = False
    """Whether the prompt has opened reasoning."""
    anywhere: bool = False
    """Whether reasoning may begin in the middle of a text. Otherwise it begins only where the answer so far,
    or since the last reasoning, is `blanks` or nothing."""
    call_start: tuple[int, ...] = ()
    call_end: tuple[int, ...] = ()
    """The marks of a tool call: a whole one within reasoning ends it. Empty: nothing is a call, or calls have
    no end mark."""
    blanks: tuple[int, ...] = ()
    """Tokens of white space only."""
    held: int = 0
    """The position in `start` of the token that is masked where no further reasoning may begin: the first one
    that other marks do not have there."""


class Submit(WireStruct, frozen=True, tag="submit"):
    """One accepted request. The server assigns ids, which count up and are never reused."""

    request_id: int
    prompt: TokenIds
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    salt: str = ""
    """Only requests with equal salts share prefixes."""
    session: str | None = None
    system_tokens: int = 0
    """Length of the system prompt; 0: there is none."""
    boundaries: tuple[int, ...] = ()
    """Positions where messages begin and end: other prompts are likely to diverge there."""
    done_tokens: int = 0
    """This many last tokens of `prompt` are the answer so far, which a resumed request continues unchanged.
    `max_tokens` and `min_tokens` count them."""
    top_logprobs: int | None = None
    """Log-probabilities: None for none, N for those of its tokens and of the N likeliest alternatives."""
    min_tokens: int = 0
    """No stop token before this many tokens, unless the grammar allows no other token."""
    grammar: str = ""
    """llguidance grammar of the whole answer, from its first token; empty without one. At most
    MAX_GRAMMAR_BYTES, which the server checks."""
    thinking: ThinkingBudget | None = None
    """The thinking budget, or None if reasoning is unlimited."""
    prompt_logprobs: int | None = None
    """Log-probabilities of the prompt: None for none, N for those of its tokens and of the N likeliest
    alternatives, in PromptLogprobsOut, all of them before or with the first token. The prompt is then
    computed as a whole, without a prefix hit."""
    adapter: str = ""
    """The key of its LoRA adapter; empty without one. Prefixes are shared only with requests of the same
    one."""
    dimensions: int | None = None
    """Set if the request asks for the prompt's vector: its first `dimensions` numbers, or all of them for 0.
    It comes with Retired. None if it asks for tokens."""
    labels: tuple[int, ...] = ()
    """Set if the request asks how likely each of these tokens is behind the prompt: the natural logarithms of
    the model's own probabilities come with Retired, behind them that of the sum by which they are
    probabilities, and no token is generated."""
    holds: tuple[tuple[int, float], ...] = ()
    """Prefixes of the prompt to keep, as far as the budget allows: a length in tokens, and for how many
    seconds after the request's end."""


class TurnEnded(WireStruct, frozen=True, tag="turn_ended"):
    """A session's answer is over, and its client does what comes next. It has no reply."""

    salt: str
    adapter: str
    """The adapter, as in Submit."""
    session: str
    kind: str
    """What the session waits for: the names of the tools that the answer called, or why it ended. At most
    MAX_KIND_CHARACTERS."""


class Cancel(WireStruct, frozen=True, tag="cancel"):
    """Stop this request. It has no reply: each Submit gets exactly one Retired, which may already be on its
    way."""

    request_id: int


class Inspect(WireStruct, frozen=True, tag="inspect"):
    """Report the content of the prefix cache; with `clear`, after evicting what no row uses. Answered by one
    Inspection with the same `query`."""

    query: int
    clear: bool = False
    top: int = 10
    head_tokens: int = 0
    """How many first token ids of a shared prefix to report; 0 reports nothing of any prompt."""


class Pulse(WireStruct, frozen=True, tag="pulse"):
    """Tell the processor time that was used. Answered by one Alive, also in the middle of a step."""


class Loading(WireStruct, frozen=True, tag="loading"):
    """A stage of loading, for the operator."""

    stage: str


class Ready(WireStruct, frozen=True, tag="ready"):
    """The engine can take requests."""

    version: int
    device: str
    model_type: str
    vocabulary: int
    kv_bytes_per_token: int
    weights_bytes: int
    weights_dtype: str
    fallbacks: tuple[str, ...] = ()
    """What the model runs with because of the check at load (`Fallback` in `engine/mlx/batching.py`)."""
    memory_limit_bytes: int = 0
    """The limit that follows from the option, the device and the machine; 0 if none is known."""
    memory_floor_bytes: int = 0
    """The least limit with which it runs, without a row; 0 if there is none."""
    refused_adapters: tuple[tuple[str, str], ...] = ()
    """Keys of those in Load that could not be loaded, and why: a sentence for the operator."""
    fingerprint: str = ""
    """The fingerprint of Load: this model is loaded."""
    host: str = ""
    """The engine's machine, as it names itself."""
    float32: Float32 = "float32"
    """What products of float32 numbers are computed in. "tf32" has 10 bits of mantissa, where the device has
    it."""
    verifies: bool = False
    """Whether it verifies drafts: the model can take tokens back, and the operator has not turned it off."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """What keys and values are packed into; "auto" also if the model's cannot be packed."""
    memory_whole_bytes: int = 0
    """What the engines of all models may use together; 0 if one model has all of it."""
    most_prompt_tokens: int = 0
    """The longest prompt for which the KV budget may ever have room; 0 if nothing bounds it."""


class LogprobsOut(WireStruct, frozen=True):
    """Natural logarithms of the model's own probabilities (no temperature, no penalty): of the chosen token,
    and of the likeliest tokens with their ids, best first. None is below -9999."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class TokenOut(WireStruct, frozen=True):
    """One token of one row in one step; `logprobs` if its request asked for them."""

    request_id: int
    token: int
    logprobs: LogprobsOut | None = None


class PrefillOut(WireStruct, frozen=True):
    """`done` of `total` prompt tokens of this request are in its KV cache, `cached` of them by a prefix hit
    or computed for another request."""

    request_id: int
    done: int
    total: int
    cached: int = 0


class PromptLogprobsOut(WireStruct, frozen=True):
    """Log-probabilities of a request's prompt tokens from position `start` on. They come in order, from
    position 1 (nothing comes before the first token), and once: a preempted request continues where it
    was."""

    request_id: int
    start: int
    entries: list[LogprobsOut]


KvCacheDtype: TypeAlias = Literal["auto", "q8", "k8v4", "q4"]
"""In what layers that can be cut keep their keys and values: as the model computes them, or packed."""
WeightsDtype: TypeAlias = Literal["auto", "stored", "packed", "float32", "bfloat16", "float16"]
"""Type of the weights in memory. "packed": quantised weights stay as they are, all else is float32."""
RetireReason: TypeAlias = Literal["stop", "length", "cancelled", "refused", "failed", "pooled", "grammar"]


class Retired(WireStruct, frozen=True):
    """The engine's last message of a request: it holds nothing of it any more.

    "stop": its last token is one of its stop tokens. "refused": it could never run (`detail` is for the
    client). "failed": it failed by itself (`detail` is the reason). "pooled": `vector` is its answer, a
    prompt's vector or its labels' log-probabilities. "grammar": its grammar met a limit, or allows nothing
    (`detail` is for the client).
    """

    request_id: int
    reason: RetireReason
    detail: str = ""
    vector: bytes = b""
    """float32, little-endian."""
    hold_refusal: str = ""
    """Why a hold of its Submit is not kept, a sentence for the operator; empty if all are, or if there is
    none."""
    most_tokens: int = 0
    """The longest prompt that is not refused, if this one was for its length; else 0."""


class Inspection(WireStruct, frozen=True, tag="inspection"):
    """The reply to an Inspect. `cache` is None without a prefix cache."""

    query: int
    freed_bytes: int
    cache: CacheReport | None
    disk: DiskCounters | None = None
    steps: int = 0
    """Steps since this engine started."""


class StepOutput(WireStruct, frozen=True, tag="step"):
    """The output of one step, for all slots."""

    tokens: list[TokenOut]
    prefills: list[PrefillOut]
    retired: list[Retired]
    counters: Counters
    prompt_logprobs: list[PromptLogprobsOut] = msgspec.field(default_factory=list)
    waits: list[WaitOut] = msgspec.field(default_factory=list)


StepWork: TypeAlias = Literal["reading", "decode", "decode and prefill", "prefill"]
"""What an engine does: it reads and prepares requests, or computes a step. Prefill chunks are large while no
row decodes, and small otherwise."""


class Begun(WireStruct, frozen=True, tag="begun"):
    """What the engine does from now on, until its next message of this kind. It is sent before requests are
    read, before each step with prefill, and before a step of other rows than the last one's."""

    work: StepWork
    requests: tuple[int, ...]
    """Those that are read, or that the step computes or admits, and those that are being prepared
    meanwhile: if the engine dies now, it was one of these, or none."""
    context_tokens: int = 0
    """Prompt and answer of the step's longest row."""
    prefill_tokens: int = 0
    """Prompt tokens that the step computes, without padding."""


class Alive(WireStruct, frozen=True, tag="alive"):
    """The reply to a Pulse, at any time: also in the middle of a step."""

    cpu_seconds: float
    """Processor time of the engine's process, all of its threads together, and the time that they waited for
    a core: a busy machine may leave it none."""


class Fault(WireStruct, frozen=True, tag="fault"):
    """The engine cannot continue and is about to exit."""

    error: str
    """One line."""
    stack: str = ""
    """The traceback of a load that failed; of any other fault it is on stderr."""


ToEngine: TypeAlias = Load | Submit | TurnEnded | Cancel | Inspect | Pulse
FromEngine: TypeAlias = Loading | Ready | Begun | StepOutput | Inspection | Alive | Fault
