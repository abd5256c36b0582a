"""Entries of modules with recurrent layers, alone or between layers of attention."""

from __future__ import annotations

from typing import Any

from tests.scheduler.engine.mlx.zoo.tiny import LAYERS, Text

_LINEAR = {"head_dim": 16, "num_heads": 2, "short_conv_kernel_size": 4, "kda_layers": [1, 3]}
_LINEAR_LAYERS = {"linear_attn_config": _LINEAR | {"full_attn_layers": [2, 4]}}
_LFM2 = {"full_attn_idxs": [1, 3]}
_LFM2_BLOCKS = _LFM2 | {
    "block_dim": 32,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "block_ff_dim": 64,
}
_PACKED = {"path": "model.layers.1.mlp.down_proj", "embedding": False, "dtype": "float16", "block": 512}

ENTRIES: dict[str, dict[str, Any]] = {
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2, "tie_word_embeddings": False},
    "falcon_h1": {"lm_head_multiplier": 1.0, "embedding_multiplier": 1.0, "key_multiplier": 1.0},
    "gear": {"layer_types": ["conv_mixer", "full_attention", "conv_mixer", "sliding_attention"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * (LAYERS // 2)},
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "kimi_k3": {
        "text_config": Text(
            "kimi_k3",
            _LINEAR_LAYERS | {"attn_res_block_size": 2, "num_key_value_heads": 2},
            "TextArgs",
        )
    },
    "kimi_linear": _LINEAR_LAYERS | {"num_key_value_heads": 2},
    "lfm2": _LFM2_BLOCKS,
    "lfm2-vl": {"text_config": Text("lfm2", _LFM2_BLOCKS)},
    "lfm2_moe": _LFM2 | {"use_expert_bias": True},
    "longcat_flash_ngram": {
        "zero_expert_num": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "ngram_vocab_size_ratio": 2,
        "emb_neighbor_num": 4,
        "emb_split_num": 2,
    },
    "mamba2": {"num_heads": 4, "time_step_limit": (0.0, 100.0)},
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "M", "-"], "use_bias": False},
    "nemotron_h+experts": {
        "hybrid_override_pattern": ["M", "*", "E", "M"],
        "use_bias": False,
        "moe_shared_expert_intermediate_size": 32,
    },
    "olmo_hybrid": {"linear_allow_neg_eigval": True},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [_PACKED],
        "text_config": Text("qwen3_5", {"intermediate_size": 512, "num_experts": 0}, "TextModelArgs"),
    },
    "qwen3_5": {"text_config": Text("qwen3_5", {"num_experts": 0}, "TextModelArgs")},
    "qwen3_5_moe": {"text_config": Text("qwen3_5", {}, "TextModelArgs")},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "rwkv7": {
        "hidden_size": 64,
        "head_dim": 32,
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
}
