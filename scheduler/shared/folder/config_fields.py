"""The fields of config.json that a module of mlx-lm does not read, and weights that it does not unpack. Pure.

A field with an effect on answers is fine with a value that the module computes; any other value refuses the
model by name. All others are named in one line: no table knows every release of other software.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import Module

WITH_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap"), (0,)),
    "moe_router_logit_softcapping": (0,),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"), (1,)),
    "attention_value_scale": (1,),
    **dict.fromkeys(("clip_qkv", "attention_multiplier"), ()),
    "scale_attn_weights": (True,),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "alibi", "use_alibi", "use_logn_attn"), (False,)),
    **dict.fromkeys(("moe_apply_router_weight_on_input", "cross_layer_attention"), (False,)),
    "layernorm_zero_centered_gamma": (False,),
}
"""By field the values at which it does nothing, beside none at all."""
_INTERLEAVED: Final = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k25")
_FIXED: Final[Mapping[tuple[str, str], tuple[Any, ...]]] = {
    ("nanochat", "final_logit_softcapping"): (15,),
    ("deepseek", "routed_scaling_factor"): (1,),
    ("mixtral", "norm_topk_prob"): (True,),
    **{(name, "norm_topk_prob"): (False,) for name in ("deepseek", "deepseek_v2", "qwen2_moe")},
    **{(name, "rope_interleave"): (True,) for name in _INTERLEAVED},
}
"""What a module computes without reading the field. Another module's code may have either value."""

_IN_CODE: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"),
        (
            ("silu", "swish", "swiglu", "switchglu"),
            ("gelu", "geglu", "gegelu", "switchmlp"),
            ("relu",),
            ("xielu",),
        ),
    ),
    "scoring_func": (("softmax",), ("sigmoid",), ("softplus",)),
}
"""By field words for one thing; a module that computes it has one of them in its code."""
_SUFFIXES: Final = (
    *("qweight", "qzeros", "g_idx", "weight_scale_inv", "weight_packed", "weight_scale"),
    *("scb", "quant_map", "absmax"),
)
"""The last part of a packed tensor's name, in lower case."""
_AWQ: Final = {"bits": 4, "w_bit": 4, "version": "gemm"}
"""What mlx-lm unpacks of AutoAWQ."""


def unread_fields(config: Mapping[str, Any], module: Module) -> tuple[str, ...]:
    """Return the fields of a model's text part that the module does not read. Raise StartupError for one that
    changes answers."""
    unread = {name: value for name, value in config.items() if name not in module.read and value is not None}
    for name, value in unread.items():
        allowed = _FIXED.get((module.name, name), WITH_EFFECT.get(name))
        # In Python True is 1.
        others = allowed is not None and not any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed
        )
        if others or not _is_in_code(name, value, module):
            raise StartupError(
                f"--model: config.json says {name} {value!r}, which changes answers and which mlx-lm's"
                f" {module.name} does not compute: serve another model, or take the field out"
            )
    return tuple(sorted(unread))


def _is_in_code(name: str, value: Any, module: Module) -> bool:
    """Return whether the module's code names this value of the field. One that has no word here passes, and
    so does any, if the code has no word for any other."""
    used = [any(word in one for word in words for one in module.words) for words in _IN_CODE.get(name, ())]
    asked = [any(word in str(value).lower() for word in words) for words in _IN_CODE.get(name, ())]
    return not any(used) or True not in asked or used[asked.index(True)]


def check_packing(config: Mapping[str, Any], names: Iterable[str], module: Module) -> None:
    """Raise StartupError if these tensors are packed in a way that the module does not unpack.

    mlx-lm reads its own packing and AutoAWQ's for every model; fp8 in blocks and compressed-tensors where the
    module names their tensors. GPTQ's tensors have AutoAWQ's names and another layout.
    """
    given = config.get("quantization_config") or config.get("compression_config") or {}
    if config.get("quantization") or not isinstance(given, Mapping):
        return
    method = str(given.get("quant_method") or "").lower()
    if method == "awq":
        others = (
            f"{name} {given[name]}"
            for name in _AWQ
            if str(given.get(name) or _AWQ[name]).lower() != str(_AWQ[name])
        )
        found = next(others, None)
    else:
        suffixes = ((name, name.rsplit(".", 1)[-1].lower()) for name in names)
        found = next((name for name, one in suffixes if one in _SUFFIXES and one not in module.words), None)
    if found is not None:
        raise StartupError(
            f"--model: the weights are packed as {method or 'another program has them'} ({found}), which"
            f" mlx-lm's {module.name} does not unpack: serve a conversion to MLX, or make one of its 16-bit"
            " original (mlx_lm.convert --hf-path ORIGINAL -q)"
        )
