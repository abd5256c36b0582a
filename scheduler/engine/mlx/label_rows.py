"""How likely given tokens, the labels, are behind a prompt: numbers of its last position, and no token.

Rows that ask for labels have a model call of their own, so that no row that decodes has another neighbour by
them. A head in 16 bits gives logits in steps of an eighth where they are about 20; so each label's row of the
head is multiplied once more in float32, and goes through what the model does behind its head (a soft cap, a
scale) beside the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

from scheduler.engine.mlx.upstream.products import TurnedEmbedding, TurnedLinear

_HEADS = (Linear, QuantizedLinear, TurnedLinear)
_TIED = (Embedding, QuantizedEmbedding, TurnedEmbedding)


class LabelHead:
    """The head of one model: `logits` of a call, and those of labels in float32."""

    def __init__(self, model: Any) -> None:
        self._model = model
        tables = [module for _, module in model.named_modules() if type(module) in (*_HEADS, *_TIED)]
        self._vocabulary = max((one.weight.shape[0] for one in tables if type(one) in _TIED), default=0)
        # A tied head is the embedding's: where there is a head of its own, that one is called instead.
        self._heads = [one for one in tables if one.weight.shape[0] == self._vocabulary]

    def __call__(self, inputs: mx.array, layers: Any, labels: Sequence[Sequence[int]]) -> list[mx.array]:
        """Compute `inputs`, (rows, 1), with the rows' caches. Return each row's log-probabilities of its
        labels, and behind them the logarithm of the sum that made them (so a label's logit is the two
        together), float32, not evaluated."""
        asked = sorted({token for row in labels for token in row})
        with self._extended(asked):
            logits = self._model(inputs, cache=layers)[:, -1, :].astype(mx.float32)
        wide = logits.shape[-1] == self._vocabulary + len(asked)
        whole = logits[:, : self._vocabulary] if wide else logits
        scores = logits[:, self._vocabulary :] if wide else whole[:, mx.array(asked)]
        sums = mx.logsumexp(whole, axis=-1, keepdims=True)
        scores = mx.concatenate([scores - sums, sums], axis=-1)
        places = {token: place for place, token in enumerate(asked)}
        columns = [mx.array([*(places[token] for token in row), len(asked)]) for row in labels]
        return [scores[at, its] for at, its in enumerate(columns)]

    @contextmanager
    def _extended(self, asked: Sequence[int]) -> Iterator[None]:
        """Let the head append these tokens' logits in float32, unless it computes in float32 anyhow."""
        heads = [head for head in self._heads if _is_narrow(head)]
        kinds: list[Any] = [type(head) for head in heads]
        tokens = mx.array(list(asked))
        try:
            for head, kind in zip(heads, kinds, strict=True):
                head.__class__ = _extended(kind)
            _Extended.tokens = tokens
            yield
        finally:
            _Extended.tokens = None
            for head, kind in zip(heads, kinds, strict=True):
                head.__class__ = kind


class _Extended:
    tokens: ClassVar[mx.array | None] = None


@cache
def _extended(kind: Any) -> type:
    """Return the kind of head that appends the logits of `_Extended.tokens`."""
    name = "as_linear" if kind in _TIED else "__call__"

    def called(head: Any, hidden: mx.array) -> mx.array:
        logits = getattr(kind, name)(head, hidden)
        more = hidden.astype(mx.float32) @ _rows(head, _Extended.tokens).T
        if (bias := head.get("bias")) is not None:
            more = more + bias[_Extended.tokens].astype(mx.float32)
        return mx.concatenate([logits.astype(mx.float32), more], axis=-1)

    return type(kind.__name__, (kind,), {name: called})


def _is_narrow(head: Any) -> bool:
    """Return whether the head computes in 16 bits."""
    return bool(head.get("scales", head.weight).dtype != mx.float32)


def _rows(head: Any, tokens: mx.array | None) -> mx.array:
    """Return these tokens' rows of the head's weight, float32."""
    assert tokens is not None
    weight: mx.array = head.weight[tokens]
    if "scales" not in head:
        return weight.astype(mx.float32)
    scales, biases = head.scales[tokens], head.get("biases")
    if head.mode == "affine":
        scales, biases = scales.astype(mx.float32), biases[tokens].astype(mx.float32)
    whole = mx.dequantize(weight, scales, biases, head.group_size, head.bits, head.mode)
    return whole.astype(mx.float32)


def as_bytes(found: mx.array) -> bytes | None:
    """Return log-probabilities as little-endian float32; None if they are no numbers. Impossible is
    -infinity."""
    numbers = np.asarray(found)
    return None if np.isnan(numbers).any() else numbers.astype("<f4").tobytes()
