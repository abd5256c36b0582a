"""What becomes of each field of config.json that a module of mlx-lm does not read. Pure.

It is *without effect* on answers, *shown by the tensors* (others would be refused by their names or shapes), *read
here*, or has an *effect*: then a value that the module computes is fine, and any other one refuses the model by
name. What nobody has judged is *unknown*, and named once. A test holds that every field of every module of the
installed mlx-lm, and of transformers' configurations of the same types, has been judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import Module

WITHOUT_EFFECT: Final[Mapping[str, tuple[str, ...]]] = {
    "says what wrote the file, or names things": (
        *("_name_or_path", "architectures", "auto_map", "transformers_version", "mlx_lm_version", "model_name"),
        *("id2label", "label2id", "problem_type", "return_dict", "unsloth_fixed", "unsloth_version", "task"),
        *("finetuning_task", "custom_pipelines", "schema_version", "tensor_namespace", "_attn_implementation"),
    ),
    "is for training": (
        *("initializer_range", "initializer_factor", "attention_dropout", "attn_pdrop", "embd_pdrop", "emb_pdrop"),
        *("resid_pdrop", "residual_dropout", "embedding_dropout", "hidden_dropout", "classifier_dropout"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_dropout", "ffn_dropout", "dropout"),
        *("router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "z_loss_coefficient", "router_z_loss_coef"),
        *("output_router_logits", "router_jitter_noise", "input_jitter_noise", "rescale_prenorm_residual"),
        *("final_w_init_variance_scale", "w_init_variance_scale", "time_step_init_scheme", "time_step_scale"),
        *("time_step_floor", "linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max"),
        *("linear_dt_min", "mtp_loss_scaling_factor", "pretraining_tp", "loop_loss_weights", "ep_size"),
        *("moe_capacity", "moe_use_aux_free", "gradient_checkpointing", "keep_alive", "z_loss", "init_std"),
        *("embedding_initializer_range", "pad_token", "moe_aux_loss_coeff", "first_k_dense_loss"),
    ),
    "says how another program computes the same": (
        *("use_cache", "use_flash_attn", "use_flash_attention", "attn_implementation", "chunk_size", "mamba_chunk_size"),
        *("chunk_size_feed_forward", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "fused_norm"),
        *("reorder_and_upcast_attn", "residual_in_fp32", "mamba_ssm_cache_dtype", "use_mamba_kernels"),
        *("use_mambapy", "use_associative_scan", "num_logits_to_keep", "output_attentions", "output_hidden_states"),
        *("moe_shared_expert_overlap", "torchscript", "use_bfloat16", "use_cache_quantization", "fp32_residual"),
        *("use_cache_kernel", "softmax_in_fp32", "use_dynamic_ntk", "use_logn_attn_kernel", "block_sparse_impl"),
        *("attention_method", "moe_implementation", "_experts_implementation", "fused_ops", "norm_softmax"),
    ),
    "is the type in which the weights were saved, which they say themselves": ("dtype", "torch_dtype", "params_dtype"),
    "belongs to pictures and sounds, which are not read": (
        *("vision_config", "audio_config", "vision_feature_layer", "vision_feature_select_strategy", "image_size"),
        *("image_seq_length", "patch_size", "num_channels", "spatial_merge_size", "merge_size", "projector_hidden_act"),
        *("multimodal_projector_bias", "projector_hidden_size", "projection_hidden_size", "merged_hidden_size"),
        *("projection_layer_norm_eps", "out_hidden_size", "mm_tokens_per_image", "image_feature_size"),
        *("audio_soft_tokens_per_image", "vision_soft_tokens_per_image", "image_proj_type", "patch_temporal"),
        *("pos_emb_height", "pos_emb_width", "use_ij_pos_encoding", "mm_projector_type", "mm_hidden_size"),
        *("image_token_id", "image_token_index", "video_token_id", "video_token_index", "audio_token_id"),
        *("vision_start_token_id", "vision_end_token_id", "vision_token_id", "boi_token_id", "eoi_token_id"),
        *("boi_token_index", "eoi_token_index", "boa_token_id", "eoa_token_id", "eoa_token_index", "img_processor"),
        *("embd_layer", "image_aspect_ratio", "image_grid_pinpoints", "mm_vision_tower", "ignore_index"),
        *("projector_bias", "media_placeholder_token_id", "vision_tower", "image_break_token_id"),
    ),
    "names special tokens, which the tokenizer has": (
        *("bos_token_id", "pad_token_id", "sep_token_id", "eod_token_id", "unk_token_id", "decoder_start_token_id"),
        *("forced_bos_token_id", "forced_eos_token_id", "mask_token_id", "im_start_id", "im_end_id"),
        *("tokenizer_class", "prefix", "sep_token", "text_config_pad"),
    ),
    "belongs to drafts of the model's own, which are not used": (
        *("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "mtp_layer_types", "num_mtp_modules"),
        *("mtp_mlp_layer_types", "mtp_layers_block_type", "mtp_use_dedicated_embeddings", "use_mtp", "mtp_transformer_layers"),
    ),
    "is of a class for other tasks": (
        *("is_decoder", "is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
        *("summary_use_proj", "tie_encoder_decoder", "encoder_no_repeat_ngram_size", "pruned_heads"),
        *("tf_legacy_loss", "num_labels", "hidden_act_classifier", "position_ids"),
    ),
    "is sampling, which requests and generation_config.json give": (
        *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "num_beams"),
        *("num_beam_groups", "diversity_penalty", "do_sample", "early_stopping", "max_length", "min_length"),
        *("no_repeat_ngram_size", "num_return_sequences", "return_dict_in_generate", "output_scores"),
        *("bad_words_ids", "begin_suppress_tokens", "suppress_tokens", "exponential_decay_length_penalty"),
        *("remove_invalid_values", "max_new_tokens", "task_specific_params"),
    ),
}
"""By the reason, as a sentence about the field."""

SHOWN_BY_TENSORS: Final = frozenset(
    {
        *("hidden_size", "hidden_dim", "model_dim", "n_embd", "d_model", "num_hidden_layers", "num_layers", "n_layer"),
        *("n_layers", "num_transformer_layers", "intermediate_size", "ffn_hidden_size", "ff_intermediate_size"),
        *("n_inner", "dense_intermediate_size", "intermediate_size_mlp", "mlp_hidden_size", "moe_hidden_size"),
        *("num_attention_heads", "num_heads", "n_heads", "n_head", "num_key_value_heads", "num_kv_heads", "n_kv_heads"),
        *("head_dim", "v_head_dim", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "global_head_dim"),
        *("kv_channels", "q_lora_rank", "kv_lora_rank", "o_lora_rank", "vocab_size", "embedding_size", "num_vocab"),
        *("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "lru_width"),
        *("expert_ffn_hidden_size", "moe_shared_expert_intermediate_size", "share_expert_dim", "conv1d_width"),
        *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_shared_experts"),
        *("num_shared_experts", "num_shared_expert", "moe_num_shared_experts", "multi_query", "mamba_expand"),
        *("attention_bias", "mlp_bias", "qkv_bias", "use_bias", "bias", "no_bias", "lm_head_bias", "use_qkv_bias"),
        *("attention_out_bias", "layer_norm_bias", "use_conv_bias", "conv_bias", "mamba_conv_bias", "mamba_proj_bias"),
        *("projectors_bias", "router_bias", "qk_layernorm", "use_qk_norm", "qk_norm", "mamba_rms_norm", "post_norm"),
        *("state_size", "ssm_state_size", "conv_kernel", "short_conv_kernel_size", "linear_conv_kernel_dim", "expand"),
        *("linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads"),
        *("linear_head_dim", "linear_num_heads", "mamba_d_conv", "mamba_d_state", "mamba_num_heads", "mamba_head_dim"),
        *("swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads", "index_head_dim"),
        *("index_n_heads", "num_sliding_attention_heads", "num_query_heads", "num_attention_groups", "n_groups"),
        *("mlp_ratio", "mlp_expansion_factor", "ffn_mult", "hidden_size_per_head", "tie_word_embeddings"),
        *("weight_tying", "share_input_output_layers", "vocab_size_per_layer_input", "hidden_size_per_layer_input"),
        *("first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step", "mlp_only_layers", "num_dense_layers"),
        *("interleave_moe_layer_step", "moe_layers", "is_moe_layer", "moe_layers_enum", "expert_layer_period"),
        *("expert_layer_offset", "attn_layer_period", "attn_layer_offset", "mamba_d_ssm", "mamba_d_head"),
        *("mamba_n_heads", "mamba_n_groups", "time_step_rank", "mamba_dt_rank", "conv_L_cache", "padded_vocab_size"),
    }
)
"""Sizes, and which parts there are: a model whose tensors are otherwise is refused."""

READ_HERE: Final = frozenset(
    {
        *("model_type", "model_file", "text_config", "eos_token_id", "quantization", "quantization_config"),
        *("compression_config", "quantize_activations", "rope_theta", "rope_scaling", "rope_parameters"),
        *("partial_rotary_factor", "rotary_pct", "rotary_emb_base", "rope_local_base_freq", "swa_rope_theta"),
        *("rope_local_theta", "original_max_position_embeddings", "max_position_embeddings", "n_positions"),
        *("n_ctx", "max_seq_len", "seq_length", "model_max_length", "max_target_positions", "max_sequence_length"),
        *("max_seq_length", "seq_len", "max_context_length", "layer_types", "mlp_layer_types", "layers_block_type"),
        *("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern", "use_sliding_window"),
        *("sliding_window", "max_window_layers", "use_bidirectional_attention", "is_causal", "is_matryoshka"),
        *("matryoshka_dimensions", "hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"),
        *("mamba_hidden_act", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k"),
        *("top_k_experts", "n_group", "num_expert_group", "moe_renormalize", "hybrid_override_pattern"),
    }
)
"""By this package, or by the server's reading of embedders."""

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
    "norm_topk_prob": (),
    "scoring_func": ("sigmoid",),
    "alibi": (False,),
    "use_alibi": (False,),
    "routed_scaling_factor": (1,),
    "moe_apply_router_weight_on_input": (False,),
    "rope_interleave": (False,),
    "cross_layer_attention": (False,),
    "use_logn_attn": (False,),
    "layernorm_zero_centered_gamma": (False,),
}
"""By field the values at which it does nothing, beside none at all."""

