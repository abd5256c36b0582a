"""Repetition, frequency and presence penalties, in vLLM's arithmetic.

The repetition penalty divides positive and multiplies negative logits of every token in prompt or output, or
of those among the last `repetition_context` of both, as mlx-lm's does; the others subtract by the output's
counts.

`Penalties` stays in MLX's graph. `HostCounts` is for processors whose vectors NumPy uses and MLX does not
(`host_chooser.py`): it looks only at the tokens that occur in a row's prompt or output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.engine.mlx.sampling.row_arrays import column, put
from scheduler.shared.messages import Sampling


def penalises(params: Sampling) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


@dataclass(slots=True, eq=False)
class TokenCounts:
    """The tokens of one row's prompt and output; `repeated` and `counts` are (vocabulary,) float32."""

    repeated: mx.array
    """How often each token is in what the repetition penalty counts."""
    counts: mx.array
    """How often each token is in the output."""
    window: mx.array | None
    """(repetition_context,) int32: the tokens that the repetition penalty counts, as a ring; -1 where there
    is none yet. If this is None, it counts all tokens."""
    oldest: int
    """The place in `window` that the next token takes."""

    @classmethod
    def of(
        cls, prompt: Sequence[int], output: Sequence[int], vocabulary: int, context: int = 0
    ) -> TokenCounts:
        tokens = _last(prompt, output, context)
        window = mx.array([*tokens, *[-1] * (context - len(tokens))], dtype=mx.int32) if context else None
        oldest = len(tokens) % context if context else 0
        return cls(_counted(tokens, vocabulary), _counted(output, vocabulary), window, oldest)


def _last(prompt: Sequence[int], output: Sequence[int], context: int) -> list[int]:
    """Return what the repetition penalty counts, in order."""
    return [*prompt, *output][-context:]


def _counted(tokens: Sequence[int], vocabulary: int) -> mx.array:
    counts = mx.zeros((vocabulary,), mx.float32)
    return counts.at[mx.array(list(tokens))].add(1.0) if tokens else counts


class Penalties:
    """The rows of a batch that have penalties. Rebuilt when rows join or leave; `save` writes the counts back
    to the rows."""

    def __init__(self, rows: Sequence[tuple[int, Sampling, TokenCounts]]) -> None:
        """`rows`: each row's place in the batch, its parameters and its counts."""
        self._rows = [known for _, _, known in rows]
        self._index = mx.array([place for place, _, _ in rows])
        self._order = mx.arange(len(rows))
        self._repetition = column([params.repetition_penalty for _, params, _ in rows])
        self._presence = column([params.presence_penalty for _, params, _ in rows])
        self._frequency = column([params.frequency_penalty for _, params, _ in rows])
        self._counts = mx.stack([known.counts for known in self._rows])
        self._repeated = mx.stack([known.repeated for known in self._rows])

    def save(self) -> None:
        for i, known in enumerate(self._rows):
            known.counts, known.repeated = self._counts[i], self._repeated[i]

    def apply(self, logits: mx.array, inputs: mx.array, is_output: Sequence[bool]) -> mx.array:
        """Return the logits with penalties. `inputs`: for the whole batch, the tokens that (rows, vocabulary)
        float32 `logits` follow. `is_output`: for each row with penalties, whether its input is a new output
        token."""
        inputs = inputs[self._index]
        new = mx.array(list(is_output), dtype=mx.float32)
        self._counts = self._counts.at[self._order, inputs].add(new)
        self._repeated = self._repeated.at[self._order, inputs].add(new)
        for place, (known, counts) in enumerate(zip(self._rows, is_output, strict=True)):
            if counts and known.window is not None:
                self._slide(place, known, known.window, inputs[place])
        chosen = logits[self._index]
        # -inf stays -inf: the factor is a positive normal number (`RowSampling`), and the others are finite.
        repeated = mx.where(chosen > 0, chosen / self._repetition, chosen * self._repetition)
        chosen = mx.where(self._repeated > 0, repeated, chosen)
        chosen = chosen - self._frequency * self._counts - self._presence * (self._counts > 0)
        return put(logits, self._index, chosen)

    def _slide(self, place: int, known: TokenCounts, window: mx.array, token: mx.array) -> None:
        """Put a row's new token into its window, in place of the oldest. No token is read: it may not be
        computed yet."""
        oldest = window[known.oldest]
        self._repeated = self._repeated.at[place, mx.maximum(oldest, 0)].subtract(
            (oldest >= 0).astype(mx.float32)
        )
        known.window = window.at[known.oldest].add(token.astype(mx.int32) - oldest)
        known.oldest = (known.oldest + 1) % len(window)


@dataclass(slots=True, eq=False)
class HostCounts:
    """The tokens of one row's prompt and output."""

    seen: npt.NDArray[np.intp]
    """The tokens of prompt and output, each once."""
    counts: npt.NDArray[np.float32]
    """(vocabulary,): how often each token is in the output."""
    window: deque[int] | None
    """The tokens that the repetition penalty counts, or None for all of `seen`."""
    repeated: npt.NDArray[np.intp]
    """(vocabulary,): how often each token is in `window`."""

    @classmethod
    def of(
        cls, prompt: Sequence[int], output: Sequence[int], vocabulary: int, context: int = 0
    ) -> HostCounts:
        counts = np.bincount(np.array(output, np.intp), minlength=vocabulary).astype(np.float32)
        window = deque(_last(prompt, output, context), context) if context else None
        repeated = np.bincount(np.array(window or [], np.intp), minlength=vocabulary)
        return cls(np.unique(np.array([*prompt, *output], np.intp)), counts, window, repeated)

    def add(self, token: int) -> None:
        if not self.counts[token] and token not in self.seen:
            self.seen = np.append(self.seen, token)
        self.counts[token] += 1.0
        if self.window is not None:
            if len(self.window) == self.window.maxlen:
                self.repeated[self.window[0]] -= 1
            self.window.append(token)
            self.repeated[token] += 1

    def penalise(self, logits: npt.NDArray[np.float32], params: Sampling) -> None:
        """Penalise in place, where logits are finite: a masked token stays masked. Python's numbers leave
        float32 as it is."""
        own, counts = logits[self.seen], self.counts[self.seen]
        chosen = np.where(own > 0, own / params.repetition_penalty, own * params.repetition_penalty)
        if self.window is not None:
            chosen = np.where(self.repeated[self.seen] > 0, chosen, own)
        chosen = chosen - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        finite = np.isfinite(own)
        logits[self.seen] = chosen if finite.all() else np.where(finite, chosen, own)
