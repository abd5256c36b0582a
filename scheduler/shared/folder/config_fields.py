"""What becomes of each field of config.json that a module of mlx-lm does not read. Pure.

It is *without effect* on answers, *shown by the tensors* (others would be refused by their names or shapes),
*read here*, or has an *effect*: then a value that the module computes is fine, and any other one refuses the
model by name. What nobody has judged is *unknown*, and named once. A test holds that every field of every
module of the installed mlx-lm, and of transformers' configurations of the same types, has been judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.mlx_lm_module import Module


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WITHOUT_EFFECT: Final[Mapping[str, tuple[str, ...]]] = {
    "says what wrote the file, or names things": _names(
        """
        _attn_implementation _name_or_path architectures auto_map custom_pipelines finetuning_task
        id2label label2id mlx_lm_version model_name problem_type return_dict schema_version task
        tensor_namespace transformers_version unsloth_fixed unsloth_version
        """
    ),
    "is for training": _names(
        """
        attention_dropout attention_probs_dropout_prob attn_pdrop aux_loss_alpha classifier_dropout
        dropout emb_pdrop embd_pdrop embedding_dropout embedding_initializer_range ep_size
        ffn_dropout final_w_init_variance_scale first_k_dense_loss gradient_checkpointing
        hidden_dropout hidden_dropout_prob init_std initializer_factor initializer_range
        input_jitter_noise keep_alive linear_a_log_max linear_a_log_min linear_dt_init_floor
        linear_dt_max linear_dt_min loop_loss_weights moe_aux_loss_coeff moe_capacity
        moe_use_aux_free mtp_loss_scaling_factor output_router_logits pad_token pretraining_tp
        rescale_prenorm_residual resid_dropout resid_pdrop residual_dropout router_aux_loss_coef
        router_jitter_noise router_z_loss_coef seq_aux time_step_floor time_step_init_scheme
        time_step_scale w_init_variance_scale z_loss z_loss_coefficient
        """
    ),
    "says how another program computes the same": _names(
        """
        _experts_implementation attention_method attention_softmax_in_fp32 attn_implementation
        block_sparse_impl chunk_size chunk_size_feed_forward fp32_residual fused_norm fused_ops
        mamba_chunk_size mamba_ssm_cache_dtype moe_implementation moe_shared_expert_overlap
        norm_softmax num_logits_to_keep output_attentions output_hidden_states
        reorder_and_upcast_attn residual_in_fp32 scale_attention_softmax_in_fp32 softmax_in_fp32
        torchscript use_associative_scan use_bfloat16 use_cache use_cache_kernel
        use_cache_quantization use_dynamic_ntk use_flash_attention use_flash_attn
        use_logn_attn_kernel use_mamba_kernels use_mambapy
        """
    ),
    "is the type in which the weights were saved, which they say themselves": _names(
        """
        dtype params_dtype torch_dtype
        """
    ),
    "belongs to pictures and sounds, which are not read": _names(
        """
        audio_config audio_soft_tokens_per_image audio_token_id boa_token_id boi_token_id
        boi_token_index embd_layer eoa_token_id eoa_token_index eoi_token_id eoi_token_index
        ignore_index image_aspect_ratio image_break_token_id image_feature_size image_grid_pinpoints
        image_proj_type image_seq_length image_size image_token_id image_token_index img_processor
        media_placeholder_token_id merge_size merged_hidden_size mm_hidden_size mm_projector_type
        mm_tokens_per_image mm_vision_tower multimodal_projector_bias num_channels out_hidden_size
        patch_size patch_temporal pos_emb_height pos_emb_width projection_hidden_size
        projection_layer_norm_eps projector_bias projector_hidden_act projector_hidden_size
        spatial_merge_size use_ij_pos_encoding video_token_id video_token_index vision_config
        vision_end_token_id vision_feature_layer vision_feature_select_strategy
        vision_soft_tokens_per_image vision_start_token_id vision_token_id vision_tower
        """
    ),
    "names special tokens, which the tokenizer has": _names(
        """
        bos_token_id decoder_start_token_id eod_token_id forced_bos_token_id forced_eos_token_id
        im_end_id im_start_id mask_token_id pad_token_id prefix sep_token sep_token_id
        text_config_pad tokenizer_class unk_token_id
        """
    ),
    "belongs to drafts of the model's own, which are not used": _names(
        """
        mtp_layer_types mtp_layers_block_type mtp_mlp_layer_types mtp_num_hidden_layers
        mtp_transformer_layers mtp_use_dedicated_embeddings num_mtp_layers num_mtp_modules
        num_nextn_predict_layers use_mtp
        """
    ),
    "is of a class for other tasks": _names(
        """
        add_cross_attention cross_attention_hidden_size encoder_no_repeat_ngram_size
        hidden_act_classifier is_decoder is_encoder_decoder num_labels position_ids pruned_heads
        summary_activation summary_first_dropout summary_proj_to_labels summary_type
        summary_use_proj tf_legacy_loss tie_encoder_decoder
        """
    ),
    "is sampling, which requests and generation_config.json give": _names(
        """
        bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
        exponential_decay_length_penalty length_penalty max_length max_new_tokens min_length
        no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores
        remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens
        task_specific_params temperature top_k top_p typical_p
        """
    ),
}
"""By the reason, as a sentence about the field."""

SHOWN_BY_TENSORS: Final = frozenset(
    _names(
        """
        attention_bias attention_out_bias attn_layer_offset attn_layer_period bias conv1d_width
        conv_L_cache conv_bias conv_kernel d_model decoder_sparse_step dense_intermediate_size
        embedding_size expand expert_ffn_hidden_size expert_layer_offset expert_layer_period
        ff_intermediate_size ffn_hidden_size ffn_mult first_k_dense_replace global_head_dim head_dim
        hidden_dim hidden_size hidden_size_per_head hidden_size_per_layer_input index_head_dim
        index_n_heads interleave_moe_layer_step intermediate_size intermediate_size_mlp is_moe_layer
        kv_channels kv_lora_rank layer_norm_bias linear_conv_kernel_dim linear_head_dim
        linear_key_head_dim linear_num_heads linear_num_key_heads linear_num_value_heads
        linear_value_head_dim lm_head_bias lru_width mamba_conv_bias mamba_d_conv mamba_d_head
        mamba_d_ssm mamba_d_state mamba_dt_rank mamba_expand mamba_head_dim mamba_n_groups
        mamba_n_heads mamba_num_heads mamba_proj_bias mamba_rms_norm mlp_bias mlp_expansion_factor
        mlp_hidden_size mlp_only_layers mlp_ratio model_dim moe_hidden_size moe_intermediate_size
        moe_layer_freq moe_layers moe_layers_enum moe_num_experts moe_num_shared_experts
        moe_shared_expert_intermediate_size multi_query n_embd n_groups n_head n_heads n_inner
        n_kv_heads n_layer n_layers n_routed_experts n_shared_experts no_bias num_attention_groups
        num_attention_heads num_dense_layers num_experts num_heads num_hidden_layers
        num_key_value_heads num_kv_heads num_layers num_local_experts num_query_heads
        num_shared_expert num_shared_experts num_sliding_attention_heads num_transformer_layers
        num_vocab o_lora_rank padded_vocab_size post_norm projectors_bias q_lora_rank qk_head_dim
        qk_layernorm qk_nope_head_dim qk_norm qk_rope_head_dim qkv_bias router_bias share_expert_dim
        share_input_output_layers shared_expert_intermediate_size shared_intermediate_size
        short_conv_kernel_size ssm_state_size state_size swa_head_dim swa_num_attention_heads
        swa_num_key_value_heads swa_v_head_dim tie_word_embeddings time_step_rank use_bias
        use_conv_bias use_qk_norm use_qkv_bias v_head_dim vocab_size vocab_size_per_layer_input
        weight_tying
        """
    )
)
"""Sizes, and which parts there are: a model whose tensors are otherwise is refused."""

READ_HERE: Final = frozenset(
    _names(
        """
        _sliding_window_pattern activation_function compression_config eos_token_id
        full_attention_interval hidden_act hidden_activation hybrid_override_pattern is_causal
        is_matryoshka layer_types layers_block_type mamba_hidden_act matryoshka_dimensions
        max_context_length max_position_embeddings max_seq_len max_seq_length max_sequence_length
        max_target_positions max_window_layers mlp_hidden_act mlp_layer_types model_file
        model_max_length model_type moe_k moe_renormalize moe_top_k moe_topk n_ctx n_group
        n_positions num_expert_group num_experts_per_tok num_experts_per_token
        original_max_position_embeddings partial_rotary_factor per_layer_config quantization
        quantization_config
        quantize_activations rope_local_base_freq rope_local_theta rope_parameters rope_scaling
        rope_theta rotary_emb_base rotary_pct seq_len seq_length sliding_window
        sliding_window_pattern swa_rope_theta text_config top_k_experts use_bidirectional_attention
        use_sliding_window
        """
    )
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
"""What a module computes without reading the field. Another module's code may have either value: there the
field is unknown."""

_NAMES_OF_REASONS = {name for names in WITHOUT_EFFECT.values() for name in names}
JUDGED: Final = frozenset(_NAMES_OF_REASONS | SHOWN_BY_TENSORS | READ_HERE | WITH_EFFECT.keys())
"""All names of which something is known."""

_ACTIVATIONS: Final = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
_IN_CODE: Final = (
    ("silu", "swish", "swiglu", "switchglu"),
    ("gelu", "geglu", "gegelu", "switchmlp"),
    ("relu",),
    ("xielu",),
)
"""Words for one activation; a module that computes it has one of them in its code."""


def unknown_fields(config: Mapping[str, Any], module: Module) -> tuple[str, ...]:
    """Return the fields of a model's text part that nobody reads, and of which nobody knows that they have no
    effect. Raise StartupError for a field that changes answers and that the module does not read."""
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
    known = JUDGED | FIXED.get(module.name, {}).keys()
    return tuple(sorted(name for name, value in unread.items() if name not in known and value is not None))


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _has_activation(value: str, module: Module) -> bool:
    """Return whether the module's code names this activation. One that has no word here passes."""
    asked = value.lower()
    for words in _IN_CODE:
        if any(word in asked for word in words):
            return any(word in used for word in words for used in module.words)
    return True
