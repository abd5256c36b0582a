"""phi3small: block-sparse attention by each token's own position, and only to tokens before it.

Two faults in mlx-lm 0.32.2 (`phi3small.py`). The causal mask is one of truth values, and is added to the
scores: a token sees all of its own block, also what comes after it. And the mask of blocks ends with the last
whole block, not with the last key: it is a part of a block off wherever a prompt is not a whole number of
blocks. So mlx-lm's answer depends on how it cuts the prompt, and a batch has one mask for all rows.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import phi3small

from scheduler.engine.mlx.upstream.columns import first_positions


class SparseBlocks(phi3small.Attention):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """x: (rows, tokens, width). Raise ValueError where rows share runs in place."""
        if getattr(cache, "groups", ()):
            raise ValueError("the mask of sparse blocks sees no shared runs")
        if self.block_sparse:
            # Upstream passes the mask on to the method below, which does not get the cache.
            begin = 0 if cache is None else cache.offset
            answer: mx.array = super().__call__(x, (mask, begin, cache), cache)
        else:
            answer = super().__call__(x, mask, cache)
        return answer

    def _block_sparse_attention(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any
    ) -> mx.array:
        """Return the attention of (rows, heads, tokens, head size) each. `mask`: the batch's, each row's
        position of the first query, and the cache."""
        of_batch, begin, cache = mask
        columns = keys.shape[2]
        places = mx.arange(columns) + first_positions(cache, begin, queries.shape[2], columns)
        own = (mx.arange(queries.shape[2]) + mx.array(begin).reshape(-1, 1))[:, :, None]
        blocks, asking = places // self.blocksparse_block_size, own // self.blocksparse_block_size
        near = asking - blocks[:, None] < self.blocksparse_num_local_blocks
        heads = mx.arange(1, self.n_heads + 1)[:, None]
        strided = (blocks[:, None] + heads) % self.blocksparse_vert_stride == 0
        causal = own >= places[:, None]
        seen = causal[:, None] & (near[:, None] | strided[:, :, None])
        if of_batch is not None:
            seen = seen & of_batch
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=seen)
