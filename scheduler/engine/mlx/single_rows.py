"""The running rows of a model that cannot run in batches: one model call for each row in each step.

Each row has mlx-lm's own caches, as if it ran alone, so its tokens are those of mlx-lm by construction.
Requests still share the engine step by step, and the plan is the same. There is no overlap and no prefix
cache: the caches of such models cannot be merged, and often cannot be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.drafts.speculation import DraftTokens
from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.engine.mlx.batch import Labelled, Sampled
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.cache_layout import leaves
from scheduler.engine.mlx.kv.cached_rows import Row, RowLeases
from scheduler.engine.mlx.label_rows import LabelHead, as_bytes
from scheduler.engine.mlx.sampling.chooser import Chosen
from scheduler.engine.mlx.sampling.logprobs import PromptChunk, RowLogprobs
from scheduler.engine.mlx.sampling.rows_sampler import RowsSampler
from scheduler.engine.prefill_batches import Begun, BegunBatch
from scheduler.shared.messages import PromptLogprobsOut


class SingleRows:
    """What `MlxBackend` needs of a `Batch`, for rows that run one at a time."""

    has_pending = False

    def __init__(self, model: Any, adapters: Adapters) -> None:
        self._model = model
        self._adapters = adapters
        self.rows: dict[int, Row] = {}
        """Rows by request id."""
        self._layers: dict[Row, list[Any]] = {}
        self._decoding: dict[Row, RowsSampler] = {}
        self._label_head = LabelHead(model)

    @property
    def begun(self) -> Begun:
        """Return the rows in the middle of their prefill as one batch: nothing is padded."""
        begun = frozenset(
            number for number, row in self.rows.items() if row.joined and row not in self._decoding
        )
        return [BegunBatch(begun)] if begun else ()

    @property
    def decoding(self) -> int:
        return len(self._decoding)

    @property
    def nbytes(self) -> int:
        """Return bytes of all rows' caches."""
        return sum(cache_bytes(layers) for layers in self._layers.values())

    def add(self, row: Row) -> None:
        self._layers[row] = make_prompt_cache(self._model)
        self.rows[row.sequence.request_id] = row

    def drop(self, row: Row) -> None:
        del self.rows[row.sequence.request_id]
        self._decoding.pop(row, None)
        del self._layers[row]
        row.joined = False

    def layers_of(self, row: Row) -> Sequence[Any]:
        """Return no views: nothing is kept of these rows."""
        return ()

    def prefill(self, tokens: Mapping[Row, int]) -> list[PromptLogprobsOut]:
        """Compute this number of prompt tokens of each row. Return the log-probabilities of their prompts
        that rows request."""
        scored: list[PromptLogprobsOut] = []
        for row, count in tokens.items():
            row.joined, layers = True, self._layers[row]
            with self._adapters.over([row.adapter]):
                logits = self._model(mx.array([row.prompt_chunk(count)]), cache=layers)
            chunk = PromptChunk.of(row.sequence, count, logits[0])
            mx.eval([layer.state for layer in layers], [] if chunk is None else chunk.arrays)
            device().wait()
            if chunk is not None:
                scored.append(chunk.read())
        return scored

    def start_decoding(self) -> list[Row]:
        """Move the rows with only their last prompt token left to those that decode. Return them."""
        whole = [row for row in self.rows.values() if row.sequence.begins_to_decode]
        for row in whole:
            row.joined = True
            if not row.sequence.submit.labels:
                self._decoding[row] = RowsSampler((row.sampling,))
        return whole

    def read_labels(self) -> list[Labelled]:
        """Return the log-probabilities that rows ask for whose prompts are computed but for a token. They
        leave the batch."""
        labelled: list[Labelled] = []
        for row in [row for row in self.rows.values() if row.sequence.submit.labels]:
            if not (row.joined and row.sequence.begins_to_decode):
                continue
            with self._adapters.over([row.adapter]):
                inputs = mx.array([[row.last_prompt_token]])
                (found,) = self._label_head(inputs, self._layers[row], [row.sequence.submit.labels])
            mx.eval(found)
            device().wait()
            row.sequence.computed_tokens += 1
            self.drop(row)
            labelled.append(Labelled(row, as_bytes(found)))
        return labelled

    def decode(self, overlap: bool, drafts: DraftTokens) -> list[Sampled]:
        """Compute a token of each row that decodes, and return these tokens, with `overlap` or without. There
        are no `drafts`."""
        chosen = [(row, *self._choose(row, sampler)) for row, sampler in self._decoding.items()]
        mx.eval([one.tokens for _, one, _ in chosen])
        device().wait()
        return [one for each in chosen if (one := self._emitted(*each)) is not None]

    def _choose(self, row: Row, sampler: RowsSampler) -> tuple[Chosen, RowLogprobs | None]:
        inputs = mx.array(row.sequence.tokens[-1:].tolist(), dtype=mx.uint32)
        with self._adapters.over([row.adapter]):
            logits = self._model(inputs[None], cache=self._layers[row])[:, -1, :]
        row.sequence.computed_tokens += 1
        if sampler.constrained:
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            sampler.advance(inputs.tolist())  # type: ignore[arg-type]
        chosen = sampler(logits, inputs)
        logprobs, requested = sampler.logprobs.extract(logits, chosen.tokens)
        mx.async_eval(chosen.tokens, chosen.scores, requested)  # type: ignore[no-untyped-call]
        return chosen, logprobs[0]

    def _emitted(self, row: Row, chosen: Chosen, logprobs: RowLogprobs | None) -> Sampled | None:
        chosen.verify()
        if row.sampling.failure_reason is not None:
            return None
        token: int = chosen.tokens.tolist()[0]  # type: ignore[assignment, index]
        finish = row.end_with(token)
        if finish is not None:
            self.drop(row)
        return Sampled(row, token, logprobs, finish)

    def emit_pending(self) -> list[Sampled]:
        """Return no tokens: none are ever pending."""
        return []

    def rebase(self, leases: RowLeases) -> None:
        assert not leases, "rows without a prefix cache share nothing"


def cache_bytes(layers: Sequence[Any]) -> int:
    """Return the bytes of caches that may be of a model's own kind, without mlx-lm's `nbytes`."""
    found: int = 0
    for layer in leaves(layers):
        try:
            found += layer.nbytes
        except (AttributeError, NotImplementedError):
            found += sum(part.nbytes for part in layer.state if isinstance(part, mx.array))
    return found
