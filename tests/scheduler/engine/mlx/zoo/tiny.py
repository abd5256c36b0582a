"""A tiny random model of any module of mlx-lm, from the fields of the module's own `ModelArgs`.

A module whose fields are all known here needs no entry anywhere: a new one with ordinary names is built by
itself. What a name does not decide is in the entries by kind of cache (`entries.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

VOCABULARY = 300
LAYERS = 4
WINDOW = 32
"""Tokens of a sliding window or an attention chunk: shorter than the prompts, longer than a prefill chunk."""

MOST_PARAMETERS = 5_000_000
"""Nothing is computed of a model that has more: the defaults of a real one take gigabytes."""

SIZES: dict[str, Any] = {
    # width and depth
    **dict.fromkeys(("vocab_size", "num_vocab", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "hidden_dim", "model_dim", "n_embd", "d_model", "dim_model_base"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), LAYERS),
    "num_transformer_layers": LAYERS,
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "ff_intermediate_size", "n_inner"), 64),
    **dict.fromkeys(("dense_intermediate_size", "intermediate_size_mlp"), 64),
    # attention
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads", "n_head", "swa_num_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "swa_num_key_value_heads"), 1),
    "num_attention_groups": 1,
    **dict.fromkeys(("head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim", "kv_channels"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "global_head_dim", "hidden_size_per_head"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    "query_pre_attn_scalar": 16,
    "partial_rotary_factor": 0.5,
    "rotary_pct": 0.5,
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "rotary_emb_base", "swa_rope_theta"), 10000.0),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "block_size"), 4096),
    "model_max_length": 4096,
    **dict.fromkeys(
        ("sliding_window", "attention_window_size", "sliding_window_size", "window_size"), WINDOW
    ),
    "attention_chunk_size": WINDOW,
    **dict.fromkeys(("sliding_window_pattern", "full_attention_interval", "layer_group_size"), 2),
    "index_head_dim": 16,
    "index_n_heads": 2,
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "num_shared_expert"), 1),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32
    ),
    **dict.fromkeys(("shared_intermediate_size", "share_expert_dim"), 32),
    **dict.fromkeys(
        ("first_k_dense_replace", "num_dense_layers", "moe_layer_freq", "decoder_sparse_step"), 1
    ),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    "mlp_only_layers": [],
    "is_moe_layer": [False, *[True] * (LAYERS - 1)],
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    # recurrent layers
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 16),
    **dict.fromkeys(("conv_kernel", "conv1d_width", "mamba_d_conv", "linear_conv_kernel_dim"), 4),
    "short_conv_kernel_size": 4,
    "conv_L_cache": 3,
    **dict.fromkeys(("mamba_num_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head"), 16),
    **dict.fromkeys(("n_groups", "mamba_n_groups"), 1),
    "mamba_d_ssm": 64,
    "mamba_expand": 2,
    "time_step_rank": 4,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 32),
    "group_norm_size": 1,
    # numbers without a size
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon"), 1e-6),
    "layernorm_epsilon": 1e-6,
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling", "scale_emb"), 1.0),
    "attention_multiplier": 0.25,
    "scale_depth": 1.4,
    **dict.fromkeys(("logits_soft_cap", "final_logit_softcapping"), 30.0),
    "qk_scale_factor": 1.5,
    **dict.fromkeys(("conv_bias", "use_conv_bias", "mamba_conv_bias", "use_qk_norm", "qk_norm"), True),
    **dict.fromkeys(("post_norm", "use_qkv_bias", "attention_bias", "use_bias"), True),
    **dict.fromkeys(("mlp_bias", "mamba_proj_bias"), False),
    "tie_word_embeddings": True,
    "rope_scaling": None,
}
"""By name of a field in `ModelArgs`. What is not here and has no default needs an entry of its module."""


_HEADS = (
    *("head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim", "kv_channels", "qk_nope_head_dim"),
    *("global_head_dim", "hidden_size_per_head", "qk_rope_head_dim", "rotary_dim", "kv_lora_rank"),
    *("query_pre_attn_scalar", "index_head_dim"),
)


@contextmanager
def wide_heads() -> Iterator[None]:
    """Build models whose keys and values can be packed: heads of 32 numbers."""
    narrow = dict(SIZES)
    widths = dict.fromkeys(("hidden_size", "hidden_dim", "model_dim", "n_embd", "d_model"), 64)
    SIZES.update(widths | dict.fromkeys(_HEADS, 32))
    try:
        yield
    finally:
        SIZES.update(narrow)


IF_REQUIRED: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)}
"""As SIZES, for fields without a default only: where there is one, modules spell the values otherwise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """The `text_config` of a model with eyes: the fields of `args` of the module that reads it."""

    module: str
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    args: str = "ModelArgs"


def arguments(args: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the fields of one dataclass. Raises KeyError with the fields that nothing names."""
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for field in dataclasses.fields(args):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name in given:
            values[field.name] = given[field.name]
        elif field.name in SIZES:
            values[field.name] = SIZES[field.name]
        elif required and field.name in IF_REQUIRED:
            values[field.name] = IF_REQUIRED[field.name]
        elif required:
            unknown.append(field.name)
    if unknown:
        raise KeyError(", ".join(unknown))
    return values


def configuration(module: str, given: Mapping[str, Any], args: str = "ModelArgs") -> dict[str, Any]:
    """A config.json for this module of `mlx_lm.models`. Raises KeyError as `arguments`."""
    code = importlib.import_module(f"mlx_lm.models.{module}")
    values = arguments(getattr(code, args), {"model_type": module, **given})
    text = values.get("text_config")
    if isinstance(text, Text):
        values["text_config"] = configuration(text.module, text.given, text.args)
    return copy.deepcopy(values)  # Some `__post_init__` write into it.


def random_model(module: str, config: dict[str, Any], seed: int = 0) -> Any:
    """No part of it is zero, or without effect on the answers, so that a part that a batch treats wrongly
    shows."""
    code = importlib.import_module(f"mlx_lm.models.{module}")
    mx.random.seed(seed + 6)
    model = code.Model(code.ModelArgs.from_dict(config))
    mx.random.seed(seed)
    weights: list[tuple[str, Any]] = []
    parameters: Any = tree_flatten(model.parameters())
    if (count := sum(value.size for _, value in parameters)) > MOST_PARAMETERS:
        raise ValueError(f"{module} has {count} parameters: a size is missing in its entry")
    for name, value in parameters:
        weights.append((name, _weight(name, value)))
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    return model


def _weight(name: str, value: mx.array) -> mx.array:
    """Matrices larger than any initialisation, so that answers vary; vectors near what they are made as."""
    if not mx.issubdtype(value.dtype, mx.floating):  # packed
        return mx.random.randint(0, 1 << 31, value.shape, dtype=mx.uint32)
    noise = mx.random.normal(value.shape)
    if value.ndim < 2:
        return mx.add(value.astype(mx.float32), 0.1 * noise)
    # (out, width, in) of a convolution: its inputs are all but the first axis.
    inputs = value.size // value.shape[0] if "conv" in name else value.shape[-1]
    return mx.multiply(noise, (1.0 if "embed" in name else 1.5) * inputs**-0.5)
