"""All changes to mlx-lm that hold for every model of this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import mlx.core as mx
from mlx_lm.models import activations, base

from scheduler.engine.mlx.cpu.swiglu import swiglu
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.upstream import attention

_gate: Callable[[mx.array, mx.array], mx.array] = activations.swiglu


def _dispatch(gate: mx.array, x: mx.array) -> mx.array:
    return swiglu(gate, x) if device().traits.exp_is_slow else _gate(gate, x)


def apply() -> None:
    """Make mlx-lm's models call our functions, those imported already and those imported later. `loading.py`
    calls it before it reads a model: importing our packages changes nothing. A second call does nothing."""
    for defining, name, ordinary, ours in (
        (base, "scaled_dot_product_attention", attention.ordinary, attention.dispatch),
        (activations, "swiglu", _gate, _dispatch),
    ):
        setattr(defining, name, ours)
        # Models import the function by name, so each module has its own reference.
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("mlx_lm.models.") and vars(module).get(name) is ordinary:
                setattr(module, name, ours)
