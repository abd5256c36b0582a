"""The back end of embedders: prompts in prefill steps, and a vector of each.

The loop, the plan and the slots are those of every engine. A step computes

- prompts that fit into it, together: no KV cache, padded on the right, where a causal model's tokens cannot
  see the padding;
- a chunk of each longer one, by itself, with mlx-lm's own KV cache, which holds the whole prompt and is freed
  with its row.

Each step ends rows with their vectors, and no token is computed. There is no prefix cache: texts to embed
seldom share a prefix, and what a hit leaves out is missing in a mean.

A model that attends both ways (`Pooler.two_way`) reads a prompt as a whole: its chunks only count, and all of
it is computed with the last one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import msgspec
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.backend import BackendFacts, StepResult, loaded_adapters
from scheduler.engine.budget.policy import keep_to
from scheduler.engine.device import Device
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.mlx.pooling.pooled_row import PooledRow, PoolingHead, groups_of
from scheduler.engine.mlx.single_rows import cache_bytes
from scheduler.engine.mlx.upstream.layer_slices import slices
from scheduler.engine.mlx.upstream.two_way import body_of
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.prefill import Chunk, PrefillLimits
from scheduler.engine.planning.prefill_batches import Begun, BegunBatch
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import KV_EXCEEDED, RequestRefused
from scheduler.shared.adapter_files import AdapterRefused
from scheduler.shared.messages import AdapterSource, Load, Ready, Retired
from scheduler.shared.pooling import Pooler
from scheduler.shared.token_ids import largest

_LONG_PROMPTS = 2
"""Bound on the prompts that are read in chunks at the same time: each is a model call of its own. Prompts
that end within a step may join in any number (`planning/prefill.py`)."""


def _refuse(_: AdapterSource) -> None:
    raise AdapterRefused("a model that makes vectors takes no adapters")


class PoolingBackend:
    """A model's body and the rows that are read, made by `loading.load`; one thread uses it."""

    def __init__(
        self,
        loaded: LoadedModel,
        load: Load,
        pooler: Pooler,
        head: PoolingHead,
    ) -> None:
        self._model = loaded.model
        self._body = body_of(loaded.model)
        self._description: Ready = msgspec.structs.replace(
            loaded.description, refused_adapters=loaded_adapters(load.adapters, _refuse)
        )
        self._row_bytes = loaded.row_bytes
        self._pooler = pooler
        self._head = head
        self._memory_limit = loaded.memory_limit(load)
        self._most_tokens = load.prefill_chunk_tokens
        self._facts = BackendFacts(
            self._row_bytes,
            PrefillLimits(min(_LONG_PROMPTS, load.max_slots), load.prefill_chunk_tokens),
            "never",
            self._memory_limit,
            device().traits,
        )
        self._rows: dict[int, PooledRow] = {}
        self._dimensions = head.vectors(self._body(mx.array([[0]]))[0]).shape[-1]
        self._token_seconds: float | None = None
        """Seconds a token of the last step that computed any, which predict the next one; None before it."""

    def describe(self) -> Ready:
        return self._description

    @property
    def facts(self) -> BackendFacts:
        return self._facts

    @property
    def cache(self) -> None:
        """There is no prefix cache."""

    def check(self, sequence: EngineSequence) -> None:
        """Raise RequestRefused for ids that would index outside an array on the device, and for a KV cache
        that never fits."""
        submit, vocabulary = sequence.submit, self._description.vocabulary
        if submit.dimensions is None:
            raise RequestRefused("this model writes no tokens: ask it for embeddings")
        if not sequence.tokens:
            raise RequestRefused("the prompt is empty")
        if not 0 <= submit.dimensions <= self._dimensions:
            raise RequestRefused(f"dimensions must be at most {self._dimensions}, not {submit.dimensions}")
        if largest(sequence.tokens) >= vocabulary:
            raise RequestRefused(f"a token id is outside the vocabulary of {vocabulary}")
        length, whole = len(sequence.tokens), self._memory_limit.most_kv_bytes
        most = max(self._most_tokens, self._row_bytes.fitting_tokens(whole, length))
        if most < length:
            raise RequestRefused(KV_EXCEEDED, most)

    def preparing(self, sequence: EngineSequence) -> bool:
        return False

    def execute(self, plan: StepPlan) -> StepResult:
        for request_id in (*plan.release, *plan.preempt):
            del self._rows[request_id]
        if plan.budget is not None:
            keep_to(device(), plan.budget)
        for admit in plan.admit:
            self._rows[admit.sequence.request_id] = PooledRow(admit.sequence)
        result = StepResult()
        if plan.computes and self._rows:
            result = self._step(plan.chunks, plan.predicted_seconds)
        return replace(
            result,
            begun=self._begun(),
            kv_bytes=sum(cache_bytes(row.layers) for row in self._rows.values()),
        )

    def _begun(self) -> Begun:
        """Return one batch: its rows are computed one after the other, without padding."""
        begun = frozenset(number for number, row in self._rows.items() if row.sequence.computed_tokens)
        return [BegunBatch(begun)] if begun else ()

    def _step(self, chunks: Sequence[Chunk], predicted_seconds: float | None) -> StepResult:
        sizes = {chunk.request_id: chunk.tokens for chunk in chunks}
        ends = {number: row for number, row in self._rows.items() if _ends(row, sizes.get(number, 0))}
        ending, going = list(ends.values()), [self._rows[number] for number in sizes if number not in ends]
        started = time.perf_counter()
        if self._token_seconds is not None:
            predicted_seconds = self._token_seconds * self._most_tokens
        with slices(self._model, predicted_seconds, device().traits.evaluation_seconds):
            whole, computed = [row for row in ending if not row.layers], 0
            for group in groups_of([row.sequence.prompt_tokens for row in whole], self._most_tokens):
                computed += self._read_together([whole[at] for at in group])
            for row in going:
                end = row.sequence.computed_tokens + sizes[row.sequence.request_id]
                computed += self._read_chunk(row, end)
            for row in ending:
                if row.layers:
                    computed += self._read_chunk(row, row.sequence.prompt_tokens)
            retired = self._retire(ending)
            device().wait()
        seconds = time.perf_counter() - started
        if computed:
            self._token_seconds = seconds / computed
        return StepResult(
            retired=retired,
            prefills=[row.sequence.progress() for row in (*going, *ending)],
            computed_prefill_tokens=computed,
            prefill_seconds=seconds,
        )

    def _read_together(self, rows: Sequence[PooledRow]) -> int:
        """Read whole prompts. Return the tokens computed, padding included."""
        prompts = [row.sequence.tokens[: row.sequence.prompt_tokens].tolist() for row in rows]
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        padded = mx.array([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
        both_ways = {"lengths": mx.array(lengths)} if self._pooler.two_way else {}
        hidden = self._body(padded, **both_ways)
        for at, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            row.add(hidden[at, :length], self._pooler.tokens)
            row.sequence.computed_tokens = length
        mx.eval([row.found for row in rows])
        return len(rows) * longest

    def _read_chunk(self, row: PooledRow, end: int) -> int:
        """Read the row's prompt up to `end`, or only count that where it must be read as a whole. Return the
        tokens computed."""
        if self._pooler.two_way:
            row.sequence.computed_tokens = end
            return 0
        row.layers = row.layers or make_prompt_cache(self._model)
        start = row.sequence.computed_tokens
        hidden = self._body(mx.array([row.sequence.tokens[start:end].tolist()]), cache=row.layers)
        row.add(hidden[0], self._pooler.tokens)
        mx.eval(row.found, [layer.state for layer in row.layers])
        row.sequence.computed_tokens = end
        return end - start

    def _retire(self, rows: Sequence[PooledRow]) -> list[Retired]:
        """End these rows, each with its vector. A row whose vector is not finite fails alone."""
        if not rows:
            return []
        vectors = self._head.vectors(mx.stack([row.pooled(self._pooler.tokens) for row in rows]))
        retired: list[Retired] = []
        for row, vector in zip(rows, vectors, strict=True):
            submit = row.sequence.submit
            del self._rows[submit.request_id]
            if not np.isfinite(vector).all():
                retired.append(Retired(submit.request_id, "failed", "its vector has numbers that are none"))
                continue
            cut = self._head.cut(vector, submit.dimensions or 0)
            retired.append(Retired(submit.request_id, "pooled", vector=cut.astype("<f4").tobytes()))
        return retired

    def background(self, idle: bool) -> bool:
        return False

    @property
    def device(self) -> Device:
        return device()


def _ends(row: PooledRow, tokens: int) -> bool:
    """Return whether the row is read to its end by a chunk of `tokens`: the last token, which elsewhere is
    computed with the rows that decode, goes with the chunk before it."""
    return row.sequence.chunkable_tokens <= tokens
