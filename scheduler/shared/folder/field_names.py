"""Fields of config.json under the names, and with the values, that a module of mlx-lm reads.

transformers 5 writes some fields under another name than transformers 4 did (`num_experts` of Qwen3-MoE
became `num_local_experts`), the kinds of layers one by one in place of a period, and nothing of what its code
has one value of. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import Module

_SAME: Final = (
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts"),
    ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    ("n_group", "num_expert_group"),
    ("norm_topk_prob", "moe_renormalize"),
    ("num_attention_groups", "num_key_value_heads"),
    ("max_position_embeddings", "model_max_length"),
)
"""Names of one thing. A module reads one of them."""
_PERIODS: Final = ("full_attention_interval", "sliding_window_pattern")
"""One layer in this number attends to all tokens."""
_MAMBA_NAMES: Final = {"linear_attention": "mamba", "full_attention": "attention"}
"""The kinds of layers of Granite, before transformers 5.13."""
_UNWRITTEN: Final[Mapping[str, Mapping[str, Any]]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "exaone4": {"rope_scaling": None},
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "minimax": {"shared_intermediate_size": 0},
    "solar_open": {"first_k_dense_replace": 0, "intermediate_size": 0, "partial_rotary_factor": 1.0},
}
"""By module what it cannot do without, and transformers' code has one value of."""
_COPIED: Final = {"gpt2": ("n_ctx", "n_positions"), "lfm2": ("block_dim", "hidden_size")}
"""By module such a field, and the one that says the same."""
_OF_HEADS: Final = {
    **dict.fromkeys(("exaone4", "exaone_moe", "glm4_moe", "qwen3_moe"), "head_dim"),
    "minimax": "rotary_dim",  # Unless only a share of it is turned: `rotary_fields`.
}
"""By module the field of a head's size, where others divide."""


def in_module_names(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    """Return what a model's text part says in names that its module has, where these are missing. Raise
    StartupError for layers that the module cannot arrange so."""
    found = {name: value for name, value in _UNWRITTEN.get(module.name, {}).items() if name not in part}
    copied, other = _COPIED.get(module.name, ("", ""))
    wanted = {copied: part.get(other), _OF_HEADS.get(module.name, ""): head_size(part)}
    if module.name == "mamba2" and {"num_heads", "head_dim"} <= part.keys():
        wanted["intermediate_size"] = part["num_heads"] * part["head_dim"]
    layers = part.get("per_layer_config")
    if "global_head_dim" in module.declared and isinstance(layers, Mapping):
        # What Gemma 4's layers of full attention have: transformers 5 writes what differs by layer.
        own = next((one for one in layers.values() if isinstance(one, Mapping)), {})
        wanted["global_head_dim"] = own.get("head_dim", part.get("head_dim"))
        wanted["num_global_key_value_heads"] = own.get("num_key_value_heads")
    for names in _SAME:
        declared = [name for name in names if name in module.declared]
        if all(part.get(name) is None for name in declared):
            value = next((part[name] for name in names if part.get(name) is not None), None)
            wanted |= dict.fromkeys(declared, value)
    found |= {name: value for name, value in wanted.items() if value is not None and part.get(name) is None}
    found.pop("", None)
    return found | _layer_kinds(part, module) | _expert_layers(part, module)


def head_size(part: Mapping[str, Any]) -> int | None:
    """Return the numbers of a query's head, or None if a model's text part does not say."""
    if isinstance(size := part.get("head_dim"), int):
        return size
    width = next((part[name] for name in ("hidden_size", "n_embd", "d_model") if part.get(name)), None)
    heads = next((part[name] for name in ("num_attention_heads", "n_head") if part.get(name)), None)
    return width // heads if isinstance(width, int) and isinstance(heads, int) else None


def _layer_kinds(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    kinds = part.get("layer_types")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str):
        return {}
    if module.name == "granitemoehybrid":
        return {"layer_types": [_MAMBA_NAMES.get(kind, kind) for kind in kinds]}
    field = next((field for field in _PERIODS if field in module.read), "")
    given = part.get(field)
    if not field or "layer_types" in module.read:
        return {}
    if module.name == "exaone4":
        letters = "".join("G" if kind == "full_attention" else "L" for kind in kinds)
        # Without a window in any layer it has another kind of layer than with one.
        return {field: letters} if "L" in letters else {}
    for period in [given] if isinstance(given, int) and given > 0 else range(1, len(kinds) + 2):
        if all((kind == "full_attention") == ((at + 1) % period == 0) for at, kind in enumerate(kinds)):
            return {field: period}
    raise StartupError(
        f"--model: mlx-lm's {module.name} has one layer of full attention in a number of layers ({field}),"
        f" and layer_types in config.json {'names others' if given is None else f'contradicts {given}'}"
    )


def _expert_layers(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    kinds = part.get("mlp_layer_types")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str) or "mlp_layer_types" in module.declared:
        return {}
    sparse = [kind == "sparse" for kind in kinds]
    found: dict[str, Any] = {
        "moe_layers_enum": ",".join(str(at) for at, one in enumerate(sparse) if one),
        "is_moe_layer": sparse,
    }
    dense = sparse.index(True) if True in sparse else len(sparse)
    if all(sparse[dense:]):
        found["first_k_dense_replace"] = dense
    return {
        name: value for name, value in found.items() if name in module.declared and part.get(name) is None
    }
