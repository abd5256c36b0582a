"""Log-probabilities for the rows that request them: one batched extraction per step, read a step later.

They are the log-softmax in float32 of the model's unchanged logits, before bias, penalties, masks,
temperature and cut-offs (vLLM's default, `raw_logprobs`): the model's own distribution, independent of
sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from scheduler.engine.mlx.cpu.softmax import weight
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import MAX_TOP_LOGPROBS, LogprobsOut, PromptLogprobsOut

_LEAST = -9999.0
"""Replaces minus infinity, which JSON cannot express, as in OpenAI's API and in vLLM."""


class StepLogprobs:
    """One step's log-probabilities of all rows that request them, on the device until the first is read."""

    def __init__(self, chosen: mx.array, ids: mx.array | None, values: mx.array | None) -> None:
        """`chosen`: (requesting rows,); `ids` and `values`: (requesting rows, alternatives) in no order,
        or None where no row requests alternatives."""
        self._chosen, self._ids, self._values = chosen, ids, values
        self._read: list[tuple[float, list[tuple[int, float]]]] | None = None

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in (self._chosen, self._ids, self._values) if array is not None]

    def of(self, place: int, top: int) -> LogprobsOut:
        if self._read is None:
            self._read = self._all()
        chosen, best = self._read[place]
        return LogprobsOut(chosen, tuple(best[:top]))

    def _all(self) -> list[tuple[float, list[tuple[int, float]]]]:
        chosen: Any = self._chosen.tolist()
        tops: list[list[tuple[int, float]]] = [[] for _ in chosen]
        if self._ids is not None and self._values is not None:
            ids: Any = self._ids.tolist()
            values: Any = self._values.tolist()
            tops = [
                sorted(zip(row, map(_spelled, of_row), strict=True), key=_best_first)
                for row, of_row in zip(ids, values, strict=True)
            ]
        return list(zip(map(_spelled, chosen), tops, strict=True))


def _spelled(value: float) -> float:
    return max(_LEAST, value)  # In this order: max keeps the first if the second is NaN.


def _best_first(entry: tuple[int, float]) -> tuple[float, int]:
    token, value = entry
    return -value, token


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """One row's share of a step. It goes with its row when rows join and leave."""

    step: StepLogprobs
    place: int
    top: int

    def read(self) -> LogprobsOut:
        return self.step.of(self.place, self.top)


class LogprobsRequested:
    """The rows of a batch that request log-probabilities. Rebuilt when rows join or leave."""

    def __init__(self, tops: Sequence[int | None]) -> None:
        """`tops`: for each row, how many of the likeliest tokens it wants beside the chosen one, or None."""
        self._rows = len(tops)
        self._requested = [(row, top) for row, top in enumerate(tops) if top is not None]
        self._index = mx.array([row for row, _ in self._requested]) if self._requested else None

    def extract(self, logits: mx.array, tokens: mx.array) -> tuple[list[RowLogprobs | None], list[mx.array]]:
        """Return, for `tokens`, (rows,), chosen from `logits`, (rows, vocabulary), each row's share, or None,
        and the arrays to evaluate with the tokens. Without requests nothing is computed."""
        shares: list[RowLogprobs | None] = [None] * self._rows
        if self._index is None:
            return shares, []
        # Always the maximum: which of several equally likely tokens are among the best must not depend on
        # what a neighbour requests.
        most = MAX_TOP_LOGPROBS if any(top for _, top in self._requested) else 0
        step = _log_softmax(logits[self._index], tokens[self._index], most)
        for place, (row, top) in enumerate(self._requested):
            shares[row] = RowLogprobs(step, place, top)
        return shares, step.arrays


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The log-probabilities of prompt tokens that one row's chunk gives, on the device until the first is
    read."""

    sequence: EngineSequence
    positions: range
    step: StepLogprobs

    @classmethod
    def of(cls, sequence: EngineSequence, tokens: int, logits: mx.array) -> PromptChunk | None:
        """Return the part of a sequence that has just computed `tokens` of its prompt, with `logits`, (at
        least `tokens`, vocabulary), or None if it asks for none of these. They count as returned."""
        start = sequence.computed_tokens - tokens
        if not (positions := sequence.score(start, sequence.computed_tokens)):
            return None
        rows = logits[positions.start - 1 - start : positions.stop - 1 - start]
        ids = mx.array(sequence.tokens[positions.start : positions.stop].tolist(), dtype=mx.uint32)
        return cls(sequence, positions, _log_softmax(rows, ids, _top(sequence)))

    @property
    def arrays(self) -> list[mx.array]:
        return self.step.arrays

    def read(self) -> PromptLogprobsOut:
        entries = [self.step.of(place, _top(self.sequence)) for place in range(len(self.positions))]
        return PromptLogprobsOut(self.sequence.request_id, self.positions.start, entries)


def _top(sequence: EngineSequence) -> int:
    return sequence.submit.prompt_logprobs or 0


def _log_softmax(logits: mx.array, tokens: mx.array, most: int) -> StepLogprobs:
    """Return the log-probabilities of `tokens`, (rows,), and of the `most` likeliest in their places, by
    `logits`, (rows, vocabulary)."""
    scores = logits.astype(mx.float32)
    best = mx.max(scores, axis=-1, keepdims=True)
    total = best + mx.log(mx.sum(weight(scores - best), axis=-1, keepdims=True))
    chosen = mx.take_along_axis(scores, tokens[:, None], axis=-1) - total
    ids = values = None
    if most := min(most, scores.shape[-1]):
        ids = mx.argpartition(scores, kth=-most, axis=-1)[:, -most:]
        values = mx.take_along_axis(scores, ids, axis=-1) - total
    return StepLogprobs(chosen[:, 0], ids, values)
