"""gemma2: attention with capped scores for rows of different lengths, and behind shared prefixes in place.

The fault in mlx-lm 0.32.2 (`gemma2.py`; mlx-lm #1903, open): with several query heads for each head of keys,
scores have five axes, (rows, kv heads, queries of each, tokens, keys), and a batch's mask has four, (rows, 1,
tokens, keys). So rows are taken for kv heads: it raises, or masks each head by another row where there are as
many rows as heads. A mask of one row has two axes, which is why one row is right.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import gemma2

from scheduler.engine.mlx.shared_attention import shared_attention


class SoftcapAttention(gemma2.Attention):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """x: (rows, tokens, width). `cache.groups` are the runs that its rows share."""
        if groups := getattr(cache, "groups", ()):
            return self._behind(groups, x, mask, cache)
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mask[:, :, None]
        answer: mx.array = super().__call__(x, mask, cache)
        return answer

    def _behind(self, groups: Any, x: mx.array, mask: mx.array | None, cache: Any) -> mx.array:
        """Do the same as upstream, but for the attention itself."""
        rows, length, _ = x.shape

        def heads(projected: mx.array) -> mx.array:
            return projected.reshape(rows, length, -1, self.head_dim).swapaxes(1, 2)

        queries = self.rope(heads(self.q_proj(x)), offset=cache.offset)
        keys = self.rope(heads(self.k_proj(x)), offset=cache.offset)
        keys, values = cache.update_and_fetch(keys, heads(self.v_proj(x)))
        cap = self.attn_logit_softcapping
        answer = shared_attention(queries, keys, values, groups, self.scale, mask, softcap=cap)
        result: mx.array = self.o_proj(answer.swapaxes(1, 2).reshape(rows, length, -1))
        return result
