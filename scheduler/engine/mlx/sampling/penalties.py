"""Repetition, frequency and presence penalties, in vLLM's arithmetic.

The repetition penalty divides positive and multiplies negative logits of every token in prompt or output; the
others subtract by the output's counts.

`Penalties` stays in MLX's graph. `HostCounts` is for processors whose vectors NumPy uses and MLX does not
(`host_chooser.py`): it looks only at the tokens that occur in a row's prompt or output.
"""

from __future__ import annotations

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
    """How often each token is in one row's prompt and output, and in its output: (vocabulary,) float32."""

    whole: mx.array
    output: mx.array

    @classmethod
    def of(cls, prompt: Sequence[int], output: Sequence[int], vocabulary: int) -> TokenCounts:
        return cls(_counted([*prompt, *output], vocabulary), _counted(output, vocabulary))


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
        self._whole = mx.stack([known.whole for known in self._rows])
        self._output = mx.stack([known.output for known in self._rows])

    def save(self) -> None:
        for i, known in enumerate(self._rows):
            known.whole, known.output = self._whole[i], self._output[i]

    def apply(self, logits: mx.array, inputs: mx.array, is_output: Sequence[bool]) -> mx.array:
        """Return the logits with penalties. `inputs`: for the whole batch, the tokens that (rows, vocabulary)
        float32 `logits` follow. `is_output`: for each row with penalties, whether its input is a new output
        token."""
        inputs = inputs[self._index]
        new = mx.array(list(is_output), dtype=mx.float32)
        self._whole = self._whole.at[self._order, inputs].add(new)
        self._output = self._output.at[self._order, inputs].add(new)
        chosen = logits[self._index]
        # -inf stays -inf: the factor is a positive normal number (`RowSampling`), and the others are finite.
        repeated = mx.where(chosen > 0, chosen / self._repetition, chosen * self._repetition)
        chosen = mx.where(self._whole > 0, repeated, chosen)
        chosen = chosen - self._frequency * self._output - self._presence * (self._output > 0)
        return put(logits, self._index, chosen)


@dataclass(slots=True, eq=False)
class HostCounts:
    """The tokens of one row's prompt and output."""

    seen: npt.NDArray[np.intp]
    """The tokens of prompt and output, each once."""
    counts: npt.NDArray[np.float32]
    """(vocabulary,): how often each token is in the output."""

    @classmethod
    def of(cls, prompt: Sequence[int], output: Sequence[int], vocabulary: int) -> HostCounts:
        counts = np.bincount(np.array(output, np.intp), minlength=vocabulary).astype(np.float32)
        return cls(np.unique(np.array([*prompt, *output], np.intp)), counts)

    def add(self, token: int) -> None:
        if not self.counts[token] and token not in self.seen:
            self.seen = np.append(self.seen, token)
        self.counts[token] += 1.0

    def penalise(self, logits: npt.NDArray[np.float32], params: Sampling) -> None:
        """Penalise in place, where logits are finite: a masked token stays masked. Python's numbers leave
        float32 as it is."""
        own, counts = logits[self.seen], self.counts[self.seen]
        chosen = np.where(own > 0, own / params.repetition_penalty, own * params.repetition_penalty)
        chosen = chosen - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        finite = np.isfinite(own)
        logits[self.seen] = chosen if finite.all() else np.where(finite, chosen, own)
