"""Makes a vector of hidden states: which tokens count, linear layers, length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.engine.sequence import EngineSequence
from scheduler.shared.pooling import PooledTokens, Pooler

Vector = npt.NDArray[np.float32]
_LEAST_LENGTH = 1e-12
"""The least length to divide by, as in PyTorch's `normalize`: a vector of zeros stays one."""


@dataclass(slots=True, eq=False)
class PooledRow:
    """A prompt that is being read. `layers`: its own KV cache, where it is read in chunks."""

    sequence: EngineSequence
    layers: list[Any] = field(default_factory=list)
    found: mx.array | None = None
    """The sum of hidden states of the chunks so far, or the chosen state, (hidden size), float32."""

    def add(self, hidden: mx.array, tokens: PooledTokens) -> None:
        """Take in the hidden states of a chunk, (tokens, hidden size)."""
        if tokens == "last":
            self.found = hidden[-1].astype(mx.float32)
        else:
            summed = hidden.astype(mx.float32).sum(axis=0)
            self.found = summed if self.found is None else self.found + summed

    def pooled(self, tokens: PooledTokens) -> mx.array:
        """Return the vector of the whole prompt."""
        assert self.found is not None, "a prompt without tokens"
        return self.found / self.sequence.prompt_tokens if tokens == "mean" else self.found


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer behind the pooling, as sentence-transformers writes them. `weight`: (out, in)."""

    weight: mx.array
    bias: mx.array | None
    tanh: bool = False

    def __call__(self, rows: mx.array) -> mx.array:
        answer = rows @ self.weight.T
        answer = answer if self.bias is None else answer + self.bias
        return mx.tanh(answer) if self.tanh else answer


class PoolingHead:
    """The modules behind the pooling, from the model's folder: `vectors` of rows of pooled states."""

    def __init__(self, pooler: Pooler, dense: Sequence[Dense] = ()) -> None:
        self._pooler = pooler
        self._dense = tuple(dense)

    def vectors(self, pooled: mx.array) -> Vector:
        """Return the vectors, (rows, size), of pooled states, (rows, hidden size) float32."""
        for layer in self._dense:
            pooled = layer(pooled)
        return np.asarray(pooled.astype(mx.float32))

    def cut(self, vector: Vector, dimensions: int) -> Vector:
        """Return the first `dimensions` numbers (0: all), of length 1 where the model's are."""
        vector = vector[: dimensions or len(vector)]
        if not self._pooler.normalize:
            return vector
        length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
        return (vector / max(length, _LEAST_LENGTH)).astype(np.float32)


def groups_of(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Return the places of `lengths` in groups that are computed together, each padded to its longest: at
    most `most_tokens` with padding, or one alone."""
    groups: list[list[int]] = []
    for at in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        if groups and (len(groups[-1]) + 1) * lengths[at] <= most_tokens:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups
