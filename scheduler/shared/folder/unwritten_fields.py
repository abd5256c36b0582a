"""Fields that a module of mlx-lm cannot do without and that transformers 5 does not write: its code has one
value of them, or takes it from another field. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scheduler.shared.folder.mlx_lm_module import Module

_FIXED: Final[Mapping[str, Mapping[str, Any]]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "exaone4": {"rope_scaling": None},
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "minimax": {"shared_intermediate_size": 0},
    "solar_open": {"first_k_dense_replace": 0, "intermediate_size": 0, "partial_rotary_factor": 1.0},
}
"""By module."""
_COPIED: Final[Mapping[str, Mapping[str, str]]] = {
    "gpt2": {"n_ctx": "n_positions"},
    "lfm2": {"block_dim": "hidden_size"},
}
"""By module, with the field that says the same."""
_DIVIDED: Final = frozenset({"exaone4", "exaone_moe", "glm4_moe", "qwen3_moe"})
"""Modules that want the size of a head where others divide."""


def unwritten_fields(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    """Return what `module` wants beside what a model's text part says."""
    found = {name: value for name, value in _FIXED.get(module.name, {}).items() if name not in part}
    for name, other in _COPIED.get(module.name, {}).items():
        if part.get(name) is None and part.get(other) is not None:
            found[name] = part[other]
    size = head_size(part)
    if module.name in _DIVIDED and part.get("head_dim") is None and size is not None:
        found["head_dim"] = size
    if module.name == "minimax" and part.get("rotary_dim") is None and size is not None:
        found["rotary_dim"] = size  # Unless only a share of it is turned: `rotary_fields`.
    if (
        module.name == "mamba2"
        and "intermediate_size" not in part
        and {"num_heads", "head_dim"} <= part.keys()
    ):
        found["intermediate_size"] = part["num_heads"] * part["head_dim"]
    if "global_head_dim" in module.declared and isinstance(layers := part.get("per_layer_config"), Mapping):
        found |= _of_full_layers(part, layers)
    return found


def _of_full_layers(part: Mapping[str, Any], layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Gemma 4's layers of full attention have: transformers 5 writes what differs by layer."""
    own = next((dict(one) for one in layers.values() if isinstance(one, Mapping)), {})
    found = {
        "global_head_dim": own.get("head_dim", part.get("head_dim")),
        "num_global_key_value_heads": own.get("num_key_value_heads"),
    }
    return {name: value for name, value in found.items() if value is not None and part.get(name) is None}


def head_size(part: Mapping[str, Any]) -> int | None:
    """Return the numbers of a query's head, or None if a model's text part does not say."""
    if isinstance(size := part.get("head_dim"), int):
        return size
    width = next((part[name] for name in ("hidden_size", "n_embd", "d_model") if part.get(name)), None)
    heads = next((part[name] for name in ("num_attention_heads", "n_head") if part.get(name)), None)
    return width // heads if isinstance(width, int) and isinstance(heads, int) else None
