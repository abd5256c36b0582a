"""Fields of config.json under the names, and with the values, that a module of mlx-lm reads.

transformers 5 writes some fields under another name than transformers 4 did (`num_experts` of Qwen3-MoE
became `num_local_experts`), and the kinds of layers one by one in place of a period. Pure.
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
_FULL = "full_attention"


def in_module_names(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    """Return what a model's text part says in names that its module has, where these are missing. Raise
    StartupError for layers that the module cannot arrange so."""
    found: dict[str, Any] = {}
    for names in _SAME:
        declared = [name for name in names if name in module.declared]
        if declared and all(part.get(name) is None for name in declared):
            values = [part[name] for name in names if part.get(name) is not None]
            found |= dict.fromkeys(declared, values[0]) if values else {}
    return found | _layer_kinds(part, module) | _expert_layers(part, module)


def _layer_kinds(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    kinds = part.get("layer_types")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str):
        return _as_letters(part, module)
    if module.name == "granitemoehybrid":
        return {"layer_types": [_MAMBA_NAMES.get(kind, kind) for kind in kinds]}
    if "layer_types" in module.read:
        return {}
    for field in _PERIODS:
        windows = any(kind != _FULL for kind in kinds)
        # Without a window in any layer EXAONE 4 has another kind of layer than with one.
        if field in module.read and (windows or module.name != "exaone4"):
            return {field: _period(kinds, field, part, module)}
    return {}


def _expert_layers(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    kinds = part.get("mlp_layer_types")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str) or "mlp_layer_types" in module.declared:
        return {}
    sparse = [at for at, kind in enumerate(kinds) if kind == "sparse"]
    found: dict[str, Any] = {}
    if "moe_layers_enum" in module.declared and part.get("moe_layers_enum") is None:
        found["moe_layers_enum"] = ",".join(map(str, sparse))
    if "is_moe_layer" in module.declared and part.get("is_moe_layer") is None:
        found["is_moe_layer"] = [kind == "sparse" for kind in kinds]
    dense = sparse[0] if sparse else len(kinds)
    if (
        "first_k_dense_replace" in module.declared
        and part.get("first_k_dense_replace") is None
        and sparse == list(range(dense, len(kinds)))
    ):
        found["first_k_dense_replace"] = dense
    return found


def _as_letters(part: Mapping[str, Any], module: Module) -> dict[str, Any]:
    period = part.get("sliding_window_pattern")
    if module.name == "exaone4" and isinstance(period, int) and period > 0:
        return {"sliding_window_pattern": "L" * (period - 1) + "G"}
    return {}


def _period(kinds: Sequence[Any], field: str, part: Mapping[str, Any], module: Module) -> int | str:
    if module.name == "exaone4":
        return "".join("G" if kind == _FULL else "L" for kind in kinds)
    given = part.get(field)
    for period in [given] if isinstance(given, int) and given > 0 else range(1, len(kinds) + 2):
        if all((kind == _FULL) == ((at + 1) % period == 0) for at, kind in enumerate(kinds)):
            return period
    raise StartupError(
        f"--model: mlx-lm's {module.name} has one layer of full attention in a number of layers ({field}),"
        f" and layer_types in config.json {'names others' if given is None else f'contradicts {given}'}"
    )
