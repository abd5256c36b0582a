"""Layers of a loaded model that apply LoRA adapters, each row its own.

mlx-lm's LoRA layers (`tuner/lora.py`) know one adapter, which all rows get. A layer keeps its weights and
gets another class, a subclass of its own and of one in `adapters/layers.py`.
"""

from __future__ import annotations

from typing import Any

from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear, SwitchMLP

from scheduler.engine.mlx.adapters.layers import (
    AdaptedEmbedding,
    AdaptedExperts,
    AdaptedLinear,
    Factors,
    Layer,
    SortingExperts,
)
from scheduler.engine.mlx.adapters.selection import Current

_KINDS: tuple[tuple[type[Any], type[Layer]], ...] = (
    (Linear, AdaptedLinear),
    (QuantizedLinear, AdaptedLinear),
    (Embedding, AdaptedEmbedding),
    (QuantizedEmbedding, AdaptedEmbedding),
    (SwitchLinear, AdaptedExperts),
    (QuantizedSwitchLinear, AdaptedExperts),
)
_SORTING = (SwitchGLU, SwitchMLP)
_subclasses: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def kind_of(module: Any) -> type[Layer] | None:
    """Return how this module is adapted, or None if it cannot be. Modules with a LoRA layer of their own in
    mlx-lm know one adapter only."""
    if hasattr(module, "to_lora"):
        return None
    return next((ours for base, ours in _KINDS if isinstance(module, base)), None)


def adapt(name: str, module: Any, current: Current, slots: int) -> Factors:
    """Make this layer apply adapters, if it does not yet, and return its factors."""
    if isinstance(module, Layer):
        return module.adapters
    kind = kind_of(module)
    assert kind is not None, f"{name} cannot be adapted"
    like = module.scales if hasattr(module, "bits") else module.weight
    module.__class__ = _subclass(kind, type(module))
    module.adapters = Factors(name, current, slots, kind, like)
    found: Factors = module.adapters
    return found


def adapt_sorting(module: Any, current: Current) -> None:
    """Let `module`, which contains an adapted layer, report how it sorts its inputs by expert, if it does."""
    if isinstance(module, _SORTING) and not isinstance(module, SortingExperts):
        module.__class__ = _subclass(SortingExperts, type(module))
        module.current = current


def _subclass(ours: type[Any], base: type[Any]) -> type[Any]:
    if (ours, base) not in _subclasses:
        _subclasses[ours, base] = type(f"{ours.__name__}Of{base.__name__}", (ours, base), {})
    return _subclasses[ours, base]
