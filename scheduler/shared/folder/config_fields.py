"""The fields of config.json that a module of mlx-lm does not read. Pure.

A field with an effect on answers is fine with a value that the module computes; any other value refuses the
model by name. All others are named in one line: no table knows every release of other software.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import Module

WITH_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logits_soft_cap": (0,),
    "moe_router_logit_softcapping": (0,),
    "clip_qkv": (),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "attention_multiplier": (),
    "attention_value_scale": (1,),
    "alibi": (False,),
    "use_alibi": (False,),
    "moe_apply_router_weight_on_input": (False,),
    "cross_layer_attention": (False,),
    "use_logn_attn": (False,),
    "layernorm_zero_centered_gamma": (False,),
}
"""By field the values at which it does nothing, beside none at all."""

_SIGMOID: Final = {"scoring_func": ("sigmoid",)}
_SOFTMAX: Final = {"scoring_func": ("softmax",), "norm_topk_prob": (False,)}
_INTERLEAVED: Final = {"rope_interleave": (True,)}
FIXED: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    "deepseek": {**_SOFTMAX, "routed_scaling_factor": (1,)},
    "deepseek_v2": _SOFTMAX,
    "deepseek_v3": {**_SIGMOID, **_INTERLEAVED},
    "deepseek_v32": {**_SIGMOID, **_INTERLEAVED},
    "dots1": _SIGMOID,
    "exaone_moe": _SIGMOID,
    "glm4_moe": _SIGMOID,
    "glm4_moe_lite": {**_SIGMOID, **_INTERLEAVED},
    "glm_moe_dsa": {**_SIGMOID, **_INTERLEAVED},
    "kimi_k25": {**_SIGMOID, **_INTERLEAVED},
    "mimo_v2_flash": _SIGMOID,
    "minimax": _SIGMOID,
    "mixtral": {"norm_topk_prob": (True,)},
    "nanochat": {"final_logit_softcapping": (15,)},
    "qwen2_moe": {"norm_topk_prob": (False,)},
}
"""What a module computes without reading the field. Another module's code may have either value."""

_ACTIVATIONS: Final = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
_IN_CODE: Final = (
    ("silu", "swish", "swiglu", "switchglu"),
    ("gelu", "geglu", "gegelu", "switchmlp"),
    ("relu",),
    ("xielu",),
)
"""Words for one activation; a module that computes it has one of them in its code."""


def unread_fields(config: Mapping[str, Any], module: Module) -> tuple[str, ...]:
    """Return the fields of a model's text part that the module does not read. Raise StartupError for one that
    changes answers."""
    unread = {name: value for name, value in config.items() if name not in module.read}
    for name, value in unread.items():
        allowed = FIXED.get(module.name, {}).get(name, WITH_EFFECT.get(name))
        if allowed is not None and value is not None and not _is_one_of(value, allowed):
            raise StartupError(
                f"--model: config.json says {name} {value!r}, which changes answers and which mlx-lm's"
                f" {module.name} does not compute: serve another model, or take the field out"
            )
        if name in _ACTIVATIONS and isinstance(value, str) and not _has_activation(value, module):
            raise StartupError(
                f"--model: config.json says {name} {value!r}, and mlx-lm's {module.name} computes another"
                " activation: serve another model"
            )
    return tuple(sorted(name for name, value in unread.items() if value is not None))


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _has_activation(value: str, module: Module) -> bool:
    """Return whether the module's code names this activation. One that has no word here passes."""
    asked = value.lower()
    for words in _IN_CODE:
        if any(word in asked for word in words):
            return any(word in used for word in words for used in module.words)
    return True
