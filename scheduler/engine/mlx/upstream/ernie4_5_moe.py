"""ernie4_5_moe: experts are chosen with the correction that the router was trained with.

The fault in mlx-lm 0.32.2 (`ernie4_5_moe.py`; not reported): it drops `moe_statics.e_score_correction_bias`.
A folder that mlx-lm converted has lost it.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models import ernie4_5_moe


class CorrectedChoice(ernie4_5_moe.Ernie4_5_MoeMLP):  # type: ignore[misc]  # mlx-lm has no types
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
