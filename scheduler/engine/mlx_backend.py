"""The adapter to mlx-lm's BatchGenerator, written against 0.32.2; `rows/generation.py` is its subclass and
`rows/prefill_share.py` sets its chunk.

What we rely on there, each held by a test in `tests/mlx/test_upstream.py`:
- `insert_segments(...)` takes per-row `caches`, `all_tokens`, `samplers`, `stop_sequences`, and returns uids
  that count upwards; it keeps the very list of caches until the row joins, and calls the first row's `merge`;
- rows that join and leave keep what is theirs in every list of the batches;
- `prefill_step_size` and `prefill_batch_size` are read at each step;
- the parts that make a step, which `rows/generation.py` puts in another order: the prompt batch, its split,
  the rows that join it, `GenerationBatch.next`;
- `remove(uids)` works for rows in any stage; `prompt_cache_nbytes` is 0 when no row is left.

Metal and CUDA take the same path through this file; only the CPU build was run by us.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx_lm.generate import StopSequences
from mlx_lm.models.cache import ArraysCache, CacheList, make_prompt_cache

from scheduler.engine.backend import RequestRefused, Restorable, StepResult
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.grammars import Grammars
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.radix_tree import Lease, compact
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.row_sampling import RowSampling
from scheduler.engine.rows import shared_attention, swiglu
from scheduler.engine.rows.cache_layout import CacheLayout, RowState
from scheduler.engine.rows.cached_rows import CachedRow, CachedRows
from scheduler.engine.rows.generation import RowsGenerator
from scheduler.engine.rows.kv_segment import KvSegment
from scheduler.engine.rows.memory_budget import default_budget_bytes, machine_memory_bytes, recommended_bytes
from scheduler.engine.rows.prefill_share import PrefillShare
from scheduler.engine.rows.prefix_disk import PrefixDisk
from scheduler.engine.rows.row_sharing import GROUP_COST_TOKENS
from scheduler.engine.rows.sharing_check import shares_exactly
from scheduler.engine.sequence import Sequence
from scheduler.link.messages import (
    MAX_TOP_LOGPROBS,
    DeviceMemory,
    Load,
    PrefillOut,
    Ready,
    Retired,
    Submit,
    TokenOut,
)

shared_attention.take_over()
swiglu.take_over()

_PADDED_PREFILL_IS_EXACT = frozenset(
    {"falcon_h1", "granitemoehybrid", "lfm2", "mamba2", "qwen3_5", "qwen3_next", "recurrent_gemma"}
)
"""Model types with recurrent state that may prefill prompts of different lengths in one batch, each held
by a test. mlx-lm pads the shorter prompts, and in mamba, jamba, rwkv7 and nemotron_h the padding runs
through the state, so that answers change with the neighbours. Others take chunks of one length."""


@dataclass(slots=True)
class _Row:
    """One request in the batch: its two ids and its ties to the prefix cache."""

    uid: int
    request_id: int
    tokens: array[int]
    cached: CachedRow
    sampling: RowSampling


class MlxBackend:
    """A model and the BatchGenerator that runs it. Make it with `load`; one thread uses it."""

    def __init__(
        self,
        model: Any,
        load: Load,
        description: Ready,
        row_bytes: RowBytes,
        clock: Callable[[], float] = time.monotonic,
        tier: DiskTier | None = None,
        group_cost_tokens: int = GROUP_COST_TOKENS,
        grammars: Grammars | None = None,
    ) -> None:
        self._description = description
        self._row_bytes = row_bytes
        self._by_uid: dict[int, _Row] = {}
        self._by_request: dict[int, _Row] = {}
        self._grammars = grammars or Grammars(None)
        layout = CacheLayout(model)
        self._needs_state = layout.needs_state
        self._prefixes = _prefix_cache(layout, load, description, row_bytes, clock)
        in_place = self._prefixes is not None and shares_exactly(model)
        self._layout = layout
        self._rows = CachedRows(layout, self._prefixes, in_place, group_cost_tokens)
        self._regrouping = False
        self._recommended_bytes = recommended_bytes(mx.device_info())
        self._disk: PrefixDisk | None = None
        if tier is not None and self._prefixes is not None:
            self._disk = PrefixDisk(tier, self._prefixes, layout)
        self._share = PrefillShare(
            base_rows=min(load.prefill_rows, load.max_slots),
            chunk_tokens=load.prefill_chunk_tokens,
            padded=_padding_is_exact(model, description.model_type),
        )
        self._generator = RowsGenerator(
            model,
            completion_batch_size=load.max_slots,
            prefill_batch_size=self._share.base_rows,
            prefill_step_size=self._share.chunk_tokens,
        )

    def describe(self) -> Ready:
        return self._description

    @property
    def row_bytes(self) -> RowBytes:
        return self._row_bytes

    @property
    def prefixes(self) -> PrefixCache[KvSegment, RowState] | None:
        return self._prefixes

    @property
    def restorable(self) -> Restorable:
        if self._prefixes is None:
            return "never"
        return "at_stops" if self._needs_state else "anywhere"

    def admit(self, sequence: Sequence) -> int:
        submit = sequence.submit
        self._refuse_unusable(submit)
        sampling = self._sampling(submit)
        cached = self._rows.start(submit, sequence.tokens)
        row = _Row(-1, submit.request_id, sequence.tokens, cached, sampling)
        known = cached.cached_tokens
        (row.uid,) = self._generator.insert_segments(
            [_segments(submit.prompt, known, sequence.stops)],
            max_tokens=[submit.max_tokens - submit.done_tokens],
            caches=[cached.layers],
            all_tokens=[submit.prompt[:known]],
            samplers=[sampling],
            stop_sequences=[_stop_sequences(submit.stop_token_ids)],
        )
        self._regrouping = True
        self.forget(sequence)
        self._by_uid[row.uid] = self._by_request[row.request_id] = row
        return known

    def _sampling(self, submit: Submit) -> RowSampling:
        begun = len(submit.prompt) - submit.done_tokens
        constraint = self._grammars.constraint(submit)
        try:
            return RowSampling(
                submit.sampling,
                self._description.vocabulary,
                submit.prompt[:begun],
                submit.prompt[begun:],
                submit.done_tokens,
                submit.top_logprobs,
                submit.min_tokens,
                [token for token in submit.stop_token_ids if 0 <= token < self._description.vocabulary],
                constraint,
            )
        except Exception as error:  # Here, where it is this request's alone, and not inside the batch's step.
            raise RequestRefused(f"the sampling parameters cannot be used: {error}") from error

    def _refuse_unusable(self, submit: Submit) -> None:
        """What would index outside an array on the device, where nothing checks."""
        vocabulary = self._description.vocabulary
        if not submit.prompt:
            raise RequestRefused("the prompt is empty")
        if submit.max_tokens < 1:
            # BatchGenerator raises for it from inside the batch's step.
            raise RequestRefused(f"max_tokens must be at least 1, not {submit.max_tokens}")
        if submit.top_logprobs is not None and not 0 <= submit.top_logprobs <= MAX_TOP_LOGPROBS:
            raise RequestRefused(f"top_logprobs must be 0 to {MAX_TOP_LOGPROBS}, not {submit.top_logprobs}")
        if not 0 <= min(submit.prompt) <= max(submit.prompt) < vocabulary:
            raise RequestRefused(f"a token id is outside the vocabulary of {vocabulary}")
        for token, _ in submit.sampling.logit_bias:
            if not 0 <= token < vocabulary:
                raise RequestRefused(f"logit_bias: token {token} is outside the vocabulary of {vocabulary}")

    @property
    def disk(self) -> PrefixDisk | None:
        return self._disk

    def warming(self, sequence: Sequence) -> bool:
        read = self._disk is not None and self._disk.warming(sequence)
        return self._grammars.preparing(sequence.submit) or read

    def forget(self, sequence: Sequence) -> None:
        self._grammars.forget(sequence.request_id)
        if self._disk is not None:
            self._disk.forget(sequence.request_id)

    def tend(self, idle: bool) -> bool:
        return self._disk is not None and self._disk.advance(idle)

    def in_place_tokens(self, request_id: int) -> int:
        return self._by_request[request_id].cached.shared_tokens

    def keep(self, request_id: int, tokens: int) -> None:
        self._keep(self._by_request[request_id], tokens)

    def remove(self, request_id: int) -> None:
        self._remove(self._by_request[request_id])

    def _remove(self, row: _Row) -> None:
        self._keep(row)
        self._generator.remove([row.uid])
        self._forget(row)

    def _keep(self, row: _Row, limit: int | None = None, session_end: bool = False) -> None:
        """Keep the first `limit` tokens (or all) of what the row has in the batch."""
        layers, tokens = self._generator.extract_cache([row.uid])[row.uid]
        if tokens and len(tokens) > row.cached.cached_tokens:  # Else it has computed nothing yet.
            whole = limit is None or limit == len(tokens)
            self._put(row, tokens[:limit], layers, whole, session_end)

    def _put(self, row: _Row, tokens: list[int], layers: Any, whole: bool, session_end: bool) -> None:
        kept = compact(tokens)
        self._rows.keep(row.cached, kept, layers, whole, session_end)
        if self._disk is not None and whole:
            self._disk.note(kept, row.cached.submit.salt)

    def _forget(self, row: _Row) -> None:
        self._rows.end(row.cached)
        del self._by_uid[row.uid], self._by_request[row.request_id]

    def _regroup(self) -> None:
        """Rows have come, or a prompt is whole: what is worth it, they attend to in place from now on."""
        self._regrouping = False
        shared = self._rows.regroup({uid: row.cached for uid, row in self._by_uid.items()})
        by_batch: dict[int, dict[int, tuple[Lease[KvSegment, RowState], int]]] = {1: {}, 2: {}}
        for uid, (stage, place) in self._generator._find_uids(shared).items():
            cached = self._by_uid[uid].cached
            if stage == 0:
                self._rows.restart(cached, shared[uid])
            elif cached.lease is not None:
                by_batch[stage][place] = (cached.lease, shared[uid])
        batches = {1: self._generator._prompt_batch, 2: self._generator._generation_batch}
        for stage, leases in by_batch.items():
            if leases:
                self._layout.rebase(batches[stage].prompt_cache, leases)
        self._rows.settle(row.cached for row in self._by_uid.values())

    def step(self, prefill_tokens: int | None = None) -> StepResult:
        if owed := self._generator.settle():
            failed = self._retire_failed()
            tokens, retired = self._told(owed)
            return StepResult(tokens, [*failed, *retired])
        if self._regrouping:
            self._regroup()
        self._share.divide(self._generator, prefill_tokens)
        started = time.perf_counter()
        prompts = self._generator.read()
        prefill_seconds = time.perf_counter() - started
        chunks: list[int] = []
        prefills: list[PrefillOut] = []
        for prompt in prompts:
            before = self._by_uid[prompt.uid].cached.done_tokens
            prefills.append(self._progress(prompt))
            if not prompt.end_of_prompt:  # The last token is computed with those that decode.
                chunks.append(prefills[-1].done - before)
        if self._regrouping:
            self._regroup()  # What has been read is in place before its row is one of the long ones.
        started = time.perf_counter()
        at_once = bool(prompts)
        begun, answers = self._generator.decode(at_once)
        model_seconds = prefill_seconds + time.perf_counter() - started
        prefills += [self._progress(prompt) for prompt in begun]
        decoded = self._generator.decoding + sum(answer.finish_reason is not None for answer in answers)
        # A token that is told at once was drawn without the mask that could not be made; one that was owed is
        # of the step before, with a mask.
        failed = self._retire_failed(grammars=at_once)
        tokens, retired = self._told(answers)
        retired = [*failed, *retired, *self._retire_failed(grammars=True)]
        self._rows.reserve(self.kv_bytes())
        computed = len(chunks) * max(chunks, default=0)
        return StepResult(tokens, retired, prefills, computed, decoded, prefill_seconds, model_seconds)

    def _told(self, answers: list[Any]) -> tuple[list[TokenOut], list[Retired]]:
        tokens: list[TokenOut] = []
        retired: list[Retired] = []
        for answer in answers:
            if (row := self._by_uid.get(answer.uid)) is None:
                continue  # Failed just now.
            told = answer.logprobs
            tokens.append(TokenOut(row.request_id, answer.token, None if told is None else told.read()))
            if answer.finish_reason is not None:
                self._put(row, answer.all_tokens, answer.prompt_cache, whole=True, session_end=True)
                self._forget(row)
                retired.append(Retired(row.request_id, answer.finish_reason))
        return tokens, retired

    def _retire_failed(self, grammars: bool = False) -> list[Retired]:
        """End the rows whose last token cannot be used; with `grammars` also those whose grammar has failed.
        What they have computed is not kept."""
        retired: list[Retired] = []
        for row in list(self._by_uid.values()):
            constraint = row.sampling.constraint if grammars else None
            failure = row.sampling.failure or (constraint.failure if constraint else None)
            if failure is not None:
                self._generator.remove([row.uid])
                self._forget(row)
                retired.append(Retired(row.request_id, "failed", failure))
        return retired

    def _progress(self, prompt: Any) -> PrefillOut:
        """A chunk of one row's prompt is computed. Before its last token, and where a state is wanted, it
        is kept."""
        row = self._by_uid[prompt.uid]
        total = len(row.tokens)
        done = total - (prompt.progress[1] - prompt.progress[0])
        row.cached.done_tokens = done
        row.cached.layers = []  # Joined: the batch has its own.
        # The last token is a segment of its own (BatchGenerator's rule). Kept before it is computed: the row
        # can then begin its answer with its prompt in place, where it pads nobody.
        whole = prompt.end_of_segment and done == total - 1
        if whole or (self._needs_state and prompt.end_of_segment and not prompt.end_of_prompt):
            self._keep(row, session_end=whole)
        self._regrouping |= whole
        return PrefillOut(row.request_id, done, total, row.cached.cached_tokens)

    def kv_bytes(self) -> int:
        return int(self._generator.prompt_cache_nbytes)

    def memory(self) -> DeviceMemory:
        # 0.1 µs for the three: counters of MLX's allocator.
        return DeviceMemory(
            mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory(), self._recommended_bytes
        )


def _prefix_cache(
    layout: CacheLayout,
    load: Load,
    description: Ready,
    row_bytes: RowBytes,
    clock: Callable[[], float],
) -> PrefixCache[KvSegment, RowState] | None:
    if load.kv_cache_bytes == 0:
        return None
    budget_bytes = load.kv_cache_bytes
    if budget_bytes < 0:
        budget_bytes = default_budget_bytes(
            mx.device_info(), description.weights_bytes, machine_memory_bytes()
        )
    cut_bytes = row_bytes.token_bytes if layout.has_cuttable else 0
    return PrefixCache(int(budget_bytes * load.kv_cache_share), cut_bytes, layout.needs_state, clock)


@lru_cache(maxsize=64)
def _stop_sequences(token_ids: tuple[int, ...]) -> StopSequences:
    """Bounded, for clients choose the ids: 256 of them take 88 KB."""
    return StopSequences([(token,) for token in token_ids])


def _segments(prompt: list[int], start: int, stops: tuple[int, ...]) -> list[list[int]]:
    """The prompt from `start`, in the pieces after which BatchGenerator is to pause."""
    edges = [start, *(stop for stop in stops if start < stop < len(prompt) - 1), len(prompt)]
    return [prompt[begin:end] for begin, end in pairwise(edges)]


def _padding_is_exact(model: Any, model_type: str) -> bool:
    recurrent = any(_is_recurrent(layer) for layer in make_prompt_cache(model))
    return not recurrent or model_type in _PADDED_PREFILL_IS_EXACT


def _is_recurrent(layer: Any) -> bool:
    if isinstance(layer, CacheList):
        return any(_is_recurrent(part) for part in layer.caches)
    return isinstance(layer, ArraysCache)
