"""BatchGenerator with our own step: one model call, one pass over all rows' logits, and nothing else.

mlx-lm's step takes a log-softmax over the vocabulary, calls a sampler a row as soon as two rows differ, and
hands out the log-probabilities of every row. Everything else of BatchGenerator is its own, so its lists of
log-probabilities hold for each row what `engine/logprobs.py` has of it, or None.

Its `next` decodes first and reads prompts afterwards, and tells a token when it is the next step's input: so
the first token of a prompt waits for two chunks of others. Here `read` comes first, `decode` takes along what
has been read, and as long as there are prompts to read tokens are told at once. Without, a step is submitted
before the last one's tokens are told, because the device computes while they are routed and the next graph is
built (0.89 of the time a step, also on a CPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch

from scheduler.engine.logprobs import RowLogprobs
from scheduler.engine.row_sampling import RowSampling
from scheduler.engine.rows.cache_layout import leaves
from scheduler.engine.sampling import RowsSampler

_CLEARED_STEPS = 512
"""Upstream's: so often MLX gives its freed buffers back."""
_EVALUATED_STEPS = 64
"""So often what no token depends on is evaluated as well: mlx-lm's recurrent layers subtract 1 from their
`left_padding` or `lengths` in each step (mlx-lm #1845), layers without rotary positions add 1 to `offset`.
Else that is a graph which grows until the batch is empty. Each link holds a buffer, of which Metal has
499,000: with 36 recurrent layers 14,000 steps."""


