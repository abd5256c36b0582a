"""Repetition, frequency and presence penalties, in vLLM's arithmetic: the repetition penalty divides positive
and multiplies negative logits of every token in prompt or output; the others subtract by the output's counts.

`Penalties` stays in MLX's graph. `HostPenalties` is for processors whose vectors NumPy uses and MLX does not
(`rows/softmax.py`): 32 rows of 8,192 tokens take a fifth of the time there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.engine.draw import column, put
from scheduler.link.messages import Sampling


def penalises(params: Sampling) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


@dataclass(slots=True, eq=False)
class TokenCounts:
    """What one row has said; both (vocabulary,) float32."""

    seen: mx.array
    """1 for each token of prompt or output."""
    counts: mx.array
    """How often each token is in the output."""

    @classmethod
    def of(cls, prompt: Sequence[int], output: Sequence[int], vocabulary: int) -> TokenCounts:
        counts = _counted(output, vocabulary)
        return cls(mx.minimum(_counted(prompt, vocabulary) + counts, 1.0), counts)


def _counted(tokens: Sequence[int], vocabulary: int) -> mx.array:
    counts = mx.zeros((vocabulary,), mx.float32)
    return counts.at[mx.array(list(tokens))].add(1.0) if tokens else counts


class Penalties:
    """Of those rows of a batch that have any; made anew when rows join or leave. `save` gives the rows their
    counts back."""

    def __init__(self, rows: Sequence[tuple[int, Sampling, TokenCounts]]) -> None:
        """`rows`: of each its place in the batch, its parameters and what it has said."""
        self._rows = [known for _, _, known in rows]
        self._index = mx.array([place for place, _, _ in rows])
        self._order = mx.arange(len(rows))
        self._repetition = column([params.repetition_penalty for _, params, _ in rows])
        self._presence = column([params.presence_penalty for _, params, _ in rows])
        self._frequency = column([params.frequency_penalty for _, params, _ in rows])
        self._counts = mx.stack([known.counts for known in self._rows])
        self._seen = mx.stack([known.seen for known in self._rows])

    def save(self) -> None:
        for i, known in enumerate(self._rows):
            known.counts, known.seen = self._counts[i], self._seen[i]

    def apply(self, logits: mx.array, inputs: mx.array, said: Sequence[bool]) -> mx.array:
        """`inputs`: of the whole batch, the tokens that (rows, vocabulary) `logits` follow; `said`: of our
        rows, whether that is a new token of their output."""
        inputs = inputs[self._index]
        self._counts = self._counts.at[self._order, inputs].add(mx.array(list(said), dtype=mx.float32))
        self._seen = mx.maximum(self._seen, mx.minimum(self._counts, 1.0))
        chosen = logits[self._index].astype(mx.float32)
        repeated = mx.where(chosen > 0, chosen / self._repetition, chosen * self._repetition)
        chosen = mx.where(self._seen > 0, repeated, chosen)
        chosen = chosen - self._frequency * self._counts - self._presence * (self._counts > 0)
        return put(logits, self._index, chosen.astype(logits.dtype))


class HostPenalties(Penalties):
    """The same, evaluated and handed to NumPy; of each row only the tokens that it has seen."""

    def __init__(self, rows: Sequence[tuple[int, Sampling, TokenCounts]]) -> None:
        super().__init__(rows)
        self._params = [params for _, params, _ in rows]
        self._tokens = [np.flatnonzero(np.array(known.seen)) for known in self._rows]
        self._host_counts: npt.NDArray[np.float32] = np.array(self._counts)

    def save(self) -> None:
        seen = np.zeros_like(self._host_counts)
        for row, tokens in enumerate(self._tokens):
            seen[row, tokens] = 1.0
        self._counts, self._seen = mx.array(self._host_counts), mx.array(seen)
        super().save()

    def apply(self, logits: mx.array, inputs: mx.array, said: Sequence[bool]) -> mx.array:
        chosen, inputs = logits[self._index].astype(mx.float32), inputs[self._index]
        mx.eval(chosen, inputs)
        numbers: npt.NDArray[np.float32] = np.array(chosen)
        for row, (params, token, is_output) in enumerate(
            zip(self._params, np.array(inputs), said, strict=True)
        ):
            if is_output:
                if token not in (known := self._tokens[row]):
                    self._tokens[row] = np.append(known, token)
                self._host_counts[row, token] += 1.0
            self._penalise(numbers[row], self._tokens[row], self._host_counts[row], params)
        return put(logits, self._index, mx.array(numbers).astype(logits.dtype))

    @staticmethod
    def _penalise(
        logits: npt.NDArray[np.float32],
        tokens: npt.NDArray[np.intp],
        counts: npt.NDArray[np.float32],
        params: Sampling,
    ) -> None:
        """In place. Python's numbers leave float32 as it is."""
        seen, said = logits[tokens], counts[tokens]
        seen = np.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
        logits[tokens] = seen - params.frequency_penalty * said - params.presence_penalty * (said > 0)