FIXED: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    "deepseek": {"scoring_func": ("softmax",), "norm_topk_prob": (False,)},
    "deepseek_v2": {"scoring_func": ("softmax",), "norm_topk_prob": (False,)},
    "deepseek_v3": {"rope_interleave": (True,)},
    "deepseek_v32": {"rope_interleave": (True,)},
    "glm4_moe_lite": {"rope_interleave": (True,)},
    "glm_moe_dsa": {"rope_interleave": (True,)},
    "kimi_k25": {"rope_interleave": (True,)},
    "mixtral": {"norm_topk_prob": (True,)},
    "nanochat": {"final_logit_softcapping": (15,)},
    "qwen2_moe": {"norm_topk_prob": (False,)},
    "youtu_llm": {"rope_interleave": (True,)},
}
"""What a module computes without reading the field."""

_NAMES_OF_REASONS = {name for names in WITHOUT_EFFECT.values() for name in names}
JUDGED: Final = frozenset(_NAMES_OF_REASONS | SHOWN_BY_TENSORS | READ_HERE | WITH_EFFECT.keys())
"""All names of which something is known."""

_ACTIVATIONS: Final = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
_IN_CODE: Final = (
    ("silu", "swish", "swiglu", "switchglu"),
    ("gelu", "geglu", "gegelu"),
    ("relu",),
    ("xielu",),
)
"""Words for one activation; a module that computes it has one of them in its code."""


