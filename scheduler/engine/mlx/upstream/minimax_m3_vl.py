"""minimax_m3_vl: sparse attention counts its blocks of keys from each row's first token.

The fault in mlx-lm 0.32.2 (`minimax_m3_vl.py`; not reported): `_block_mask` cuts blocks by the column of the
cache, which a shorter row's padding shifts, so the row chooses among other blocks than alone. It shows in
prompts of more blocks than a query may choose.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import minimax_m3_vl


class RowBlocks(minimax_m3_vl.Attention):  # type: ignore[misc]  # mlx-lm has no types
    def _block_mask(self, x: mx.array, mask: Any, offset: Any, cache: Any) -> Any:
        """Return (rows, heads, queries, keys), as upstream does, with each row's tokens moved to the first
        columns while blocks are chosen; the padding behind them is masked, and scores less than any block."""
        if cache is None or isinstance(cache.offset, int):
            return super()._block_mask(x, mask, offset, cache)
        rows, length, _ = x.shape
        heads, padding = self.index_n_heads, cache.left_padding[:, None]
        keys = self.index_k_norm(self.index_k_proj(x).reshape(rows, length, 1, -1)).swapaxes(1, 2)
        keys = self.index_rope(keys, offset=offset)
        keys, _ = cache.update_and_fetch(keys, mx.zeros((rows, 1, length, 0), keys.dtype))
        columns, size, chosen = mx.arange(keys.shape[2]), self.index_block_size, self.index_topk_blocks
        blocks = -(-columns.size // size)
        if chosen >= blocks:
            return mask
        queries = self.index_q_norm(self.index_q_proj(x).reshape(rows, length, heads, -1)).swapaxes(1, 2)
        queries = self.index_rope(queries, offset=offset).astype(mx.float32)
        moved = (columns + padding) % columns.size
        keys = mx.take_along_axis(keys.astype(mx.float32), moved[:, None, :, None], axis=2)
        visible = mx.take_along_axis(mask, moved[:, None, None], axis=3)
        scores = mx.where(visible, queries @ keys.swapaxes(-1, -2), -mx.inf)
        rest = [(0, 0)] * 3 + [(0, blocks * size - columns.size)]
        scores = mx.pad(scores, rest, constant_values=-mx.inf)
        scores = scores.reshape(rows, heads, length, blocks, size).max(axis=-1)
        own = ((offset[:, None] + mx.arange(length)) // size)[:, None, :, None]
        local = (mx.arange(blocks) <= own) & (mx.arange(blocks) > own - self.index_local_blocks)
        scores = mx.where(local, mx.inf, scores)
        best = mx.argpartition(-scores, kth=chosen - 1, axis=-1)[..., :chosen]
        keep = mx.put_along_axis(mx.zeros(scores.shape, mx.bool_), best, mx.array(True), axis=-1)
        keep = mx.repeat(keep, size, axis=-1)[..., : columns.size] & visible
        back = (columns - padding) % columns.size
        keep = mx.take_along_axis(keep, back[:, None, None], axis=3)
        return mx.repeat(keep, self.num_attention_heads // heads, axis=1)
