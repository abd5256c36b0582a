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
from scheduler.engine.mlx.batch import DecodeBatch, Labelled, PrefillBatch, Sampled, prompts_of
from scheduler.engine.mlx.kv.cache_layout import leaves
from scheduler.engine.mlx.kv.cached_rows import Row, RowLeases
from scheduler.engine.mlx.label_rows import LabelHead
from scheduler.engine.planning.prefill_batches import Begun, BegunBatch
from scheduler.shared.messages import PromptLogprobsOut


class _DecodingRow(DecodeBatch):
    """A batch of one row, of whose caches nothing is kept."""

    def begin(self) -> None:
        """Build the row's model call, so that all rows' are built before one is waited for."""
        self._submit()
        self._draw()

    def extract_cache(self, idx: int) -> list[Any]:
        return []


class SingleRows:
    """What `MlxBackend` needs of a `Batch`, for rows that run one at a time."""

    has_pending = False

    def __init__(self, model: Any, adapters: Adapters) -> None:
        self._model = model
        self._adapters = adapters
        self.rows: dict[int, Row] = {}
        """Rows by request id."""
        self._prefills: dict[Row, PrefillBatch] = {}
        self._decodes: dict[Row, _DecodingRow] = {}
        self._label_head = LabelHead(model)

    @property
    def begun(self) -> Begun:
        """Return the rows in the middle of their prefill as one batch: nothing is padded."""
        begun = frozenset(row.sequence.request_id for row in self._prefills if row.joined)
        return [BegunBatch(begun)] if begun else ()

    @property
    def decoding(self) -> int:
        return len(self._decodes)

    @property
    def nbytes(self) -> int:
        """Return bytes of all rows' caches."""
        caches = [alone.prompt_cache for alone in self._prefills.values()]
        return sum(map(cache_bytes, [*caches, *(alone.prompt_cache for alone in self._decodes.values())]))

    def add(self, row: Row) -> None:
        alone = prompts_of(self._model, [row], [])
        alone.prompt_cache = make_prompt_cache(self._model)
        self._prefills[row] = batch = PrefillBatch.empty(self._model, None)
        batch.adapters = self._adapters
        batch.extend(alone)
        self.rows[row.sequence.request_id] = row

    def drop(self, row: Row) -> None:
        del self.rows[row.sequence.request_id]
        self._prefills.pop(row, None)
        self._decodes.pop(row, None)
        row.joined = False

    def layers_of(self, row: Row) -> Sequence[Any]:
        """Return no views: nothing is kept of these rows."""
        return ()

    def prefill(self, tokens: Mapping[Row, int]) -> list[PromptLogprobsOut]:
        """Compute this number of prompt tokens of each row. Return the log-probabilities of their prompts
        that rows request."""
        scored: list[PromptLogprobsOut] = []
        for row in tokens:
            row.joined = True
            scored += self._prefills[row].compute(tokens)
        return scored

    def start_decoding(self) -> list[Row]:
        """Move the rows with only their last prompt token left to those that decode. Return them."""
        whole = [row for row in self._prefills if row.sequence.begins_to_decode]
        for row in whole:
            row.joined = True
            self._decodes[row] = batch = _DecodingRow.of(self._prefills.pop(row))
            batch.adapters = self._adapters
        return whole

    def read_labels(self) -> list[Labelled]:
        """Return the log-probabilities that rows ask for whose prompts are computed but for a token. They
        leave the batch."""
        asking = [row for row in self._decodes if row.sequence.submit.labels]
        labelled = [one for row in asking for one in self._decodes[row].read_labels(self._label_head)]
        for row in asking:
            self.drop(row)
        return labelled

    def decode(self, overlap: bool, drafts: DraftTokens) -> list[Sampled]:
        """Compute a token of each row that decodes, and return these tokens, with `overlap` or without. There
        are no `drafts`."""
        for batch in self._decodes.values():
            batch.begin()
        sampled = [one for batch in self._decodes.values() for one in batch.emit_pending()]
        for one in sampled:
            if one.finish is not None:
                self.drop(one.row)
        return sampled

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
