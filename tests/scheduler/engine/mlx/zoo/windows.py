"""Entries of modules with sliding windows, attention chunks, or an index that chooses what is attended to."""

from __future__ import annotations

from typing import Any

from tests.scheduler.engine.mlx.zoo.dense import YARN
from tests.scheduler.engine.mlx.zoo.tiny import LAYERS, Text

SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.5},
}
_GEMMA4 = {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1, "num_key_value_heads": 1}

ENTRIES: dict[str, dict[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 2},
    "cohere2": {"logit_scale": 1.0},
    "deepseek_v32": {"index_topk": 40, "num_key_value_heads": 2},
    "deepseek_v41": {
        "o_groups": 2,
        "num_key_value_heads": 2,
        "compress_ratios": (0, 4, 4, 4),
        "kv_source_layer_ids": (1,),
        "index_source_layer_ids": (1, 3),
        "index_topk": 8,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 64},
    },
    "exaone4": {"sliding_window_pattern": "LG"},
    "gemma4_text": _GEMMA4,
    "gemma4_text+experts": _GEMMA4
    | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "attention_k_eq_v": True}
    | {"moe_intermediate_size": 32, "num_global_key_value_heads": 1},
    "glm_moe_dsa": {
        "index_topk": 40,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "iquestloopcoder": {"loop_window_size": 16},
    "llama+windows": {"layer_types": SLIDING},
    "llama4_text": {"no_rope_layers": [1, 0] * (LAYERS // 2)},
    "mellum": {"rope_parameters": _ROPES},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0] * (LAYERS // 2),
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "ministral3": {"rope_parameters": YARN},
    "ministral3+windows": {"rope_parameters": YARN, "layer_types": SLIDING},
    "muse_glimmer": {"output_multiplier": 1.0},
    "spark2_5": {"rope_parameters": _ROPES},
    # with eyes
    "gemma3": {"text_config": Text("gemma3_text")},
    "gemma3n": {
        "text_config": Text(
            "gemma3n",
            {
                "num_kv_shared_layers": 2,
                "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
                "hidden_size_per_layer_input": 8,
                "altup_num_inputs": 2,
                "altup_coef_clip": 120.0,
                "altup_correct_scale": True,
                "altup_active_idx": 0,
                "laurel_rank": 8,
            },
            "TextConfig",
        )
    },
    "gemma4": {"text_config": Text("gemma4_text", _GEMMA4)},
    "llama4": {
        "text_config": Text(
            "llama4",
            {"interleave_moe_layer_step": 2, "num_experts_per_tok": 1, "floor_scale": 16},
            "TextArgs",
        )
    },
    "minimax_m3_vl": {
        "text_config": Text(
            "minimax_m3_vl",
            {
                "layer_types": ["full_attention", "sparse", "full_attention", "sparse"],
                "moe_layer_freq": [0, 1, 1, 1],
                "index_block_size": 16,
                "index_topk_blocks": 3,
            },
            "TextArgs",
        )
    },
    "mistral3": {"text_config": Text("ministral3", {"rope_parameters": YARN})},
    "mistral3+windows": {
        "text_config": Text("ministral3", {"rope_parameters": YARN, "layer_types": SLIDING})
    },
    "mistral3+llama": {"text_config": Text("llama", {"layer_types": SLIDING})},
    "pixtral+windows": {"text_config": Text("llama", {"layer_types": SLIDING})},
}
