"""A back end without a model: each token is arithmetic on the prompt and the position.

For tests and load tests of everything around the model, with steps of a chosen length (`ScriptedPlan`). It
keeps the same contract as `mlx/backend.py`.
"""

from __future__ import annotations

import math
import struct
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from scheduler.engine.backend import (
    BackendFacts,
    Cache,
    StepResult,
    changed,
    check_logprobs,
    loaded_adapters,
    take_holds,
)
from scheduler.engine.budget.limits import MemoryLimit, MemoryTooSmall, divided
from scheduler.engine.budget.policy import keep_to
from scheduler.engine.device import Device, Readings, SystemMemory, Traits
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.prefill import Chunk, PrefillLimits
from scheduler.engine.prefix.nodes import Lease, Snapshot
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.adapter_files import check_unchanged, read_config
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    AdapterSource,
    DeviceMemory,
    LogprobsOut,
    MemoryPart,
    PrefillOut,
    PromptLogprobsOut,
    Ready,
    Retired,
    ScriptedPlan,
    Submit,
    TokenOut,
)
from scheduler.shared.row_bytes import RowBytes
from scheduler.shared.thinking import ThinkingLimit, check_marks

KV_BYTES_PER_TOKEN = 64
_DEFAULT_KV_CACHE_BYTES = 64 << 20
_DEVICE_BYTES = 128 << 20
_FIRST_TOKEN = 256
"""Ids below are single bytes in our tokenizers; above them any sequence is readable text."""
_SPECIAL_TOKENS = 64
_DIMENSIONS = 16
"""Dimensions of a vector."""


@dataclass(frozen=True, slots=True)
class ScriptedRun:
    """A cached run: only its number of tokens."""

    tokens: int

    @property
    def nbytes(self) -> int:
        return KV_BYTES_PER_TOKEN * self.tokens

    def split(self, at: int) -> tuple[ScriptedRun, ScriptedRun]:
        return ScriptedRun(at), ScriptedRun(self.tokens - at)


class ScriptedDevice:
    """Readings of a device without limits, whose memory is what the back end holds."""

    def __init__(self, held_bytes: Callable[[], int]) -> None:
        self._held_bytes = held_bytes
        self._peak_bytes = 0

    def memory(self) -> DeviceMemory:
        active = self._held_bytes()
        self._peak_bytes = max(self._peak_bytes, active)
        return DeviceMemory(active, 0, self._peak_bytes, _DEVICE_BYTES)

    def system(self) -> SystemMemory:
        return SystemMemory()

    def restart_peak(self, host: bool = False) -> None:
        self._peak_bytes = 0

    def transient_bytes(self) -> int:
        return 0


@dataclass(slots=True)
class _Row:
    sequence: EngineSequence
    lease: Lease[ScriptedRun, Snapshot] | None
    prompt_digest: int
    thinking: ThinkingLimit | None


