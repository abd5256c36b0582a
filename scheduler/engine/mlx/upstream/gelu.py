"""The GELU that a folder names: exact, or approximated by a hyperbolic tangent.

The fault in mlx-lm 0.32.2 (not reported): `gemma.py`, `gpt_bigcode.py` and `starcoder2.py` have the exact
one, `gpt_neox.py` the approximation, whatever config.json says.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.activations import gelu, gelu_approx
from mlx_lm.models import gemma, gpt_bigcode, gpt_neox, starcoder2

from scheduler.shared.folder.reading import FolderReading

_APPROXIMATE: Final = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate")
_FIELDS: Final = ("hidden_activation", "hidden_act", "activation_function")


class GemmaTanh(gemma.MLP):  # type: ignore[misc]  # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        answer: mx.array = self.down_proj(gelu_approx(self.gate_proj(x)) * self.up_proj(x))
        return answer


class BigcodeTanh(gpt_bigcode.MLP):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        answer: mx.array = self.c_proj(gelu_approx(self.c_fc(x)))
        return answer


class StarcoderTanh(starcoder2.MLP):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        answer: mx.array = self.c_proj(gelu_approx(self.c_fc(x)))
        return answer


class NeoxExact(gpt_neox.MLP):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        answer: mx.array = self.dense_4h_to_h(gelu(self.dense_h_to_4h(x)))
        return answer


GELUS: Final[tuple[type[Any], ...]] = (BigcodeTanh, GemmaTanh, NeoxExact, StarcoderTanh)
_CLASSES: Final = {ours.__bases__[0]: ours for ours in GELUS}


def activate_as_configured(model: Any, reading: FolderReading) -> None:
    """Give `model` the GELU that its folder names. Gemma's is always the approximate one: its first files say
    `gelu`, and transformers reads them so."""
    named = next((value for name in _FIELDS if (value := reading.text.get(name))), None)
    for _, part in model.named_modules():
        match _CLASSES.get(type(part)):
            case None:
                pass
            case ours if ours is GemmaTanh or (
                named == "gelu" if ours is NeoxExact else named in _APPROXIMATE
            ):
                part.__class__ = ours
