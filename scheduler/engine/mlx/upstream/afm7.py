"""afm7: layers that read another layer's cache place their queries by each row's own positions.

The fault in mlx-lm 0.32.2 (`afm7.py`): `KVReuseAttention` takes the number of keys for the position of the
queries, and in a batch the keys have a shorter row's padding before them: its queries are turned too far.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import afm7
from mlx_lm.models.base import create_attention_mask


class RowOffsets(afm7.AFMModel):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        """inputs: (rows, tokens). Raise ValueError where rows share runs in place."""
        answer: mx.array
        if cache is None or isinstance(cache[-1].offset, int):
            answer = super().__call__(inputs, cache)
            return answer
        hidden, offset = self.embedding(inputs), cache[-1].offset
        mask = create_attention_mask(hidden, cache[0])
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            hidden = layer(hidden, mask, cache=layer_cache)
        keys, values = cache[-1].keys_and_values()
        for layer in self.kv_reuse_layers:
            normed = layer.input_layernorm(hidden)
            hidden = hidden + _reused(layer.self_attn, normed, keys, values, mask, offset)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        answer = self.output_norm(hidden)
        return answer


def _reused(
    attention: Any, x: mx.array, keys: mx.array, values: mx.array, mask: Any, offset: mx.array
) -> mx.array:
    """Do the same as upstream's `KVReuseAttention`, with the position of each row's first query: (rows)."""
    rows, length, _ = x.shape
    queries = attention.q_proj(x).reshape(rows, length, attention.n_heads, -1).swapaxes(1, 2)
    queries = attention.q_norm(attention.rope(queries, offset=offset))
    found = afm7.scaled_dot_product_attention(
        queries, keys, values, cache=None, scale=attention.scale, mask=mask
    )
    answer: mx.array = attention.out_proj(found.swapaxes(1, 2).reshape(rows, length, -1))
    return answer