class ScriptedBackend:
    """`sleep` passes a step's time; the in-process tests pass one that does not wait."""

    def __init__(
        self,
        plan: ScriptedPlan,
        sleep: Callable[[float], None] = time.sleep,
        kv_cache_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        kv_cache_share: float = 1.0,
        device: Device | None = None,
        memory_limit_bytes: int = 0,
        memory_part: MemoryPart | None = None,
        adapters: Sequence[AdapterSource] = (),
    ) -> None:
        self._plan = plan
        self._sleep = sleep
        whole_bytes = _DEFAULT_KV_CACHE_BYTES if kv_cache_bytes < 0 else kv_cache_bytes
        # Its process, which computes nothing, does not count: limits may be as small as a test likes.
        limit = MemoryLimit(
            memory_limit_bytes,
            kv_bytes=whole_bytes,
            share=kv_cache_share,
            process_bytes=0,
            least_kv_bytes=KV_BYTES_PER_TOKEN,
        )
        if memory_part is not None:
            sharers, least_bytes = memory_part.sharers, limit.least_bytes
            limit_bytes, of_all, _ = divided(
                memory_limit_bytes // sharers, memory_part, sharers, least_bytes, on_cpu=True
            )
            if of_all and limit_bytes < least_bytes:
                raise MemoryTooSmall(f"it needs {least_bytes} bytes, and its part is {limit_bytes}")
            limit = replace(limit, limit_bytes=limit_bytes, whole_bytes=of_all)
        self._memory_limit = limit
        budget_bytes = self._memory_limit.kv_budget_bytes(self._memory_limit.first_peak_bytes)
        self._prefixes: PrefixCache[ScriptedRun, Snapshot] | None = None
        if budget_bytes:
            self._prefixes = PrefixCache(budget_bytes, KV_BYTES_PER_TOKEN, False, clock)
        self._rows: dict[int, _Row] = {}
        self._adapters: set[str] = set()
        self._refused_adapters = loaded_adapters(adapters, self._load_adapter)
        self._limited = device
        self._device: Readings = device or ScriptedDevice(self._held_bytes)
        self._facts = BackendFacts(
            RowBytes(KV_BYTES_PER_TOKEN),
            PrefillLimits(rows=1 << 20, chunk_tokens=plan.prefill_tokens_per_step),
            "never" if self._prefixes is None else "anywhere",
            self._memory_limit,
            Traits("cpu") if device is None else device.traits,
            verified_tokens=1024,
            group_cost_tokens=0,
        )

    @property
    def facts(self) -> BackendFacts:
        return self._facts

    @property
    def cache(self) -> Cache | None:
        return None if self._prefixes is None else Cache(self._prefixes)

    def describe(self) -> Ready:
        return Ready(
            version=PROTOCOL_VERSION,
            device="scripted",
            model_type="scripted",
            vocabulary=self._plan.vocabulary,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            weights_bytes=0,
            weights_dtype="none",
            memory_limit_bytes=self._memory_limit.limit_bytes,
            memory_floor_bytes=self._memory_limit.least_bytes if self._memory_limit.limit_bytes else 0,
            refused_adapters=self._refused_adapters,
            memory_whole_bytes=self._memory_limit.whole_bytes,
        )

    def check(self, sequence: EngineSequence) -> None:
        submit, tokens = sequence.submit, sequence.tokens
        if not tokens:
            raise RequestRefused("the prompt is empty")
        if submit.max_tokens < 1:
            raise RequestRefused(f"max_tokens must be at least 1, not {submit.max_tokens}")
        check_logprobs(submit)
        if max(tokens) >= self._plan.vocabulary:
            raise RequestRefused(f"a token id is outside the vocabulary of {self._plan.vocabulary}")
        if submit.adapter and submit.adapter not in self._adapters:
            raise RequestRefused("its adapter is not loaded")
        check_marks(submit.thinking, self._plan.vocabulary)
        if submit.grammar:
            # Its tokens are arithmetic, and no vocabulary maps them to text.
            raise RequestRefused("the scripted engine does not support grammars")

    def preparing(self, sequence: EngineSequence) -> bool:
        return False

    def execute(self, plan: StepPlan) -> StepResult:
        for request_id in plan.release:
            self._remove(request_id)
        if plan.budget is not None and self._limited is not None:
            keep_to(self._limited, plan.budget)
        freed = 0 if self._prefixes is None else changed(self._prefixes, plan)
        for request_id in plan.preempt:
            self._remove(request_id)
        for kept in plan.keep:
            self._keep(self._rows[kept.request_id], kept.tokens)
        refused: list[tuple[int, str]] = []
        for admit in plan.admit:
            try:
                self._admit(admit.sequence)
            except RequestRefused as refusal:
                refused.append((admit.sequence.request_id, str(refusal)))
        evicted = 0
        if plan.evict is not None and self._prefixes is not None:
            evicted = self._prefixes.evict(plan.evict.nbytes)
            if evicted and plan.evict.clear_pool and self._limited is not None:
                self._limited.clear_pool()
        result = StepResult()
        if plan.computes and self._rows:
            result = self._step(plan)
        return replace(
            result,
            refused=tuple(refused),
            freed_bytes=freed,
            evicted_bytes=evicted,
            kv_bytes=self._kv_bytes(),
        )

    def _load_adapter(self, source: AdapterSource) -> None:
        """Raise AdapterRefused."""
        read_config(Path(source.folder))
        check_unchanged(Path(source.folder), source.key)
        self._adapters.add(source.key)

    def _admit(self, sequence: EngineSequence) -> None:
        lease = None
        if self._prefixes is not None and not sequence.unscored:
            submit = sequence.submit
            lease = self._prefixes.match_and_lease(sequence.known, submit.system_tokens, submit.session)
        budget = sequence.submit.thinking
        limit = None if budget is None else ThinkingLimit(budget, sequence.answer())
        answers = digest(sequence.prompt(), sequence.submit.adapter)
        self._rows[sequence.request_id] = _Row(sequence, lease, answers, limit)
        known = 0 if lease is None else lease.length
        sequence.computed_tokens = sequence.cached_tokens = sequence.in_place_tokens = known

    def background(self, idle: bool) -> bool:
        return False

    def _keep(self, row: _Row, tokens: int, session: str | None = None) -> None:
        if self._prefixes is not None and tokens:
            self._prefixes.insert(
                row.sequence.known, lambda start, end: ScriptedRun(end - start), session, end=tokens
            )

    def _remove(self, request_id: int) -> None:
        self._keep(self._rows[request_id], self._rows[request_id].sequence.prefilled_tokens)
        self._forget(request_id)

    def _forget(self, request_id: int) -> None:
        row = self._rows.pop(request_id)
        if self._prefixes is not None and row.lease is not None:
            self._prefixes.release(row.lease)

    def _step(self, plan: StepPlan) -> StepResult:
        if self._plan.step_seconds:
            self._sleep(self._plan.step_seconds)
        chunks = [chunk for chunk in plan.chunks if chunk.request_id in self._rows]
        drafts = {draft.request_id: draft.tokens for draft in plan.drafts}
        started = {
            chunk.request_id: self._rows[chunk.request_id].sequence.computed_tokens for chunk in chunks
        }
        prefills = [self._prefill(chunk) for chunk in chunks]
        scored = [self._scores(request_id, start) for request_id, start in started.items()]
        decoding = [row for row in self._rows.values() if not row.sequence.chunkable_tokens]
        prefills += [self._begin(row.sequence) for row in decoding if row.sequence.prefilling]
        pooled = [self._pooled(row) for row in decoding if _gives_numbers(row.sequence.submit)]
        decoding = [row for row in decoding if not _gives_numbers(row.sequence.submit)]
        written = [self._written(row, drafts.get(row.sequence.request_id, ())) for row in decoding]
        tokens = [token for each in written for token in each]
        ends = [self._ended(row, each[-1].token) for row, each in zip(decoding, written, strict=True)]
        retired = [*pooled, *(end for end in ends if end is not None)]
        ended = [self._rows[end.request_id] for end in retired]
        for row in ended:
            self._keep(row, len(row.sequence.tokens), row.sequence.submit.session)
            self._forget(row.sequence.request_id)
        if self._prefixes is not None:
            self._prefixes.set_running_bytes(self._kv_bytes())
        for at, row in enumerate(ended):
            take_holds(self._prefixes, row.sequence)
            retired[at] = msgspec.structs.replace(retired[at], hold_refusal=row.sequence.hold_refusal)
        seconds = self._plan.step_seconds
        computed = sum(chunk.tokens for chunk in chunks)
        prefill_seconds = seconds / (2 if tokens else 1) if computed else 0.0
        prompt_logprobs = [scores for scores in scored if scores is not None]
        return StepResult(
            tokens, retired, prefills, computed, len(decoding), prefill_seconds, prompt_logprobs
        )

    @staticmethod
    def _pooled(row: _Row) -> Retired:
        submit = row.sequence.submit
        if submit.labels:
            vector = scripted_labels(row.prompt_digest, len(submit.labels))
        else:
            vector = scripted_vector(row.prompt_digest, submit.dimensions or 0)
        return Retired(submit.request_id, "pooled", vector=vector)

    def _scores(self, request_id: int, start: int) -> PromptLogprobsOut | None:
        """Return the scores of the prompt tokens computed from `start` on, where they are asked for."""
        sequence = self._rows[request_id].sequence
        if not (positions := sequence.score(start, sequence.computed_tokens)):
            return None
        top, vocabulary = sequence.submit.prompt_logprobs or 0, self._plan.vocabulary
        entries = [scripted_logprobs(sequence.tokens[at], at, top, vocabulary) for at in positions]
        return PromptLogprobsOut(request_id, positions.start, entries)

    def _prefill(self, chunk: Chunk) -> PrefillOut:
        sequence = self._rows[chunk.request_id].sequence
        sequence.computed_tokens += min(chunk.tokens, sequence.chunkable_tokens)
        return sequence.progress()

    def _begin(self, sequence: EngineSequence) -> PrefillOut:
        """Compute the prompt's last token, with the rows that decode."""
        sequence.computed_tokens += 1
        return sequence.progress()

    def _written(self, row: _Row, drafts: Sequence[int]) -> list[TokenOut]:
        """Return the row's next token, and those behind its drafts as far as these are its tokens."""
        written = [self._decode(row)]
        for draft in drafts:
            if written[-1].token != draft or self._ended(row, draft) is not None:
                break
            written.append(self._decode(row))
        return written

    def _decode(self, row: _Row) -> TokenOut:
        sequence = row.sequence
        token = self._allowed(row, self._next_token(row))
        out = TokenOut(sequence.request_id, token, self._logprobs(row, token))
        sequence.tokens.append(token)
        sequence.computed_tokens = len(sequence.tokens)
        return out

    def _next_token(self, row: _Row) -> int:
        submit, generated = row.sequence.submit, row.sequence.generated_tokens
        stops, may_end = submit.stop_token_ids, generated >= submit.min_tokens
        if stops and may_end and self._plan.stop_after and generated + 1 >= self._plan.stop_after:
            return stops[0]
        token = scripted_token(row.prompt_digest, generated, self._plan.vocabulary)
        while token in stops and not may_end:
            token = (token + 1) % self._plan.vocabulary
        return token

    def _allowed(self, row: _Row, token: int) -> int:
        """Return what the thinking budget makes of `token`."""
        if (limit := row.thinking) is None:
            return token
        held = limit.held(0)
        if limit.forced is not None:
            token = limit.forced
        elif held is not None and token == held.token:
            token = (token + 1) % self._plan.vocabulary
        limit.accept(token)
        return token

    def _logprobs(self, row: _Row, token: int) -> LogprobsOut | None:
        top = row.sequence.submit.top_logprobs
        if top is None:
            return None
        return scripted_logprobs(token, row.sequence.generated_tokens, top, self._plan.vocabulary)

    def _ended(self, row: _Row, token: int) -> Retired | None:
        sequence = row.sequence
        if token in sequence.submit.stop_token_ids:
            return Retired(sequence.request_id, "stop")
        if sequence.generated_tokens >= sequence.submit.max_tokens:
            return Retired(sequence.request_id, "length")
        return None

    def _kv_bytes(self) -> int:
        rows = [row.sequence for row in self._rows.values()]
        return KV_BYTES_PER_TOKEN * sum(row.computed_tokens - row.in_place_tokens for row in rows)

    def _held_bytes(self) -> int:
        """Return bytes of rows and cached prefixes."""
        return self._kv_bytes() + (0 if self._prefixes is None else self._prefixes.nbytes)

    @property
    def device(self) -> Readings:
        return self._device


