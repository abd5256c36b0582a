"""recurrent_gemma: which rows of a batch are at their first token, and where each row's chunk ends.

Two faults of mlx-lm 0.32.2 (`recurrent_gemma.py`), both without an exception:

1. `RGLRU` does not scale the first token of a sequence. It takes for the first token what has no state, and
   a row that joins others has one, of zeros (`ArraysCache.merge`, `extend`): the row's first token is scaled.
2. `RecurrentBlock` ignores the lengths of a chunk's rows: the padding of shorter ones runs through the
   convolution and the recurrence, and into the states that are kept.

So each layer keeps a third state, whether the row has begun, and takes each row's states from where its own
tokens end.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import recurrent_gemma
from mlx_lm.models.cache import ArraysCache

_CONVOLUTION, _RECURRENCE, _BEGUN = range(3)
"""States of a layer: (rows, width of the convolution - 1, channels), (rows, channels), (rows, 1)."""


class RecurrentModel(recurrent_gemma.Model):  # type: ignore[misc]  # mlx-lm has no types
    def make_cache(self) -> list[Any]:
        """Return upstream's caches, with the third state."""
        return [
            ArraysCache(size=3) if isinstance(layer, ArraysCache) else layer for layer in super().make_cache()
        ]


class RowRecurrence(recurrent_gemma.RecurrentBlock):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, x: mx.array, cache: Any = None, mask: Any = None) -> mx.array:
        """x: (rows, tokens, width), the first `cache.lengths` (rows) of which are no padding, or all without
        them. Each row has at least one."""
        states = ArraysCache(size=3) if cache is None else cache
        gate = nn.gelu_approx(self.linear_y(x))  # type: ignore[attr-defined]
        x = self.linear_x(x)
        x, states[_CONVOLUTION] = self._convolved(x, states[_CONVOLUTION], states.lengths)
        x, states[_RECURRENCE] = self._recurred(x, states)
        states[_BEGUN] = mx.ones((x.shape[0], 1), mx.bool_)
        answer: mx.array = self.linear_out(x * gate)
        return answer

    def _convolved(
        self, x: mx.array, state: mx.array | None, lengths: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        answer, kept = self.conv_1d(x=x, cache=state)
        if lengths is not None:
            before = mx.zeros_like(kept) if state is None else state
            ends = lengths[:, None] + mx.arange(kept.shape[1])
            kept = mx.take_along_axis(mx.concatenate([before, x], axis=1), ends[..., None], axis=1)
        return answer, kept

    def _recurred(self, x: mx.array, states: Any) -> tuple[mx.array, mx.array]:
        """Do the same as upstream's `RGLRU`, with the first token of a row known by row."""
        lru, state, begun = self.rg_lru, states[_RECURRENCE], states[_BEGUN]
        log_decay = -8.0 * nn.softplus(lru.recurrent_param)  # type: ignore[attr-defined]
        log_decay = log_decay * _gate(x, lru.recurrent_gate_weight, lru.recurrent_gate_bias)
        scale = mx.sqrt(1 - mx.exp(2 * log_decay))
        first = mx.ones_like(scale[:, :1])
        if begun is not None:
            first = mx.where(begun[..., None], scale[:, :1], first)
        scale = mx.concatenate([first, scale[:, 1:]], axis=1).astype(x.dtype)
        x = x * _gate(x, lru.input_gate_weight, lru.input_gate_bias) * scale
        answer, kept = recurrent_gemma.rnn_scan(x=x, a=mx.exp(log_decay), h0=state)
        if states.lengths is not None:
            # The answer of a token is the state after it.
            kept = mx.take_along_axis(answer, states.lengths[:, None, None] - 1, axis=1)[:, 0]
        return answer, kept


def _gate(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
    """Return (rows, tokens, channels) numbers behind a block of `weight` (heads, size, size) for each
    head."""
    heads = x.reshape(*x.shape[:2], *bias.shape)
    return mx.sigmoid(((heads.swapaxes(1, 2) @ weight).swapaxes(1, 2) + bias).flatten(2, 3))
