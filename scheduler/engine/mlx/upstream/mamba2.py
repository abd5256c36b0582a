"""mamba2: the norm behind the recurrence, of each group of heads (Codestral Mamba has eight).

The fault in mlx-lm 0.32.2 (`mamba2.py`; not reported): one norm over all groups.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import mamba2
from mlx_lm.models.activations import swiglu


class GroupedNorm(mamba2.MambaRMSNormGated):  # type: ignore[misc]  # mlx-lm has no types
    groups: int

    def __call__(self, hidden_states: mx.array, gate: mx.array | None = None) -> mx.array:
        """hidden_states, gate: (rows, tokens, width)."""
        gated = hidden_states if gate is None else swiglu(gate, hidden_states)
        apart = gated.reshape(*gated.shape[:-1], self.groups, -1)
        normed: mx.array = mx.fast.rms_norm(apart, None, self.eps)
        answer: mx.array = self.weight * normed.reshape(gated.shape)
        return answer


def norm_by_groups(model: Any) -> None:
    for _, part in model.named_modules():
        if type(part) is mamba2.Mamba2Block and part.n_groups > 1:
            part.norm.__class__, part.norm.groups = GroupedNorm, part.n_groups
