"""Entries of modules whose cache is `KVCache` in every layer: keys and values, or a latent form of them."""

from __future__ import annotations

from typing import Any

from tests.scheduler.engine.mlx.zoo.tiny import LAYERS, Text

YARN = {
    "type": "yarn",
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
"""Short enough that the longest prompts are far beyond it."""

_BLOCKS = [
    {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
    {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}},
    {"attention": {"n_heads_in_group": 1}, "ffn": {"replace_with_linear": True}},
    {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
]

ENTRIES: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 1.0},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": YARN, "topk_method": "greedy", "num_key_value_heads": 2},
    "deepseek_v3": {"num_key_value_heads": 2},
    "deepseek_v3+dense": {"num_key_value_heads": 2, "n_routed_experts": None},
    "gptj": {"n_positions": 4096},
    "hunyuan": {
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1.0},
    },
    "lille-130m": {"n_embd": 256, "n_layer": 2},
    "minicpm3": {
        "rope_scaling": {"original_max_position_embeddings": 64, "short_factor": 1.0, "long_factor": 1.0},
        "num_key_value_heads": 2,
    },
    "mistral4": {"rope_parameters": YARN, "num_key_value_heads": 2},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {"block_configs": _BLOCKS},
    "nemotron-nas+linear": {
        "block_configs": [
            *_BLOCKS[:3],
            {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.0}},
        ]
    },
    "openelm": {
        "ffn_dim_divisor": 8,
        "num_query_heads": [2] * LAYERS,
        "num_kv_heads": [1] * LAYERS,
        "ffn_multipliers": [1.0, 2.0, 1.0, 2.0],
    },
    "phi": {"num_key_value_heads": 2},
    "phi3small": {
        "vocab_size": 100352,  # It writes to fixed ids, whether or not its vocabulary has them.
        "ff_intermediate_size": 64,
        "hidden_size": 32,
        "dense_attention_every_n_layers": 2,
        "gegelu_limit": 20.0,
        "blocksparse_block_size": 32,
        "blocksparse_num_local_blocks": 2,
        "blocksparse_vert_stride": 2,
    },
    "plamo": {"n_shared_head": 2},
    "telechat3": {"rope_scaling": None},
}
ENTRIES |= {
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "zero_expert_num": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "kimi_k25": {"text_config": Text("deepseek_v3", {"num_key_value_heads": 2})},
    "kimi_vl": {"text_config": Text("kimi_vl", {"num_key_value_heads": 2}, "TextArgs")},
    "pixtral": {"text_config": Text("llama")},
    "qwen2_vl": {"text_config": Text("qwen2")},
    "qwen3_vl": {"text_config": Text("qwen3")},
    "qwen3_vl_moe": {"text_config": Text("qwen3_moe")},
}
