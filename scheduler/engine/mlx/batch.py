"""The running rows in the two batches of mlx-lm's BatchGenerator: everything that we use of them or override
(written against 0.32.2).

Upstream keeps: the two batches (prompts in prefill, rows that decode), the place of each row in them, and how
rows join, move from one to the other and leave, with the `merge`, `extend`, `filter`, `extract` of their
caches. A row's uid there is our `Row`, so that upstream keeps them in order. We decide which tokens a
step computes (by the plan; upstream decodes first, then prefills with chunks of one size), how tokens are
chosen (one pass over all rows' logits; upstream takes a log-softmax over the vocabulary and calls one sampler
per row), and how a row ends. `tests/scheduler/engine/mlx/upstream/test_upstream.py` tests what we rely on.

**Overlap.** A step's draw is submitted, and the next model call built on it, before its tokens are read: the
device computes while the host routes them. Those next tokens are *pending* until the step after. Where
submission waits for the device (`Traits.submission_waits`: a CPU) the next call is built and not submitted:
its graph is made while the last operations of this one run, and no token waits for another step. While
prompts are prefilled there is no overlap: rows join between two steps, and no token waits for another row's
prompt. Nor is there any for rows that are known to end with this step, where the model call is evaluated
while it is built (`cpu/softmax.py`), and where submission waits and the host draws: it has the tokens before
the next call could be built.

**Drafts.** A step with drafts computes each row's last token and its drafts in one model call, padded on the
right to the longest. Then it draws place by place: the rows whose draw at a place is their draft are drawn at
the next place as well. So each draw has the history that it would have without drafts (penalties, grammars,
thinking budgets, `min_tokens`), and nothing is rolled back but keys and values, of which the last ones are
trimmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import mlx.core as mx
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch, StopSequences
from mlx_lm.models.cache import BatchRotatingKVCache

from scheduler.engine.drafts.speculation import DraftTokens
from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.mlx.kv.cache_layout import CacheLayout, leaves
from scheduler.engine.mlx.kv.cached_rows import Row, RowLeases
from scheduler.engine.mlx.label_rows import LabelHead, as_bytes
from scheduler.engine.mlx.sampling.chooser import Chosen
from scheduler.engine.mlx.sampling.logprobs import PromptChunk, RowLogprobs
from scheduler.engine.mlx.sampling.rows_sampler import RowsSampler
from scheduler.engine.planning.prefill_batches import Begun, BegunBatch
from scheduler.shared.messages import PromptLogprobsOut

_CLEARED_STEPS = 512
"""Decode steps between two returns of freed buffers, as upstream."""
_EVALUATED_STEPS = 64
"""Decode steps between two evaluations of counters that no token depends on. mlx-lm's recurrent layers
subtract 1 from `left_padding` or `lengths` in each step (mlx-lm #1845). A KV cache inside a CacheList, which
upstream batches, adds 1 to its `offset`, which a layer without rotary positions never reads. (Our `BatchRows`
compute `offset` from integers.) Unevaluated, that graph grows until the batch is empty. Each node holds a
buffer, of which Metal has 499,000: with 36 recurrent layers that is 14,000 steps."""
_NBYTES = attrgetter("nbytes")
_NO_STOPS = StopSequences()


@dataclass(frozen=True, slots=True)
class Labelled:
    """A row that has left the batch with the log-probabilities of its labels; None if they are no
    numbers."""

    row: Row
    logprobs: bytes | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token of one row. `layers`: the row's caches, one view per layer, if it ended with this token."""

    row: Row
    token: int
    logprobs: RowLogprobs | None
    finish: Literal["stop", "length"] | None
    layers: Sequence[Any] = ()


class PrefillBatch(PromptProcessingBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows whose prefill has begun."""

    uids: list[Row]
    prompt_cache: list[Any]
    adapters: Adapters
    passed_steps: int = 0
    """Steps with chunks since it was computed last."""

    @property
    def rows(self) -> list[Row]:
        return self.uids

    def compute(self, tokens: Mapping[Row, int]) -> list[PromptLogprobsOut]:
        """Compute a chunk of each row. Return the log-probabilities of their prompts that rows ask for. It
        does what upstream's `prompt` does, but MLX's freed buffers stay for the next chunk: if they were
        cleared after each, all activations would cost page faults again."""
        chunks = [row.prompt_chunk(tokens[row]) for row in self.rows]
        lengths = [len(chunk) for chunk in chunks]
        longest = max(lengths)
        ragged = min(lengths) < longest
        if ragged:
            for layer in self.prompt_cache:
                layer.prepare(lengths=lengths, right_padding=[longest - length for length in lengths])
        if longest > 1:
            _order_rings(self.prompt_cache)
        _make_room(self.prompt_cache, longest)
        padded = mx.array([chunk + [0] * (longest - len(chunk)) for chunk in chunks])
        with self.adapters.over([row.adapter for row in self.rows]):
            logits = self.model(padded, cache=self.prompt_cache)
        chunked = enumerate(zip(self.rows, chunks, strict=True))
        asked = [
            scored
            for at, (row, chunk) in chunked
            if (scored := PromptChunk.of(row.sequence, len(chunk), logits[at])) is not None
        ]
        if ragged:
            for layer in self.prompt_cache:
                layer.finalize()
        arrays = [array for scored in asked for array in scored.arrays]
        mx.eval([layer.state for layer in self.prompt_cache], _counters(self.prompt_cache), arrays)
        device().wait()
        return [scored.read() for scored in asked]


class _Pending(NamedTuple):
    """Sampled tokens that are not returned yet. Without `chosen` they are the last tokens of prompts."""

    tokens: mx.array
    logprobs: Sequence[RowLogprobs | None]
    chosen: Chosen | None


class _Drawn(NamedTuple):
    """A token that the row at `place` has drawn, and whether its answer ends with it."""

    place: int
    token: int
    logprobs: RowLogprobs | None
    finish: Literal["stop", "length"] | None


class DecodeBatch(GenerationBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows for which each step computes a token. `has_pending`: the model call behind the tokens that were
    returned last is built, or already computed; rows join only when none is."""

    uids: list[Row]
    prompt_cache: list[Any]
    _next_tokens: mx.array
    _next_logprobs: list[RowLogprobs | None]
    adapters: Adapters
    has_pending: bool = False
    _undrawn: tuple[mx.array, mx.array] | None = None
    """Logits from which the next inputs will be drawn, and the inputs before them."""
    _chosen: Chosen | None = None
    """The next inputs with their scores."""
    _rows_sampler: RowsSampler | None = None
    _builds_ahead: bool = True
    """Whether the last model call was built without waiting for the device."""

    @classmethod
    def of(cls, prompts: PromptProcessingBatch) -> DecodeBatch:
        """Return rows with only their last prompt token left."""
        last_tokens = mx.array([row.last_prompt_token for row in prompts.uids], dtype=mx.uint32)
        kept = (prompts.logits_processors, prompts.stop_sequences, prompts.max_tokens)
        return cls(
            prompts.model,
            prompts.uids,
            last_tokens,
            prompts.prompt_cache,
            prompts.tokens,
            prompts.samplers,
            None,
            *kept,
        )

    def _step(self) -> None:
        """Upstream's constructor makes a model call here. We make it when the plan says so."""
        self._next_logprobs = [None] * len(self.rows)

    @property
    def rows(self) -> list[Row]:
        return self.uids

    def step(self, overlap: bool) -> list[Sampled]:
        """Compute a token of each row. Return these tokens; with overlap after the next model call is
        built on them."""
        assert overlap or not self.has_pending, "rows were prefilled before pending tokens had been returned"
        if not self.has_pending:
            self._submit()
        if not (overlap and self._overlaps) or all(row.ends_with_next for row in self.rows):
            return self.emit_pending()
        self._draw()
        pending = self._sampled()
        self._submit()
        self.has_pending = True
        return self._emit(pending)

    @property
    def _overlaps(self) -> bool:
        """Return whether the next model call can be built while the device computes this one."""
        # Where submission waits, a draw on the host has all tokens before anything of the next call is built.
        drawn_first = device().traits.submission_waits and self._sampler().draws_on_host
        return self._builds_ahead and not drawn_first

    def verify(self, drafts: Mapping[Row, Sequence[int]]) -> list[Sampled]:
        """Compute the next token of each row, and one more behind each of its drafts as long as these are
        what it draws. Return all of them."""
        assert not self.has_pending, "drafts follow tokens that are known"
        rows = self.rows
        drafted = [drafts.get(row, ()) for row in rows]
        width = 1 + max(len(tokens) for tokens in drafted)
        padded = [
            [row.sequence.tokens[-1], *tokens, *[0] * (width - 1 - len(tokens))]
            for row, tokens in zip(rows, drafted, strict=True)
        ]
        inputs = mx.array(padded, dtype=mx.uint32)
        _make_room(self.prompt_cache, width)
        with self.adapters.over([row.adapter for row in rows]):
            logits = self.model(inputs, cache=self.prompt_cache)
        if self._rows_sampler is not None:
            self._rows_sampler.leave()
            self._rows_sampler = None
        drawn: list[_Drawn] = []
        places = list(range(len(rows)))
        for at in range(width):
            found = self._drawn(places, logits[:, at], inputs[:, at])
            drawn += found
            places = [
                one.place
                for one in found
                if one.finish is None and one.token in drafted[one.place][at : at + 1]
            ]
            if not places:
                break
        written = Counter(one.place for one in drawn)
        kept = [max(1, written[place]) for place in range(len(rows))]
        for row, tokens in zip(rows, kept, strict=True):
            row.sequence.computed_tokens += tokens
        for layer in self.prompt_cache:
            layer.trim([width - tokens for tokens in kept])
        self._next_tokens = mx.array([row.sequence.tokens[-1] for row in rows], dtype=mx.uint32)
        self._next_logprobs, self._chosen = [None] * len(rows), None
        drawn.sort(key=lambda one: one.place)
        return self._leave([(rows[one.place], one) for one in drawn])

    def _drawn(self, places: Sequence[int], logits: mx.array, inputs: mx.array) -> list[_Drawn]:
        """Draw a token of the rows at these places, from (rows, vocabulary) `logits` that follow `inputs`,
        and append it to their answers. Failed rows draw none."""
        if len(places) < len(self.rows):
            index = mx.array(list(places))
            logits, inputs = logits[index], inputs[index]
        rows = [self.rows[place] for place in places]
        sampler = RowsSampler([row.sampling for row in rows])
        if sampler.needs_inputs:
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            sampler.advance(inputs.tolist())  # type: ignore[arg-type]
        chosen = sampler(logits, inputs)
        logprobs, requested = sampler.logprobs.extract(logits, chosen.tokens)
        mx.eval(chosen.tokens, chosen.scores, requested)
        device().wait()
        sampler.leave()
        chosen.verify()
        tokens: list[int] = chosen.tokens.tolist()  # type: ignore[assignment]
        return [
            _Drawn(place, token, found, row.end_with(token))
            for place, row, token, found in zip(places, rows, tokens, logprobs, strict=True)
            if row.sampling.failure_reason is None
        ]

    def emit_pending(self) -> list[Sampled]:
        """Return the pending tokens, and build no model call. Failed rows return none."""
        self._draw()
        device().wait()  # Nothing else is in flight: with overlap this would wait for the next step.
        self.has_pending = False
        return self._emit(self._sampled())

    def read_labels(self, head: LabelHead) -> list[Labelled]:
        """Compute the last prompt token of each row, and empty the batch."""
        rows = self.rows
        _make_room(self.prompt_cache, 1)
        labels = [row.sequence.submit.labels for row in rows]
        with self.adapters.over([row.adapter for row in rows]):
            found = head(self._next_tokens[:, None], self.prompt_cache, labels)
        mx.eval(found)
        device().wait()
        for row in rows:
            row.sequence.computed_tokens += 1
        self.filter([])
        return [Labelled(row, as_bytes(one)) for row, one in zip(rows, found, strict=True)]

    def _submit(self) -> None:
        """Build the model call that follows the next inputs, and submit it where that does not wait."""
        inputs, waits = self._next_tokens, device().waits
        _make_room(self.prompt_cache, 1)
        with self.adapters.over([row.adapter for row in self.rows]):
            logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        for row in self.rows:
            row.sequence.computed_tokens += 1
        self._undrawn = logits, inputs
        self._builds_ahead = device().waits == waits
        if device().traits.submission_waits:
            return
        sampler = self._sampler()
        if sampler.draws_on_host and not sampler.constrained:
            # A draw on the host waits for the model: defer it until the tokens are needed.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        else:
            self._draw()

    def _draw(self) -> None:
        if self._undrawn is None:
            return
        (logits, inputs), self._undrawn = self._undrawn, None
        sampler = self._sampler()
        if sampler.needs_inputs:
            # A grammar's mask, or a forced token, depends on the token before it: it is computed while the
            # model runs, and only the draw waits for it.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            sampler.advance(inputs.tolist())  # type: ignore[arg-type]
        self._chosen = sampler(logits, inputs)
        self._next_tokens = self._chosen.tokens
        self._next_logprobs, requested = sampler.logprobs.extract(logits, self._next_tokens)
        mx.async_eval(self._next_tokens, self._chosen.scores, requested)  # type: ignore[no-untyped-call]

    def _sampled(self) -> _Pending:
        return _Pending(self._next_tokens, self._next_logprobs, self._chosen)

    def _emit(self, pending: _Pending) -> list[Sampled]:
        """Return the pending tokens of the current rows. Rows that may not emit stay in the batch, and are
        dropped later."""
        tokens: list[int] = pending.tokens.tolist()  # type: ignore[assignment]
        if pending.chosen is not None:
            pending.chosen.verify()
        # Where the tokens after these are drawn already, a grammar that failed meanwhile affects only them.
        drawn_ahead = self.has_pending and self._undrawn is None
        places = zip(self.rows, tokens, pending.logprobs, strict=True)
        return self._leave(
            [
                (row, _Drawn(place, token, logprobs, row.end_with(token)))
                for place, (row, token, logprobs) in enumerate(places)
                if (row.sampling.failure if drawn_ahead else row.sampling.failure_reason) is None
            ]
        )

    def _leave(self, drawn: Sequence[tuple[Row, _Drawn]]) -> list[Sampled]:
        """Return the tokens, after the rows that end with them have left."""
        emitted = [
            Sampled(
                row,
                one.token,
                one.logprobs,
                one.finish,
                () if one.finish is None else self.extract_cache(one.place),
            )
            for row, one in drawn
        ]
        if ended := {one.place for _, one in drawn if one.finish is not None}:
            self.filter([place for place in range(len(self.rows)) if place not in ended])
        return emitted

    def _sampler(self) -> RowsSampler:
        """Return the sampler of the current rows, rebuilt when they change."""
        rows = tuple(row.sampling for row in self.rows)
        known = self._rows_sampler
        if known is None or known.rows != rows:  # They compare by identity.
            if known is not None:
                known.leave()
            self._rows_sampler = known = RowsSampler(rows)
        return known

    def filter(self, keep: list[int]) -> None:
        """Keep these rows at their places; the last ones move to the places that become free."""
        keep = _in_place(keep)
        super().filter(keep)
        if self._undrawn is not None:
            logits, inputs = self._undrawn
            self._undrawn = (logits[mx.array(keep)], inputs[mx.array(keep)]) if keep else None
        self.has_pending = self.has_pending and bool(keep)


def _make_room(layers: Sequence[Any], tokens: int) -> None:
    """Where rows lag, make room for `tokens` of each before a model call: its mask is made before a layer
    writes."""
    ours = [layer for layer in layers if isinstance(layer, BatchRows)]
    if ours and ours[0].geometry.lags:
        for layer in ours:
            layer.make_room(tokens)


def _in_place(keep: Sequence[int]) -> list[int]:
    """Return the same rows in the order that moves the fewest."""
    stay = {row for row in keep if row < len(keep)}
    movers = iter(row for row in keep if row >= len(keep))
    return [place if place in stay else next(movers) for place in range(len(keep))]


def _counters(layers: Sequence[Any]) -> list[mx.array]:
    """Return the caches' position counters. Upstream evaluates those of sliding windows itself."""
    names = ("left_padding", "lengths", "offset")
    found = [getattr(layer, name, None) for layer in leaves(layers) for name in names]
    return [value for value in found if isinstance(value, mx.array)]


def prompts_of(model: Any, rows: Sequence[Row], caches: Sequence[Any]) -> PromptProcessingBatch:
    """Return rows in prefill. Each is its own uid; what upstream samples and stops by is not used."""
    count = len(rows)
    return PromptProcessingBatch(
        model,
        list(rows),
        list(caches),
        samplers=[None] * count,
        logits_processors=[()] * count,
        stop_sequences=[_NO_STOPS] * count,
        max_tokens=[0] * count,
    )


def _order_rings(layers: Sequence[Any]) -> None:
    """Order rings before a chunk's mask is made. mlx-lm makes the mask from the place in the ring where the
    last single token was written, and orders the ring after that: the mask then hides one valid token of a
    shorter row (not reported)."""
    for layer in leaves(layers):
        if isinstance(layer, BatchRotatingKVCache) and layer.rotated:
            layer._temporal_order()


class Batch:
    """All rows, in any stage, on the default stream: with another beside it each join and leave would be an
    event between two, and an error on one would not be seen on the other."""

    def __init__(self, model: Any, layout: CacheLayout, adapters: Adapters | None = None) -> None:
        """Without `adapters`, no row has one."""
        self.model = model
        self._layout = layout
        self._adapters = adapters or Adapters(model)
        self._prefills: list[PrefillBatch] = []
        self._generation_batch = self._empty()
        self._label_batch = self._empty()
        self._label_head = LabelHead(model)
        self._decode_steps = 0
        self.rows: dict[int, Row] = {}
        """Rows by request id."""

    def _empty(self) -> DecodeBatch:
        batch: DecodeBatch = DecodeBatch.empty(self.model, None)
        batch.adapters = self._adapters
        return batch

    @property
    def begun(self) -> Begun:
        """Return the rows in the middle of their prefill."""
        return [
            BegunBatch(frozenset(row.sequence.request_id for row in batch.rows), batch.passed_steps)
            for batch in self._prefills
        ]

    @property
    def has_pending(self) -> bool:
        return self._generation_batch.has_pending

    @property
    def decoding(self) -> int:
        return len(self._generation_batch)

    @property
    def nbytes(self) -> int:
        """Return bytes of all rows' caches. Until a row joins, it has none."""
        return sum(sum(map(_NBYTES, batch.prompt_cache)) for batch in self._batches)

    def add(self, row: Row) -> None:
        """Take in a row. It joins a batch with its first chunk, or with the next decode if only its last
        prompt token is left."""
        self.rows[row.sequence.request_id] = row

    def drop(self, row: Row) -> None:
        """Remove the row and free its caches."""
        if row.joined:
            batch, place = self._place_of(row)
            batch.filter([at for at in range(len(batch)) if at != place])
            self._forget_empty()
        self._left(row)

    def _left(self, row: Row) -> None:
        """Note that a row is in the batch no longer: nothing can address its caches from now on."""
        del self.rows[row.sequence.request_id]
        row.joined = False

    def layers_of(self, row: Row) -> Sequence[Any]:
        """Return a view of the row's caches, a layer each. Hold it no longer than until the next step."""
        batch, place = self._place_of(row)
        return list(batch.extract_cache(place))

    @property
    def _batches(self) -> list[PrefillBatch | DecodeBatch]:
        return [*self._prefills, self._label_batch, self._generation_batch]

    def _place_of(self, row: Row) -> tuple[PrefillBatch | DecodeBatch, int]:
        return next((batch, batch.rows.index(row)) for batch in self._batches if row in batch.rows)

    def _forget_empty(self) -> None:
        self._prefills = [batch for batch in self._prefills if batch.rows]

    def prefill(self, tokens: Mapping[Row, int]) -> list[PromptLogprobsOut]:
        """Compute this number of prompt tokens of each row: of all rows of one batch, or of none of any, and
        of rows that join it, or form a new one."""
        if not tokens:
            return []
        for batch in self._prefills:
            batch.passed_steps += 1
        found = [one for one in self._prefills if not tokens.keys().isdisjoint(one.rows)]
        batch = found[0] if found else self._new()
        batch.passed_steps = 0
        if new := [row for row in tokens if not row.joined]:
            batch.extend(self._join(new))
        return batch.compute(tokens)

    def _new(self) -> PrefillBatch:
        batch: PrefillBatch = PrefillBatch.empty(self.model, None)
        batch.adapters = self._adapters
        self._prefills.append(batch)
        return batch

    def start_decoding(self) -> list[Row]:
        """Move the rows with only their last prompt token left to those that decode, or to those that are
        asked for labels. Return them."""
        whole = [row for row in self.rows.values() if row.sequence.begins_to_decode]
        self._extend(self._generation_batch, [row for row in whole if not row.sequence.submit.labels])
        self._extend(self._label_batch, [row for row in whole if row.sequence.submit.labels])
        self._forget_empty()
        return whole

    def _extend(self, batch: DecodeBatch, rows: Sequence[Row]) -> None:
        if new := [row for row in rows if not row.joined]:
            batch.extend(DecodeBatch.of(self._join(new)))
        for prompts in self._prefills:
            if ready := [at for at, row in enumerate(prompts.rows) if row in rows]:
                batch.extend(DecodeBatch.of(prompts.split(ready)))

    def read_labels(self) -> list[Labelled]:
        """Return the log-probabilities that rows ask for whose prompts are computed but for a token. They
        leave the batch."""
        if not self._label_batch.rows:
            return []
        labelled = self._label_batch.read_labels(self._label_head)
        for one in labelled:
            self._left(one.row)
        return labelled

    def decode(self, overlap: bool, drafts: DraftTokens) -> list[Sampled]:
        """Compute a token of each row that decodes, and verify `drafts`, which are by request id."""
        if not self.decoding:
            return []
        self._decode_steps += 1
        if self._decode_steps % _CLEARED_STEPS == 0:
            device().free_buffers()
        decoding = self._generation_batch
        if verified := {
            row: drafts[row.sequence.request_id] for row in decoding.rows if row.sequence.request_id in drafts
        }:
            emitted = decoding.verify(verified)
        else:
            emitted = decoding.step(overlap)
        if self._decode_steps % _EVALUATED_STEPS == 0:
            mx.async_eval(_counters(self._generation_batch.prompt_cache))  # type: ignore[no-untyped-call]
        return self._ended(emitted)

    def emit_pending(self) -> list[Sampled]:
        return self._ended(self._generation_batch.emit_pending()) if self.has_pending else []

    def _ended(self, emitted: list[Sampled]) -> list[Sampled]:
        for sampled in emitted:
            if sampled.finish is not None:
                self._left(sampled.row)
        return emitted

    def _join(self, rows: list[Row]) -> PromptProcessingBatch:
        """Return rows with their caches, as a batch that ours may be extended by."""
        for row in rows:
            row.joined = True
        return prompts_of(self.model, rows, [row.start_layers(self._layout) for row in rows])

    def rebase(self, leases: RowLeases) -> None:
        """Make rows attend in place to the first pieces of their leases."""
        for batch in self._batches:
            places = {at: leases[row] for at, row in enumerate(batch.rows) if row in leases}
            if places:
                self._layout.rebase(batch.prompt_cache, places)
