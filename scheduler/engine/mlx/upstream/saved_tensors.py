"""Tensors that a module of mlx-lm reads otherwise than transformers saves them, put right before it does.

Written against mlx-lm 0.32.2. ernie4_5_moe: see `mend.py`. gpt2: only the first published files have no
`transformer.` in their names. gpt_oss: experts that are not packed are (experts, inputs, outputs) with gates
and ups in turn (mlx-lm #1079, closed without a change). olmo_hybrid: transformers names two norms otherwise.
gpt2 and olmo_hybrid are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import mlx.core as mx

from scheduler.engine.mlx.upstream.mend import correct_choice

Weights: TypeAlias = dict[str, mx.array]


def as_the_module_reads(model: Any, weights: Weights) -> Weights:
    """Return `weights` of a folder in the form that mlx-lm's `model` takes for transformers'."""
    name = type(model).__module__.rpartition(".")[2]
    return _READERS[name](model, weights) if name in _READERS else weights


def _ernie4_5_moe(model: Any, weights: Weights) -> Weights:
    for at, layer in enumerate(model.layers):
        name = f"model.layers.{at}.mlp.moe_statics.e_score_correction_bias"
        if name in weights and hasattr(layer.mlp, "switch_mlp"):
            correct_choice(layer.mlp, weights[name])
    return weights


def _gpt2(model: Any, weights: Weights) -> Weights:
    return {name.removeprefix("transformer."): one for name, one in weights.items()}


def _olmo_hybrid(model: Any, weights: Weights) -> Weights:
    names = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}
    return {".".join(names.get(part, part) for part in name.split(".")): one for name, one in weights.items()}


def _gpt_oss(model: Any, weights: Weights) -> Weights:
    found: Weights = {}
    for name, one in weights.items():
        layer, _, last = name.rpartition(".")
        match last:
            case "gate_up_proj":
                found[f"{layer}.gate_proj.weight"] = mx.contiguous(one[..., ::2].swapaxes(-1, -2))
                found[f"{layer}.up_proj.weight"] = mx.contiguous(one[..., 1::2].swapaxes(-1, -2))
            case "down_proj":
                found[f"{layer}.down_proj.weight"] = mx.contiguous(one.swapaxes(-1, -2))
            case _:
                found[name] = one
    if len(found) == len(weights):
        return weights
    # Its own reading ends where it sees a gate, so the biases are named here.
    for name in [name for name in found if name.endswith(".gate_up_proj_bias")]:
        both, layer = found.pop(name), name.rpartition(".")[0]
        found[f"{layer}.gate_proj.bias"] = mx.contiguous(both[..., ::2])
        found[f"{layer}.up_proj.bias"] = mx.contiguous(both[..., 1::2])
    return {name.replace(".down_proj_bias", ".down_proj.bias"): one for name, one in found.items()}


_READERS: Final[Mapping[str, Callable[[Any, Weights], Weights]]] = {
    "ernie4_5_moe": _ernie4_5_moe,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "olmo_hybrid": _olmo_hybrid,
}
