"""A tiny random model of each kind of cache that mlx-lm has."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from scheduler.engine.mlx.fusing import Exact, fuse
from scheduler.engine.mlx.upstream.mend import mend
from scheduler.engine.mlx.upstream.shifted_norms import shift_once

_BASE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
}
_MAMBA: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 16,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
    "time_step_rank": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": _BASE | {"query_pre_attn_scalar": 16.0},
    "gemma3_text": _BASE | {"query_pre_attn_scalar": 16, "sliding_window": 16, "sliding_window_pattern": 2},
    "gpt_oss": _BASE | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "deepseek_v3": _BASE
    | {
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "qk_nope_head_dim": 16,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "llama": _BASE,
    "qwen3": _BASE | {"tie_word_embeddings": True},
    "mamba2": _MAMBA
    | {
        "num_heads": 4,
        "head_dim": 16,
        "layer_norm_epsilon": 1e-5,
        "n_groups": 1,
        "time_step_limit": (0.0, 100.0),
    },
    "qwen3_next": _BASE
    | {
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
        "norm_topk_prob": True,
    },
    "recurrent_gemma": _BASE
    | {
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 16,
        "block_types": ["recurrent", "attention"],
    },
    "falcon_h1": _BASE
    | {
        "num_hidden_layers": 2,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
    },
    "lfm2": _BASE
    | {
        "norm_eps": 1e-6,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 64,
        "full_attn_idxs": [1, 3],
    },
    "granitemoehybrid": _BASE
    | {
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_proj_bias": False,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
    },
    "mamba": _MAMBA,
    "nemotron_h": _BASE
    | {
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "M", "-"],
    },
    "rwkv7": {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 64,
        "norm_eps": 1e-5,
        "head_dim": 32,
        "num_hidden_layers": 2,
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
}
FAMILIES["qwen3_5"] = {
    "text_config": FAMILIES["qwen3_next"]
    | {
        "model_type": "qwen3_5_text",
        "rope_parameters": {
            "type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
    }
}
"""A tiny model of each kind of cache: sliding windows, latent attention, several recurrent states, both."""
ONE_OF_EACH_KIND = ("deepseek_v3", "gpt_oss", "qwen3", "qwen3_next", "rwkv7")
"""The sample of `make test-all`: latent attention, sliding windows, keys and values of every token, recurrent
layers beside full attention, and recurrent layers only."""


def fused(model: Any, known: Exact | None = None) -> Any:
    """Return this model with its projections fused, as `load` does."""
    shift_once(model)
    fuse(model, known or {})
    return model


def random_model(family: str, **changes: Any) -> Any:
    """As `load` reads it: mended."""
    module = importlib.import_module(f"mlx_lm.models.{family}")
    # Also before the initial weights are drawn: mlx-lm's compiled samplers leave a state behind that
    # cannot be drawn from.
    mx.random.seed(6)
    model = module.Model(module.ModelArgs.from_dict(FAMILIES[family] | {"model_type": family} | changes))
    mx.random.seed(0)
    weights: list[tuple[str, Any]] = []
    parameters: Any = tree_flatten(model.parameters())
    for name, value in parameters:
        # Larger than any initialisation, so that answers vary; convolutions keep their own scale, but
        # zeros, which would hide what is done with their inputs.
        if value.ndim >= 2 and "conv" not in name:
            value = (
                mx.random.normal(value.shape) * (1.0 if "embed" in name else 1.5) * value.shape[-1] ** -0.5
            )
        elif value.ndim >= 2 and not mx.any(value).item():
            value = mx.random.normal(value.shape) * value.shape[1] ** -0.5
        weights.append((name, value))
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    return mend(model)
