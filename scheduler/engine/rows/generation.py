"""BatchGenerator with our own step: one model call, one pass over all rows' logits, and nothing else.

mlx-lm's step takes a log-softmax over the vocabulary, calls a sampler a row as soon as two rows differ, and
hands out the log-probabilities of every row. Everything else of BatchGenerator is its own, so its lists of
log-probabilities hold for each row what `engine/logprobs.py` has of it, or None.

Its `next` decodes first and reads prompts afterwards, so that a prompt which is whole waits for the others'
next chunk before its first token. Here `read` comes first, and `decode` takes along what has been read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch, StopSequences

from scheduler.engine.logprobs import RowLogprobs
from scheduler.engine.sampling import RowSampling, RowsSampler

_NO_STOPS = StopSequences([])
_CLEARED_STEPS = 512
"""Upstream's: so often MLX gives its freed buffers back."""


class SampledBatch(GenerationBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows that decode. `samplers` holds a RowSampling for each."""

    uids: list[int]
    tokens: list[list[int]]
    samplers: list[RowSampling]
    prompt_cache: list[Any]
    _next_tokens: mx.array
    _next_logprobs: list[RowLogprobs | None]
    _rows_sampler: RowsSampler | None = None
    _num_tokens: list[int]
    """Of each row's answer; -1 where inputs are what is told and the next is its prompt's last token."""
    pipelined: bool = mx.default_device() != mx.cpu
    """A device of its own computes a step while the tokens of the one before are routed: they are told when
    they are the next step's inputs. MLX's CPU stream takes ten operations ahead and then waits, so nothing
    is gained there, and tokens are told at once (0.94 of the time a step, and each token a step sooner)."""

    def begin(self, last_tokens: list[int], **rows: list[Any]) -> None:
        """Hold these rows, whose lists come as GenerationBatch names them; nothing is computed yet."""
        self.__dict__.update(rows)
        count = len(last_tokens)
        self._next_tokens = mx.array(last_tokens, dtype=mx.uint32)
        self._next_logprobs = [None] * count
        self._token_context = [None] * count  # For logits processors, which nobody has here.
        self._num_tokens = [-1 if self.pipelined else 0] * count
        self._matchers = [(_NO_STOPS if self.pipelined else stops).matcher() for stops in self.stop_sequences]

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
        inputs, logprobs = self._next_tokens, self._next_logprobs
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        sampler = self._sampler_of(self.samplers)
        known: Any = None
        if sampler.constrained:
            # A grammar's next mask follows from the token before it: it is made while the model computes, and
            # only the draw waits for it.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            known = inputs.tolist()
            sampler.advance(known)
        self._next_tokens = sampler(logits, inputs)
        self._next_logprobs, asked = sampler.logprobs.extract(logits, self._next_tokens)
        mx.async_eval(self._next_tokens, asked)  # type: ignore[no-untyped-call]
        known = inputs.tolist() if known is None else known
        for history, token in zip(self.tokens, known, strict=True):
            history.append(token)
        if self.pipelined:
            return known, logprobs
        told: Any = self._next_tokens.tolist()
        return told, self._next_logprobs

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
        super().filter(_in_place(keep))


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

    def decode(self, wait: bool = False) -> tuple[list[Any], list[Any]]:
        """The prompts that are whole, which take part with their last token, and a token of each row. `wait`:
        until it is computed, for the sake of what times the next part of a step."""
        with mx.stream(self._stream):
            begun = self._begin()
            self._counters.generation_steps += 1
            if self._counters.generation_steps % _CLEARED_STEPS == 0:
                mx.clear_cache()
            answers = self._generation_batch.next()
            if wait and self._generation_batch.uids:
                mx.eval(self._generation_batch._next_tokens)
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


def is_read(pieces: list[list[int]]) -> bool:
    """Only the last token is left of a prompt, with which the row begins to decode instead of reading on."""
    return len(pieces) == 1 and len(pieces[0]) == 1
