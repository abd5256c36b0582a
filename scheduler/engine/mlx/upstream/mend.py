"""Parts of models that mlx-lm 0.32.2 computes wrongly, by subclasses of ours.

A part keeps its weights and gets another class, so mlx-lm's own classes stay as they are, and a model that
was not mended is still mlx-lm's: tests find the faults in it, and fail on the day that a release has none.
The check at load judges the mended model, as it judges every other.

- minimax_m3_vl (not reported): `_block_mask` cuts blocks of keys by the column of the cache, which a shorter
  row's padding shifts, so the row chooses among other blocks than alone. It shows in prompts of more blocks
  than a query may choose: in more tokens than the check at load has.
- ernie4_5_moe (not reported): it drops the correction that the router was trained with
  (`moe_statics.e_score_correction_bias`). A folder that mlx-lm converted has lost it.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import ernie4_5_moe, minimax_m3_vl


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


class CorrectedChoice(ernie4_5_moe.Ernie4_5_MoeMLP):  # type: ignore[misc]
    _correction: mx.array
    """(experts,); no parameter of the module, whose names stay mlx-lm's."""

    def __call__(self, x: mx.array) -> mx.array:
        """x: (rows, tokens, width). Do the same as upstream, but for the choice."""
        shares = self.gate_act(self.gate(x).astype(mx.float32))
        chosen = mx.argpartition(-(shares + self._correction), kth=self.k - 1, axis=-1)[..., : self.k]
        scores = mx.take_along_axis(shares, chosen, axis=-1)
        scores = scores / mx.maximum(scores.sum(axis=-1, keepdims=True), 1e-12)
        computed = self.switch_mlp(x, chosen)
        answer: mx.array = (computed * scores[..., None]).sum(axis=-2).astype(computed.dtype)
        return answer if self.shared_experts is None else answer + self.shared_experts(x)


def correct_choice(part: ernie4_5_moe.Ernie4_5_MoeMLP, correction: mx.array) -> None:
    part.__class__ = CorrectedChoice
    part._correction = correction.astype(mx.float32).reshape(-1)


def mend(model: Any) -> Any:
    """Return the same model. The exact type counts: a subclass of a later release may have mended itself."""
    for _, part in model.named_modules():
        if type(part) is minimax_m3_vl.Attention:
            part.__class__ = RowBlocks
    return model


def mended_parts(model: Any) -> tuple[str, ...]:
    """Return names of our classes in this model, for the keys of what is kept of it between starts: verdicts,
    and states on disk, which another class would not understand."""
    parts = {type(part) for _, part in model.named_modules()}
    return tuple(sorted(one.__name__ for one in parts & {RowBlocks, CorrectedChoice}))
