"""BatchGenerator with our own step: one model call, one pass over all rows' logits, and nothing else.

mlx-lm's step takes a log-softmax over the vocabulary, calls a sampler a row as soon as two rows differ, and
hands out the log-probabilities of every row. Everything else of BatchGenerator is its own, so its lists of
log-probabilities hold for each row what `engine/logprobs.py` has of it, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch, StopSequences

from scheduler.engine.logprobs import RowLogprobs
from scheduler.engine.sampling import RowSampling, RowsSampler

_NO_STOPS = StopSequences([])


class SampledBatch(GenerationBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows that decode. `samplers` holds a RowSampling for each."""

    uids: list[int]
    tokens: list[list[int]]
    samplers: list[RowSampling]
    prompt_cache: list[Any]
    _next_tokens: mx.array
    _next_logprobs: list[RowLogprobs | None]
    _pending: tuple[mx.array, mx.array] | None = None
    """The last model call's logits and their inputs, while no token is drawn from them yet."""
    _rows_sampler: RowsSampler | None = None
    _num_tokens: list[int]
    """Of each row's answer; -1 while its next input is its prompt's last token, which is nothing to tell."""

    def begin(self, last_tokens: list[int], **rows: list[Any]) -> None:
        """Hold these rows, whose lists come as GenerationBatch names them; nothing is computed yet."""
        self.__dict__.update(rows)
        count = len(last_tokens)
        self._next_tokens = mx.array(last_tokens, dtype=mx.uint32)
        self._next_logprobs = [None] * count
        self._token_context = [None] * count  # For logits processors, which nobody has here.
        self._num_tokens = [-1] * count
        self._matchers = [_NO_STOPS.matcher() for _ in last_tokens]

    def next(self) -> list[Any]:
        beginning = {uid for uid, said in zip(self.uids, self._num_tokens, strict=True) if said < 0}
        answers: list[Any] = super().next()
        if not beginning:
            return answers
        for place, uid in enumerate(self.uids):
            if uid in beginning:
                self._matchers[place] = self.stop_sequences[place].matcher()
        return [answer for answer in answers if answer.uid not in beginning]

    def _step(self) -> tuple[list[int], list[RowLogprobs | None]]:
        self._draw_pending()
        inputs = self._current_tokens = self._next_tokens
        self._current_logprobs = self._next_logprobs
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        self._pending = logits, inputs
        sampler = self._sampler_of(self.samplers)
        if sampler.draws_on_host and not sampler.constrained:
            # The draw waits for the model: it is the next step's beginning, and this step's tokens are routed
            # while the model computes.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        else:
            self._draw_pending()
        tokens: Any = inputs.tolist()
        for history, token in zip(self.tokens, tokens, strict=True):
            history.append(token)
        return tokens, self._current_logprobs

    def _draw_pending(self) -> None:
        """The tokens that follow from the last model call."""
        if self._pending is None:
            return
        (logits, inputs), self._pending = self._pending, None
        sampler = self._sampler_of(self.samplers)
        if sampler.constrained:
            # A grammar's next mask follows from the token before it: it is made while the model computes, and
            # only the draw waits for it.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            sampler.advance(inputs.tolist())  # type: ignore[arg-type]
        self._next_tokens = sampler(logits, inputs)
        self._next_logprobs, asked = sampler.logprobs.extract(logits, self._next_tokens)
        mx.async_eval(self._next_tokens, asked)  # type: ignore[no-untyped-call]

    def _sampler_of(self, rows: Sequence[RowSampling]) -> RowsSampler:
        """The rows' parameters lie side by side on the device until the rows change."""
        known = self._rows_sampler
        if known is None or known.rows != tuple(rows):  # They compare by identity.
            if known is not None:
                known.leave()
            self._rows_sampler = known = RowsSampler(rows)
        return known

    def extend(self, batch: SampledBatch) -> None:
        self._draw_pending()
        if batch._rows_sampler is not None:
            batch._rows_sampler.leave()  # Its rows are ours now, and so are their counts.
        super().extend(batch)

    def filter(self, keep: list[int]) -> None:
        """Rows keep their places; the last ones move to those that have become free."""
        keep = _in_place(keep)
        super().filter(keep)
        if self._pending is not None:
            logits, inputs = self._pending
            self._pending = (logits[mx.array(keep)], inputs[mx.array(keep)]) if keep else None


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
        mx.eval([layer.state for layer in self.prompt_cache])

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

    def _next(self) -> tuple[list[Any], list[Any]]:
        """As upstream's, but rows of whose prompts one token is left join before the step and compute it with
        all others; upstream gives them a pass of their own after it, a third of a step for one row."""
        begun = self._begin()
        prompts, answers = super()._next()
        return [*begun, *prompts], answers

    def _begin(self) -> list[Any]:
        room = self.prefill_batch_size - len(self._prompt_batch)
        if (count := min(room, len(self._unprocessed_sequences))) > 0:
            self._prompt_batch.extend(self._make_batch(count))
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


def is_read(pieces: list[list[int]]) -> bool:
    """Only the last token is left of a prompt, with which the row begins to decode instead of reading on."""
    return len(pieces) == 1 and len(pieces[0]) == 1
