"""The back end that runs a model: the batch (`batch.py`), the prefix cache, grammars and the disk tier.

Metal and CUDA take the same path through this file; we have run only the CPU build.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from scheduler.engine.backend import (
    BackendFacts,
    Cache,
    StepResult,
    changed,
    check_logprobs,
    loaded_adapters,
)
from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.budget.policy import keep_to
from scheduler.engine.device import Readings
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.drafts.speculation import NO_DRAFTS, DraftTokens
from scheduler.engine.grammars.grammars import Grammars
from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.engine.mlx.batch import Batch, Labelled, Sampled
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.cache_layout import CacheLayout, RowState
from scheduler.engine.mlx.kv.cached_rows import CachedRows, Row
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.kv.prefix_disk import PrefixDisk
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.mlx.packed import PACKINGS
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.mlx.single_rows import SingleRows
from scheduler.engine.mlx.upstream.layer_slices import slices
from scheduler.engine.plan import Restorable, StepPlan
from scheduler.engine.planning.prefill import Chunk, PrefillLimits
from scheduler.engine.planning.row_sharing import GROUP_COST_TOKENS
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import BufferBound
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.messages import (
    DiskCounters,
    Load,
    PrefillOut,
    PromptLogprobsOut,
    Ready,
    Retired,
    RetireReason,
    TokenOut,
)
from scheduler.shared.row_bytes import RowBytes
from scheduler.shared.thinking import ThinkingLimit, check_marks
from scheduler.shared.token_ids import largest

_ALL = Batching()


_LOGITS_BYTES = 64 << 20
"""Bound on the logits, in float32, of a step's chunks if log-probabilities of a prompt are asked for: 110
positions of a vocabulary of 150,000. Chunks without them have none, because logits that are not read are not
computed."""
_VERIFIED_LOGITS_BYTES = 128 << 20
"""Bound on the logits of a step with drafts, in float32: 223 positions of a vocabulary of 150,000, as 32 rows
with 3 drafts or 13 with 15."""


class MlxBackend:
    """A model and the batch that runs it, made by `loading.load`; one thread uses it."""

    def __init__(
        self,
        loaded: LoadedModel,
        load: Load,
        tier: DiskTier | None = None,
        group_cost_tokens: int = GROUP_COST_TOKENS,
        grammars: Grammars | None = None,
        batching: Batching = _ALL,
    ) -> None:
        """`group_cost_tokens`: as measured at load. `batching`: what the check at load found to be right for
        this model."""
        self._model = model = loaded.model
        self._description = description = loaded.description
        self._row_bytes = row_bytes = loaded.row_bytes
        self._memory_limit = loaded.memory_limit(load)
        self._grammars = grammars or Grammars(None)
        layout = CacheLayout(model, PACKINGS[description.kv_cache_dtype])
        self._needs_state = layout.needs_state
        self._prefixes = None
        if batching.prefixes:
            self._prefixes = _prefix_cache(layout, self._memory_limit, row_bytes)
        cost = group_cost_tokens if self._prefixes is not None and batching.in_place else None
        self._rows = CachedRows(layout, self._prefixes, cost)
        self._regrouping = False
        self._disk: PrefixDisk | None = None
        if tier is not None and self._prefixes is not None:
            self._disk = PrefixDisk(tier, self._prefixes, layout)
        self._limits = PrefillLimits(
            rows=min(load.prefill_rows, load.max_slots),
            chunk_tokens=load.prefill_chunk_tokens,
            padded=batching.padded,
        )
        self._adapters = Adapters(model, batched=batching.batched)
        self._refused_adapters = loaded_adapters(load.adapters, self._adapters.load)
        self._batch = (
            Batch(model, layout, self._adapters) if batching.batched else SingleRows(model, self._adapters)
        )
        restorable: Restorable = "at_checkpoints" if self._needs_state else "anywhere"
        verifies = batching.drafts and not layout.needs_state
        self._facts = BackendFacts(
            row_bytes,
            self._limits,
            "never" if self._prefixes is None else restorable,
            self._memory_limit,
            device().traits,
            verified_tokens=_VERIFIED_LOGITS_BYTES // (4 * description.vocabulary) if verifies else 0,
            group_cost_tokens=cost,
        )

    @property
    def facts(self) -> BackendFacts:
        return self._facts

    @property
    def cache(self) -> Cache | None:
        return None if self._prefixes is None else Cache(self._prefixes, self._disk_statistics)

    def describe(self) -> Ready:
        weights_bytes = self._description.weights_bytes + self._adapters.nbytes
        described: Ready = msgspec.structs.replace(
            self._description, weights_bytes=weights_bytes, refused_adapters=self._refused_adapters
        )
        return described

    def check(self, sequence: EngineSequence) -> None:
        """Raise RequestRefused for what could fail inside the batch, and for ids that would index outside an
        array: the device does not check them."""
        vocabulary, submit = self._description.vocabulary, sequence.submit
        if submit.dimensions is not None:
            raise RequestRefused("this model writes tokens: it gives no vectors")
        if not sequence.tokens:
            raise RequestRefused("the prompt is empty")
        if submit.max_tokens < 1:
            raise RequestRefused(f"max_tokens must be at least 1, not {submit.max_tokens}")
        check_logprobs(submit)
        if any(not 0 <= token < vocabulary for token in submit.labels):
            raise RequestRefused(f"a label is outside the vocabulary of {vocabulary}")
        if submit.adapter and submit.adapter not in self._adapters:
            raise RequestRefused("its adapter is not loaded")
        if largest(sequence.tokens) >= vocabulary:
            raise RequestRefused(f"a token id is outside the vocabulary of {vocabulary}")
        check_marks(submit.thinking, vocabulary)
        for token, _ in submit.sampling.logit_bias:
            if not 0 <= token < vocabulary:
                raise RequestRefused(f"logit_bias: token {token} is outside the vocabulary of {vocabulary}")

    def execute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        self._remove(plan.release)
        if plan.budget is not None:
            keep_to(device(), plan.budget)
        freed = 0 if self._prefixes is None else changed(self._prefixes, plan)
        for request_id in plan.forget:
            self._forget(request_id)
        if plan.saving is not None:
            self._regrouping |= plan.saving and not self._rows.saving
            self._rows.saving = plan.saving
        self._remove(plan.preempt)
        for kept in plan.keep:
            self._keep(self._batch.rows[kept.request_id], kept.tokens)
        refused = self._admitted(plan)
        evicted = 0
        if plan.evict is not None and self._prefixes is not None:
            evicted = self._prefixes.evict(plan.evict.nbytes)
            if evicted and plan.evict.clear_pool:
                device().clear_pool()
        change_seconds = time.perf_counter() - started
        result = self._computed(plan)
        return replace(
            result,
            change_seconds=change_seconds,
            refused=refused,
            freed_bytes=freed,
            evicted_bytes=evicted,
            begun=self._batch.begun,
            has_pending=self._batch.has_pending,
            forced=self._forced() if plan.foresee else NO_DRAFTS,
        )

    def _computed(self, plan: StepPlan) -> StepResult:
        if plan.emit_pending:
            tokens, retired = self._outcome(self._batch.emit_pending())
            return StepResult(tokens, retired, kv_bytes=self._batch.nbytes)
        if not plan.computes or not self._batch.rows:
            return StepResult(kv_bytes=self._batch.nbytes)
        return self._step(plan)

    def _admitted(self, plan: StepPlan) -> tuple[tuple[int, str], ...]:
        """Add the plan's rows. Return those that are refused, and why."""
        refused: list[tuple[int, str]] = []
        for admit in plan.admit:
            sequence = admit.sequence
            try:
                sampling = self._sampling(sequence)
            except RequestRefused as refusal:
                refused.append((sequence.request_id, str(refusal)))
                continue
            finally:
                self._forget(sequence.request_id)
            self._batch.add(self._rows.start(sequence, sampling, admit.in_place_tokens))
            self._regrouping = True
        return tuple(refused)

    def _sampling(self, sequence: EngineSequence) -> RowSampling:
        submit, vocabulary = sequence.submit, self._description.vocabulary
        constraint = self._grammars.constraint(sequence)
        try:
            return RowSampling(
                submit.sampling,
                vocabulary,
                sequence.prompt(),
                sequence.answer(),
                submit.top_logprobs,
                submit.min_tokens,
                [token for token in submit.stop_token_ids if 0 <= token < vocabulary],
                constraint,
                None if submit.thinking is None else ThinkingLimit(submit.thinking, sequence.answer()),
            )
        except Exception as error:
            # Here the error fails this request alone; inside the step it would fail the batch.
            if is_device_error(error):
                raise
            raise RequestRefused(f"the sampling parameters cannot be used: {error}") from error

    def _disk_statistics(self) -> DiskCounters | None:
        return None if self._disk is None else self._disk.statistics()

    def preparing(self, sequence: EngineSequence) -> bool:
        disk = None if sequence.unscored else self._disk
        reading = disk is not None and disk.preparing(sequence)
        return self._grammars.preparing(sequence.submit) or reading

    def _forget(self, request_id: int) -> None:
        self._grammars.forget(request_id)
        if self._disk is not None:
            self._disk.forget(request_id)

    def background(self, idle: bool) -> bool:
        return self._disk is not None and self._disk.advance(idle)

    def _remove(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            row = self._batch.rows[request_id]
            self._keep(row)
            self._drop(row)

    def _drop(self, row: Row) -> None:
        self._batch.drop(row)
        self._rows.release(row)

    def _keep(self, row: Row, limit: int | None = None, session_end: bool = False) -> None:
        """Put the first `limit` tokens (or all) that the row has computed into the prefix cache."""
        computed = row.sequence.computed_tokens
        tokens = computed if limit is None else min(limit, computed)
        if row.joined and computed > row.sequence.cached_tokens:
            self._put(row, tokens, self._batch.layers_of(row), tokens == computed, session_end)

    def _put(self, row: Row, tokens: int, layers: Sequence[Any], whole: bool, session_end: bool) -> None:
        self._rows.keep(row, tokens, layers, whole, session_end)
        if whole and self._disk is not None:
            self._disk.note(row.sequence.tokens[:tokens], row.sequence.submit.salt)

    def _regroup(self) -> None:
        """Attend in place to the shared runs that are worth it, after rows joined or a prompt was
        completed."""
        self._regrouping = False
        rows = list(self._batch.rows.values())
        self._batch.rebase(self._rows.regroup(rows))

    def _forced(self) -> DraftTokens:
        """Return what rows' grammars force next, where it is two tokens or more."""
        return {
            number: forced
            for number, row in self._batch.rows.items()
            if (one := row.sampling.constraint) is not None
            and len(forced := one.forced_from(row.sequence.generated_tokens)) > 1
        }

    def _step(self, plan: StepPlan) -> StepResult:
        if self._regrouping:
            self._regroup()
        sizes = self._sizes(plan.chunks)
        prompt_logprobs: tuple[PromptLogprobsOut, ...] = ()
        started = time.perf_counter()
        if sizes:
            with slices(self._model, plan.predicted_seconds, device().traits.evaluation_seconds):
                prompt_logprobs = tuple(self._batch.prefill(sizes))
        prefill_seconds = time.perf_counter() - started
        prefills = [self._read(row) for row in sizes]
        if self._regrouping:
            self._regroup()  # Put a complete prompt in place before its row pads the others.
        starting = self._batch.start_decoding()
        # Prompts join between two steps: no overlap while there are any.
        overlap = not sizes and not starting
        labelled = [self._answer(one) for one in self._batch.read_labels()]
        sampled = self._batch.decode(overlap, {draft.request_id: draft.tokens for draft in plan.drafts})
        # Those that ended with their first token have left the batch: nothing is done for them but this.
        prefills += [row.sequence.progress() for row in starting]
        decoded = self._batch.decoding + sum(one.finish is not None for one in sampled) + len(labelled)
        tokens, retired = self._outcome(sampled)
        held_bytes = self._batch.nbytes  # Once a step: it is a sum over all layers.
        self._rows.set_running_bytes(held_bytes)
        computed = len(sizes) * max(sizes.values(), default=0)
        return StepResult(
            tokens,
            [*labelled, *retired],
            prefills,
            computed,
            decoded,
            prefill_seconds,
            prompt_logprobs,
            kv_bytes=held_bytes,
        )

    def _sizes(self, chunks: Sequence[Chunk]) -> dict[Row, int]:
        """Return how many tokens each row's chunk has. A prefix hit may be longer than planned, so a chunk is
        cut at its row's next checkpoint."""
        sizes: dict[Row, int] = {}
        for chunk in chunks:
            row = self._batch.rows.get(chunk.request_id)
            if row is not None and (left := row.sequence.until_pause):
                sizes[row] = min(chunk.tokens, left)
        if any(row.sequence.unscored for row in sizes):
            # The logits of all positions of the chunk are in memory at once.
            most = max(1, _LOGITS_BYTES // (4 * self._description.vocabulary * len(sizes)))
            sizes = {row: min(size, most) for row, size in sizes.items()}
        if sizes and not self._limits.padded:
            sizes = dict.fromkeys(sizes, min(sizes.values()))
        return sizes

    def _outcome(self, sampled: Sequence[Sampled]) -> tuple[list[TokenOut], list[Retired]]:
        tokens: list[TokenOut] = []
        ended: list[Sampled] = []
        for one in sampled:
            sequence, logprobs = one.row.sequence, one.logprobs
            tokens.append(
                TokenOut(sequence.request_id, one.token, None if logprobs is None else logprobs.read())
            )
            if one.finish is not None:
                self._put(one.row, sequence.computed_tokens, one.layers, whole=True, session_end=True)
                self._rows.release(one.row)
                ended.append(one)
        if ended:
            self._rows.set_running_bytes(self._batch.nbytes)
        return tokens, [*self._retired(ended), *self._fail_rows()]

    def _answer(self, labelled: Labelled) -> Retired:
        """Return the last message of a row that asked for labels. Its prompt is in the prefix cache."""
        row, numbers = labelled.row, labelled.logprobs
        self._rows.hold(row)
        self._rows.release(row)
        request_id, refusal = row.sequence.request_id, row.sequence.hold_refusal
        if numbers is None:
            return Retired(request_id, "failed", "its probabilities are no numbers")
        return Retired(request_id, "pooled", vector=numbers, hold_refusal=refusal)

    def _retired(self, ended: Sequence[Sampled]) -> Iterator[Retired]:
        """Take the holds of rows that have ended, and yield their last messages. All of these rows have left
        the batch, so the holds may use the memory that they leave."""
        for one in ended:
            self._rows.hold(one.row)
            sequence = one.row.sequence
            if one.finish is not None:
                yield Retired(sequence.request_id, one.finish, hold_refusal=sequence.hold_refusal)

    def _fail_rows(self) -> list[Retired]:
        """Retire the rows whose next token cannot be chosen; their KV is not cached."""
        retired: list[Retired] = []
        for row in list(self._batch.rows.values()):
            if (failure := row.sampling.failure_reason) is not None:
                self._drop(row)
                reason: RetireReason = "grammar" if row.sampling.failed_by_grammar else "failed"
                retired.append(Retired(row.sequence.request_id, reason, failure))
        return retired

    def _read(self, row: Row) -> PrefillOut:
        """Account for a computed chunk of a row's prompt. When all but the prompt's last token is computed,
        and at a checkpoint, what is computed goes to the prefix cache: the row can then decode with its
        prompt in place, where it pads no other row."""
        sequence = row.sequence
        whole = sequence.begins_to_decode
        if whole or (self._needs_state and sequence.computed_tokens in sequence.checkpoints):
            self._keep(row, session_end=whole)
        if whole:  # Holds on less than the whole prompt need not wait for the answer.
            self._rows.hold(row)
        self._regrouping |= whole
        return sequence.progress()

    @property
    def device(self) -> Readings:
        return device()


def _prefix_cache(
    layout: CacheLayout, limit: MemoryLimit, row_bytes: RowBytes
) -> PrefixCache[KvSegment, RowState] | None:
    if limit.kv_bytes == 0:
        return None
    cut_bytes = row_bytes.token_bytes if layout.has_cuttable else 0
    budget_bytes = limit.kv_budget_bytes(limit.first_peak_bytes)
    buffers = None
    if (most := device().traits.most_buffers) is not None:
        # The other half is for the rows, the weights and a step's graph.
        buffers = BufferBound(most // 2, *layout.arrays)
    return PrefixCache(budget_bytes, cut_bytes, layout.needs_state, time.monotonic, buffers=buffers)
