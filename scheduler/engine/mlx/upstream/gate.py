"""The gate of models' feed-forward layers where MLX's exponential is slow (`cpu/swiglu.py`).

It replaces mlx-lm 0.32.2's `swiglu` (`models/activations.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mlx_lm.models import activations

from scheduler.engine.mlx.cpu.swiglu import swiglu
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.upstream.replacement import replace

_ordinary: Callable[[mx.array, mx.array], mx.array] = activations.swiglu


def _dispatch(gate: mx.array, x: mx.array) -> mx.array:
    return swiglu(gate, x) if device().traits.exp_is_slow else _ordinary(gate, x)


def take_over() -> None:
    replace(activations, "swiglu", _ordinary, _dispatch)