def unknown_fields(config: Mapping[str, Any], module: Module) -> tuple[str, ...]:
    """Return the fields of a model's text part that nobody reads, and of which nobody knows that they have no
    effect. Raise StartupError for a field that changes answers and that the module does not read."""
    unread = {name: value for name, value in config.items() if name not in module.read}
    for name, value in unread.items():
        if name in WITH_EFFECT and value is not None and not _is_neutral(name, value, module):
            raise StartupError(
                f"--model: config.json says {name} {value!r}, which changes answers and which mlx-lm's"
                f" {module.name} does not compute: serve another model, or take the field out if that is right"
            )
        if name in _ACTIVATIONS and isinstance(value, str) and not _has_activation(value, module):
            raise StartupError(
                f"--model: config.json says {name} {value!r}, and mlx-lm's {module.name} computes another"
                " activation: serve another model"
            )
    return tuple(sorted(name for name, value in unread.items() if name not in JUDGED and value is not None))


def _is_neutral(name: str, value: Any, module: Module) -> bool:
    allowed = FIXED.get(module.name, {}).get(name, WITH_EFFECT[name])
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _has_activation(value: str, module: Module) -> bool:
    """Return whether the module's code names this activation. One that has no word here passes."""
    asked = value.lower()
    for words in _IN_CODE:
        if any(word in asked for word in words):
            return any(word in used for word in words for used in module.words)
    return True
