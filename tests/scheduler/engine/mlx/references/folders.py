"""Tiny folders of popular families, as transformers 4 and 5 write them, and the prompts they are asked."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import shake_256
from typing import Any, Literal, TypeAlias, get_args

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 320
NEW_TOKENS = 16
SHORT, LONG = 6, 80
"""Tokens of prompts. The long one is beyond ORIGINAL and WINDOW, and longer than the tests' prefill chunk."""
ORIGINAL, CONTEXT = 64, 256
WINDOW = 24

Spelling: TypeAlias = Literal["transformers 4", "transformers 5"]
SPELLINGS: tuple[Spelling, ...] = get_args(Spelling)


@dataclass(frozen=True, slots=True)
class Folder:
    """A configuration. `fields` are in the spelling of transformers 4."""

    family: str
    variant: str
    fields: Mapping[str, Any]
    prompts: tuple[int, ...] = (SHORT, LONG)
    """How many tokens each prompt has."""
    max_model_len: int | None = None
    """What the operator says."""

    @property
    def name(self) -> str:
        return f"{self.family}+{self.variant}" if self.variant else self.family

    def config(self, spelling: Spelling) -> dict[str, Any]:
        """Return config.json as this version writes it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = CONFIG_MAPPING[self.family](**copy.deepcopy(dict(self.fields)))
        written: dict[str, Any] = json.loads(made.to_json_string(use_diff=True))
        if spelling == "transformers 5":
            return written
        written.pop("rope_parameters", None)
        return {**written, **copy.deepcopy(dict(self.fields))}


def prompt(tokens: int, seed: int) -> list[int]:
    """Return a prompt of this many token ids."""
    drawn = shake_256(f"prompt {seed}".encode()).digest(2 * tokens)
    return [
        3 + int.from_bytes(drawn[at : at + 2], "little") % (VOCABULARY - 3) for at in range(0, 2 * tokens, 2)
    ]


@dataclass(frozen=True, slots=True)
class _Variant:
    fields: Mapping[str, Any] = field(default_factory=dict)
    prompts: tuple[int, ...] = (SHORT, LONG)
    max_model_len: int | None = None


_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_BASE = _SIZES | {"rope_theta": 5000.0, "rms_norm_eps": 1e-5}
_HEADS = {"head_dim": 16}
_WINDOWS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_POSITIONS_TABLE = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "n_inner": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _scaled(**scaling: Any) -> _Variant:
    return _Variant({"rope_scaling": scaling})


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0],
}
_LONGROPES = {
    "longrope": _Variant(
        {"rope_scaling": _LONGROPE, "original_max_position_embeddings": ORIGINAL}, prompts=(SHORT, 40)
    ),
    "longrope+long": _Variant(
        {"rope_scaling": _LONGROPE, "original_max_position_embeddings": ORIGINAL},
        prompts=(LONG,),
        max_model_len=CONTEXT,
    ),
}
_FAMILIES: dict[str, tuple[dict[str, Any], dict[str, _Variant]]] = {
    "llama": (
        _BASE,
        {
            "": _Variant(),
            "tied": _Variant({"tie_word_embeddings": True}),
            "biases": _Variant({"attention_bias": True, "mlp_bias": True}),
            "linear": _scaled(rope_type="linear", factor=4.0),
            "dynamic": _scaled(rope_type="dynamic", factor=4.0),
            "dynamic+within": _Variant(
                {
                    "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
                    "max_position_embeddings": ORIGINAL,
                },
                prompts=(SHORT, 40),
            ),
            "yarn": _scaled(**_YARN),
            "yarn+model card": _Variant({"rope_scaling": _YARN, "max_position_embeddings": ORIGINAL}),
            "llama3": _scaled(**_LLAMA3),
        }
        | _LONGROPES,
    ),
    "mistral": (
        _BASE | _HEADS,
        {
            "": _Variant({"sliding_window": None}),
            "window": _Variant({"sliding_window": WINDOW}, prompts=(SHORT,)),
            "yarn": _Variant({"sliding_window": None, "rope_scaling": _YARN}),
        },
    ),
    "qwen2": (
        _BASE,
        {
            "": _Variant(),
            "tied+yarn": _Variant({"rope_scaling": _YARN, "tie_word_embeddings": True}),
        },
    ),
    "qwen3": (
        _BASE | _HEADS,
        {
            "": _Variant(),
            "yarn": _scaled(**_YARN, attention_factor=1.25, beta_fast=16.0, beta_slow=2.0),
        },
    ),
    "qwen3_moe": (
        _BASE | _HEADS | _EXPERTS | {"num_experts": 4, "norm_topk_prob": True},
        {"": _Variant(), "yarn": _scaled(**_YARN), "unnormed": _Variant({"norm_topk_prob": False})},
    ),
    "gemma3_text": (
        _BASE
        | _HEADS
        | _WINDOWS
        | {"tie_word_embeddings": True, "query_pre_attn_scalar": 24, "rope_local_base_freq": 700.0},
        {"": _Variant(), "linear": _scaled(rope_type="linear", factor=4.0)},
    ),
    "phi3": (
        _BASE | {"sliding_window": None},
        {
            "": _Variant(),
            "partial": _Variant({"partial_rotary_factor": 0.5}),
        }
        | _LONGROPES,
    ),
    "gpt2": (_POSITIONS_TABLE, {"": _Variant()}),
    "gpt_oss": (
        _BASE | _HEADS | _WINDOWS | {"num_local_experts": 4, "num_experts_per_tok": 2},
        {
            "": _scaled(**_YARN, beta_fast=32.0, beta_slow=1.0, truncate=False),
        },
    ),
    "granitemoehybrid": (
        _BASE
        | _MAMBA
        | {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "position_embedding_type": "rope",
        },
        {"": _Variant()},
    ),
    "glm": (_BASE | _HEADS | {"partial_rotary_factor": 0.5}, {"": _Variant()}),
    "deepseek_v3": (
        _BASE
        | _EXPERTS
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "routed_scaling_factor": 1.5,
        },
        {
            "": _Variant(),
            "yarn": _scaled(**_YARN, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1),
        },
    ),
    "lfm2": (
        _without(_BASE, "rms_norm_eps")
        | {
            "norm_eps": 1e-5,
            "conv_L_cache": 3,
            "block_multiple_of": 8,
            "layer_types": ["conv", "full_attention"],
            "tie_word_embeddings": True,
        },
        {"": _Variant()},
    ),
    "qwen3_next": (
        _BASE
        | _HEADS
        | _EXPERTS
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "full_attention_interval": 2,
            "num_experts": 4,
            "shared_expert_intermediate_size": 32,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "partial_rotary_factor": 0.5,
        },
        {"": _Variant(), "yarn": _scaled(**_YARN)},
    ),
    "seed_oss": (
        _BASE | _HEADS | {"attention_bias": True, "attention_out_bias": False},
        {"": _Variant(), "yarn": _scaled(**_YARN)},
    ),
    "gemma4_text": (
        _without(_BASE, "rope_theta")
        | _HEADS
        | _WINDOWS
        | {
            "tie_word_embeddings": True,
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
            "num_kv_shared_layers": 0,
        },
        {"": _Variant(), "larger full layers": _Variant({"global_head_dim": 32})},
    ),
    "ministral3": (
        _without(_BASE, "rope_theta") | _HEADS | {"sliding_window": None},
        {
            "": _Variant(
                {
                    "rope_parameters": {
                        **_YARN,
                        "rope_theta": 5000.0,
                        "mscale": 1.0,
                        "mscale_all_dim": 1.0,
                        "beta_fast": 32.0,
                        "beta_slow": 1.0,
                        "llama_4_scaling_beta": 0.5,
                    }
                }
            )
        },
    ),
    "glm4_moe": (
        _BASE
        | _HEADS
        | _EXPERTS
        | {
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
            "partial_rotary_factor": 0.5,
            "use_qk_norm": True,
        },
        {"": _Variant()},
    ),
    "ernie4_5_moe": (
        _BASE
        | _HEADS
        | {
            "moe_intermediate_size": 32,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
            "moe_layer_interval": 1,
            "use_bias": False,
        },
        {"": _Variant()},
    ),
    "minimax_m2": (
        _BASE
        | _HEADS
        | {
            "intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rotary_dim": 8,
            "use_qk_norm": True,
        },
        {"": _Variant()},
    ),
    "nemotron_h": (
        _without(_BASE, "rope_theta")
        | _HEADS
        | {
            "hybrid_override_pattern": "M-*-",
            "num_hidden_layers": 4,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "conv_kernel": 4,
            "expand": 2,
            "layer_norm_epsilon": 1e-5,
            "mlp_hidden_act": "relu2",
        },
        {"": _Variant()},
    ),
    "olmo_hybrid": (
        _BASE
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,  # transformers saves convolutions of other sizes cut wrongly
        },
        {"": _Variant()},
    ),
    "glm4_moe_lite": (
        _BASE
        | _EXPERTS
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse"],
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "routed_scaling_factor": 1.5,
        },
        {"": _Variant()},
    ),
}
FOLDERS: tuple[Folder, ...] = tuple(
    Folder(family, name, {**fields, **variant.fields}, variant.prompts, variant.max_model_len)
    for family, (fields, variants) in _FAMILIES.items()
    for name, variant in variants.items()
)