class SampledBatch(GenerationBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows that decode. `samplers` holds a RowSampling for each."""

    uids: list[int]
    tokens: list[list[int]]
    samplers: list[RowSampling]
    prompt_cache: list[Any]
    _next_tokens: mx.array
    _next_logprobs: list[RowLogprobs | None]
    owes: bool = False
    """Whether the next inputs have not been told yet. Rows do not join before they are."""
    _undrawn: tuple[mx.array, mx.array] | None = None
    """What the next inputs are still to be drawn from: logits, and their inputs."""
    _telling: tuple[list[int], list[RowLogprobs | None]]
    _rows_sampler: RowsSampler | None = None

    def begin(self, last_tokens: list[int], **rows: list[Any]) -> None:
        """Hold these rows, whose lists come as GenerationBatch names them; nothing is computed yet."""
        self.__dict__.update(rows)
        count = len(last_tokens)
        self._next_tokens = mx.array(last_tokens, dtype=mx.uint32)
        self._next_logprobs = [None] * count
        self._token_context = [None] * count  # For logits processors, which nobody has here.
        self._num_tokens = [0] * count
        self._matchers = [stops.matcher() for stops in self.stop_sequences]

    def settle(self) -> list[Any]:
        """Tell what is owed."""
        self._draw()
        told: Any = self._next_tokens.tolist()
        return self._tell(told, self._next_logprobs, owing=False)

    def step(self, at_once: bool) -> list[Any]:
        """A token of each row is computed. `at_once`: and told; else those that were owed, if any were."""
        self._draw()
        owed, logprobs = self.owes, self._next_logprobs
        inputs = self._submit()
        if at_once:
            assert not owed
            return self.settle()
        self.owes = True
        return self._tell(inputs, logprobs, owing=True) if owed else []

    def _submit(self) -> list[int]:
        inputs = self._next_tokens
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        self._undrawn = logits, inputs
        sampler = self._sampler_of(self.samplers)
        if sampler.draws_on_host and not sampler.constrained:
            # The draw waits for the model: it is left to whoever needs the tokens.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        else:
            self._draw()
        known: list[int] = inputs.tolist()  # type: ignore[assignment]
        for history, token in zip(self.tokens, known, strict=True):
            history.append(token)
        return known

    def _draw(self) -> None:
        if self._undrawn is None:
            return
        (logits, inputs), self._undrawn = self._undrawn, None
        sampler = self._sampler_of(self.samplers)
        if sampler.constrained:
            # A grammar's next mask follows from the token before it: it is made while the model computes, and
            # only the draw waits for it.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            sampler.advance(inputs.tolist())  # type: ignore[arg-type]
        self._next_tokens = sampler(logits, inputs)
        self._next_logprobs, asked = sampler.logprobs.extract(logits, self._next_tokens)
        mx.async_eval(self._next_tokens, asked)  # type: ignore[no-untyped-call]

    def _tell(self, tokens: list[int], logprobs: list[RowLogprobs | None], owing: bool) -> list[Any]:
        self._telling = tokens, logprobs
        self.owes = owing
        answers: list[Any] = self.next()
        return answers

    def _step(self) -> tuple[list[int], list[RowLogprobs | None]]:
        """What upstream's `next` tells, and who has ended with it."""
        return self._telling

    def _sampler_of(self, rows: Sequence[RowSampling]) -> RowsSampler:
        """The rows' parameters lie side by side on the device until the rows change."""
        known = self._rows_sampler
        if known is None or known.rows != tuple(rows):  # They compare by identity.
            if known is not None:
                known.leave()
            self._rows_sampler = known = RowsSampler(rows)
        return known

    def extend(self, batch: SampledBatch) -> None:
        if batch._rows_sampler is not None:
            batch._rows_sampler.leave()  # Its rows are ours now, and so are their counts.
        super().extend(batch)

    def filter(self, keep: list[int]) -> None:
        """Rows keep their places; the last ones move to those that have become free."""
        keep = _in_place(keep)
        super().filter(keep)
        if self._undrawn is not None:
            logits, inputs = self._undrawn
            self._undrawn = (logits[mx.array(keep)], inputs[mx.array(keep)]) if keep else None
        self.owes = self.owes and bool(keep)


def _in_place(keep: Sequence[int]) -> list[int]:
    """The same rows, in the order in which fewest of them move."""
    stay = {row for row in keep if row < len(keep)}
    movers = iter(row for row in keep if row >= len(keep))
    return [place if place in stay else next(movers) for place in range(len(keep))]


class PromptBatch(PromptProcessingBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows in prefill."""

    uids: list[int]
    tokens: list[list[int]]
    samplers: list[RowSampling]
    prompt_cache: list[Any]
    logits_processors: list[Any]
    max_tokens: list[int]

    def prompt(self, tokens: list[list[int]]) -> None:
        """Compute a chunk of each row. As upstream's, but MLX's freed buffers stay for the next chunk: giving
        them back after each costs the page faults of all its activations again."""
        if not tokens:
            return
        for history, chunk in zip(self.tokens, tokens, strict=True):
            history += chunk
        lengths = [len(chunk) for chunk in tokens]
        longest = max(lengths)
        ragged = min(lengths) < longest
        if ragged:
            for layer in self.prompt_cache:
                layer.prepare(lengths=lengths, right_padding=[longest - length for length in lengths])
        self.model(
            mx.array([chunk + [0] * (longest - len(chunk)) for chunk in tokens]), cache=self.prompt_cache
        )
        if ragged:
            for layer in self.prompt_cache:
                layer.finalize()
        mx.eval([layer.state for layer in self.prompt_cache], _counters(self.prompt_cache))

    def generate(self, tokens: list[list[int]]) -> SampledBatch:
        """The rows begin to decode, with the last token of each."""
        generation: SampledBatch = SampledBatch.empty(self.model, None)
        generation.begin(
            [last for (last,) in tokens],
            uids=self.uids,
            prompt_cache=self.prompt_cache,
            tokens=self.tokens,
            samplers=self.samplers,
            logits_processors=self.logits_processors,
            stop_sequences=self.stop_sequences,
            max_tokens=self.max_tokens,
        )
        self.uids, self.prompt_cache, self.tokens, self.samplers = [], [], [], []
        self.logits_processors, self.max_tokens = [], []
        return generation


class RowsGenerator(BatchGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """`samplers` of `insert` are RowSamplings."""

    _currently_processing: list[list[Any]]
    """Of each row in prefill: the pieces that are left, tokens done, tokens in all."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self._prompt_batch = PromptBatch.empty(model, None, prefill_step_size=self.prefill_step_size)
        self._generation_batch = SampledBatch.empty(model, None)

    @property
    def decoding(self) -> int:
        return len(self._generation_batch.uids)

    def read(self) -> list[Any]:
        """A chunk of each prompt in prefill, with those that there is room for; what has become of each."""
        with mx.stream(self._stream):
            room = self.prefill_batch_size - len(self._prompt_batch)
            if (count := min(room, len(self._unprocessed_sequences))) > 0:
                self._prompt_batch.extend(self._make_batch(count))
            told = self._begin()  # Those of whose prompts nothing is left to read but the last token.
            self._prompt_batch.prompt([self._chunk(at, told) for at in range(len(self._prompt_batch))])
            return told

    def _chunk(self, at: int, told: list[Any]) -> list[int]:
        row = self._currently_processing[at]
        pieces, done, total = row
        chunk: list[int] = pieces[0][: self.prefill_step_size]
        rest = pieces[0][self.prefill_step_size :]
        pieces[:1] = [rest] if rest else []
        row[1] = done + len(chunk)
        uid = self._prompt_batch.uids[at]
        told.append(PromptProcessingBatch.Response(uid, (row[1], total), not rest, False))
        return chunk

    def settle(self) -> list[Any]:
        """Tell the tokens that are owed, where prompts have come, which are not to wait for them."""
        if not self._generation_batch.owes or not (self._currently_processing or self._unprocessed_sequences):
            return []
        with mx.stream(self._stream):
            answers: list[Any] = self._generation_batch.settle()
            return answers

    def decode(self, at_once: bool) -> tuple[list[Any], list[Any]]:
        """The prompts that are whole, which take part with their last token, and the tokens to tell: at once,
        as it must be where any were read, or those that are owed."""
        with mx.stream(self._stream):
            begun = self._begin()
            if not self._generation_batch.uids:
                return begun, []
            self._counters.generation_steps += 1
            if self._counters.generation_steps % _CLEARED_STEPS == 0:
                mx.clear_cache()
            answers = self._generation_batch.step(at_once)
            if self._counters.generation_steps % _EVALUATED_STEPS == 0:
                counters = _counters(self._generation_batch.prompt_cache)
                mx.async_eval(counters)  # type: ignore[no-untyped-call]
            return begun, answers

    def _begin(self) -> list[Any]:
        ready = [at for at, (pieces, *_) in enumerate(self._currently_processing) if is_read(pieces)]
        if not ready:
            return []
        rows = [self._currently_processing[at] for at in ready]
        responses = [
            PromptProcessingBatch.Response(self._prompt_batch.uids[at], (total, total), True, True)
            for at, (_, _, total) in zip(ready, rows, strict=True)
        ]
        self._currently_processing = [
            row for at, row in enumerate(self._currently_processing) if at not in ready
        ]
        batch = self._prompt_batch.split(ready).generate([pieces[0] for pieces, *_ in rows])
        self._generation_batch.extend(batch)
        return responses


def _counters(layers: list[Any]) -> list[mx.array]:
    """What caches count rows' positions with. Upstream's sliding windows see to their own."""
    found = [
        getattr(layer, name, None)
        for layer in leaves(layers)
        for name in ("left_padding", "lengths", "offset")
    ]
    return [value for value in found if isinstance(value, mx.array)]


def is_read(pieces: list[list[int]]) -> bool:
    """Only the last token is left of a prompt, with which the row begins to decode instead of reading on."""
    return len(pieces) == 1 and len(pieces[0]) == 1
