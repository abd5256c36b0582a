"""jamba: the shares of the chosen experts, as they are among all experts.

The fault in mlx-lm 0.32.2 (`jamba.py`; not reported): they are shares among the chosen ones.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models import jamba


class SharesOfAll(jamba.JambaSparseMoeBlock):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        """x: (rows, tokens, width)."""
        shares = mx.softmax(self.router(x), axis=-1, precise=True)
        most = self.num_experts_per_tok
        chosen = mx.argpartition(-shares, kth=most - 1, axis=-1)[..., :most]
        scores = mx.take_along_axis(shares, chosen, axis=-1)
        answer: mx.array = (self.switch_mlp(x, chosen) * scores[..., None]).sum(axis=-2)
        return answer
