"""llama4: attention chunks and temperatures by each row's own positions.

The faults in mlx-lm 0.32.2 (`llama4.py`; not reported): `ChunkedKVCache` has no `merge`, and the model makes
its mask of chunks, and the temperature of its layers without rotary positions, from one position.

The mended model has `KVCache` in all layers, so its prefixes are cut and restored at any token; the chunks
are in the mask alone. Rows longer than a chunk (8,192 tokens in Llama 4) hold and read more for it, in three
of four layers. Shared prefixes are copied: what is shared in place is attended to as a whole.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import llama4
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import ChunkedKVCache, KVCache

_GLOBAL = 3
"""The first layer that attends to all tokens: every fourth does."""


class WholeCaches(llama4.Model):  # type: ignore[misc]  # mlx-lm has no types
    def make_cache(self) -> list[Any]:
        return [KVCache() for _ in self.layers]


class RowChunks(llama4.LlamaModel):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        """inputs: (rows, tokens)."""
        answer: mx.array
        if cache is None or isinstance(cache[0], ChunkedKVCache):
            answer = super().__call__(inputs, cache)
            return answer
        hidden = self.embed_tokens(inputs)
        chunk_mask = self._chunk_mask(cache[0], inputs.shape[1])
        global_mask = create_attention_mask(hidden, cache[_GLOBAL])
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache, strict=True)):
            mask = global_mask if index % 4 == _GLOBAL else chunk_mask
            hidden = layer(hidden, mask, cache=layer_cache)
        answer = self.norm(hidden)
        return answer

    def _chunk_mask(self, cache: Any, length: int) -> mx.array:
        """Return (rows, 1, queries, keys), or one mask for all rows. Raise ValueError where rows share runs
        in place."""
        size = self.attention_chunk_size
        causal: mx.array = cache.make_mask(length, return_array=True, window_size=size)
        begin = mx.array(cache.offset).reshape(-1, 1, 1, 1)
        columns = causal.shape[-1]
        # Rows of ours may lag, and know their first column's position; in mlx-lm's caches the last column is
        # the last token. What is before a row's first token, or behind its last, is masked already.
        first = getattr(cache, "first_positions", None)
        if first is None:
            first = mx.array(cache.offset) + length - columns
        keys = mx.array(first).reshape(-1, 1, 1, 1) + mx.arange(columns)
        queries = begin + mx.arange(length)[:, None]
        return mx.logical_and(causal, keys // size == queries // size)


class RowTemperatures(llama4.Attention):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """x: (rows, tokens, width)."""
        answer: mx.array
        if self.use_rope or not self.attn_temperature_tuning or isinstance(getattr(cache, "offset", 0), int):
            answer = super().__call__(x, mask, cache)
            return answer
        rows, length, _ = x.shape

        def heads(projected: mx.array) -> mx.array:
            return projected.reshape(rows, length, -1, self.head_dim).swapaxes(1, 2)

        positions = cache.offset[:, None] + mx.arange(1, length + 1)
        scales = mx.log(mx.floor(positions / self.floor_scale) + 1.0) * self.attn_scale + 1.0
        queries = heads(self.q_proj(x))
        queries = (queries * scales[:, None, :, None]).astype(queries.dtype)
        keys, values = cache.update_and_fetch(heads(self.k_proj(x)), heads(self.v_proj(x)))
        found = llama4.scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=self.scale, mask=mask
        )
        answer = self.o_proj(found.swapaxes(1, 2).reshape(rows, length, -1))
        return answer
