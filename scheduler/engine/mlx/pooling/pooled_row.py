"""Makes a vector of hidden states: which tokens count, linear layers, length, or a reranker's probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.engine.mlx.upstream.two_way import body_of
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
        match tokens:
            case "last":
                self.found = hidden[-1].astype(mx.float32)
            case "first":
                self.found = hidden[0].astype(mx.float32) if self.found is None else self.found
            case "mean":
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

    def __init__(self, model: Any, pooler: Pooler, dense: Sequence[Dense] = ()) -> None:
        self._model = model
        self._pooler = pooler
        self._dense = tuple(dense)

    def size(self, hidden: int) -> int:
        """Return how many numbers a vector has, for a request without `dimensions`."""
        if self._pooler.kind == "rerank":
            return 1
        return int(self._dense[-1].weight.shape[0]) if self._dense else hidden

    def vectors(self, pooled: mx.array) -> Vector:
        """Return the vectors, (rows, size), of pooled states, (rows, hidden size) float32."""
        if self._pooler.kind == "rerank":
            return np.asarray(self._probabilities(pooled))
        for layer in self._dense:
            pooled = layer(pooled)
        return np.asarray(pooled.astype(mx.float32))

    def _probabilities(self, pooled: mx.array) -> mx.array:
        """Return each row's probability of the true token: by the softmax over the two tokens' logits, or by
        the sigmoid of its own where there is no false token."""
        states = pooled.astype(self._embedding.weight.dtype) if self._is_plain else pooled
        head = getattr(self._model, "lm_head", None)
        logits = (head or self._embedding.as_linear)(states).astype(mx.float32)
        odds = logits[:, self._pooler.true_token]
        if self._pooler.false_token is not None:
            odds = odds - logits[:, self._pooler.false_token]
        return mx.sigmoid(odds)[:, None]

    @property
    def _embedding(self) -> Any:
        return body_of(self._model).embed_tokens

    @property
    def _is_plain(self) -> bool:
        """Return whether the weights are not packed, so that their type is that of the states."""
        return bool(mx.issubdtype(self._embedding.weight.dtype, mx.floating))

    def cut(self, vector: Vector, dimensions: int) -> Vector:
        """Return the first `dimensions` numbers (0: all), of length 1 where the model's are."""
        vector = vector[: dimensions or len(vector)]
        if self._pooler.kind == "rerank" or not self._pooler.normalize:
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
