"""Norms that add 1 to their weight in each call, as Gemma's: it is added once, when the model is read."""

from __future__ import annotations

from typing import Any

from mlx.nn.layers.normalization import RMSNorm

_SHIFTED = {
    "mlx_lm.models.gemma.RMSNorm",
    "mlx_lm.models.gemma2.RMSNorm",
    "mlx_lm.models.gemma3_text.RMSNorm",
    "mlx_lm.models.minimax_m3_vl.GemmaRMSNorm",
    "mlx_lm.models.muse_glimmer.CenteredRMSNorm",
    "mlx_lm.models.recurrent_gemma.RMSNorm",
}
"""By name, so that no module is imported for it."""


def shift_once(model: Any) -> None:
    for _, part in model.named_modules():
        kind = type(part)
        if f"{kind.__module__}.{kind.__name__}" in _SHIFTED:
            part.weight = 1.0 + part.weight
            part.__class__ = RMSNorm