def _gives_numbers(submit: Submit) -> bool:
    return submit.dimensions is not None or bool(submit.labels)


def scripted_token(prompt_digest: int, position: int, vocabulary: int) -> int:
    """Return the token at `position` (from 0) of the answer to a prompt with this digest."""
    span = max(1, vocabulary - _FIRST_TOKEN - _SPECIAL_TOKENS)
    return _FIRST_TOKEN + (prompt_digest + position * 2654435761 // 7) % span


def scripted_logprobs(token: int, position: int, top: int, vocabulary: int) -> LogprobsOut:
    """Return log-probabilities: the likeliest token has half of all probability, the next one half of the
    rest, and so on; which of the first four `token` is depends on its position, and their ids are
    consecutive."""
    rank = position % 4
    best = [((token - rank + i) % vocabulary, -math.log(2.0) * (i + 1)) for i in range(max(top, 4))]
    return LogprobsOut(best[rank][1], tuple(best[:top]))


def scripted_vector(prompt_digest: int, dimensions: int) -> bytes:
    """Return the vector of a prompt with this digest: numbers of 0 to 1."""
    size = dimensions or _DIMENSIONS
    return struct.pack(
        f"<{size}f", *(math.fmod(prompt_digest * 0.6180339887 * (at + 1), 1.0) for at in range(size))
    )


def scripted_labels(prompt_digest: int, labels: int) -> bytes:
    """Return log-probabilities of labels: one of them has half of all probability, the others 0.4 together;
    which one depends on the digest. The sum that made them is 1."""
    best, rest = prompt_digest % labels, 0.4 / max(1, labels - 1)
    return struct.pack(f"<{labels + 1}f", *(math.log(0.5 if at == best else rest) for at in range(labels)), 0)


def digest(prompt: Sequence[int], adapter: str = "") -> int:
    """Return a prompt's digest. `adapter`: the key of its LoRA adapter, which changes every answer."""
    return zlib.crc32(array("I", prompt).tobytes() + adapter.encode())
