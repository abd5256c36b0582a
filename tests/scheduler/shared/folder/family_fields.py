"""Fields of config.json that some modules of mlx-lm read, and of which nothing is known for the others.

Where another model's config.json has one it is named as unknown. One that turns out to have an effect, or
none, in other models belongs into `scheduler/shared/folder/config_fields.py`.
"""

from __future__ import annotations

OF_FAMILIES = frozenset(
    """
    _block_types a_low_rank_dim activation_situ_beta activation_situ_linear_beta
    activation_sparsity_pattern add_full_attention_sink_bias add_swa_attention_sink_bias
    altup_active_idx altup_coef_clip altup_correct_scale altup_num_inputs attention attention_chunk_size
    attention_in_multiplier attention_k_eq_v attention_other_setting attention_out_multiplier
    attention_window_size attn_config attn_res_block_size attn_scale attn_temperature_tuning
    block_auto_adjust_ff_dim block_configs block_dim block_ff_dim block_ffn_dim_multiplier
    block_multiple_of block_size block_types blocksparse_block_size blocksparse_num_local_blocks
    blocksparse_vert_stride candidate_block_size candidate_source_layer_id candidate_topk_blocks
    cla_share_factor compress_ratios compress_rope_theta conv_window decay_low_rank_dim
    dense_attention_every_n_layers dim_model_base emb_neighbor_num emb_split_num
    embeddings_scale_by_sqrt_dim enable_depth_attention enable_double_loop_split enable_moe_block
    engram_layer_ids ffn ffn_config ffn_dim_divisor ffn_multipliers ffn_with_glu floor_scale
    full_attention_idx full_attn_alpha_factor full_attn_beta_factor full_attn_idxs gate_attn_act_mode
    gate_low_rank_dim gate_temp gating gdn_activation_layout gegelu_limit global_attn_every_n_layers
    global_partial_rotary_factor group_norm_size hc_eps hc_mult hc_sinkhorn_iters
    headwise_attn_output_gate hidden_dim_scale_factor hybrid_layer_pattern index_block_size
    index_local_blocks index_source_layer_ids index_topk index_topk_blocks indexer_rope_interleave
    indexer_types kda_lower_bound kda_safe_gate key_multiplier kv_source_layer_ids latent_moe_use_norm
    laurel_rank layer_group_size layer_norm_eps layer_norm_epsilon layer_rope_theta layernorm_epsilon
    linear_allow_neg_eigval linear_attn_alpha_factor linear_attn_beta_factor linear_attn_config
    linear_type lm_head_multiplier loop_num loop_share_kv loop_window_size mamba_enabled
    mamba_norm_before_gate mamba_step mamba_use_mlp mixer_rms_eps mla_scale_kv_lora mla_scale_q_lora
    mla_use_nope mla_use_output_gate mlp_alpha_factor mlp_beta_factor mlp_multipliers modules
    moe_gate_act moe_latent_size moe_layer_end_index moe_layer_interval moe_layer_start_index
    moe_norm_min moe_routed_scaling_factor moe_router_activation_func moe_router_enable_expert_bias
    moe_router_enable_routed_scaling moe_router_enable_shared_expert moe_router_scaling_factor
    moe_router_score_func mup_attn_multiplier mup_embedding_multiplier mup_enabled mup_use_scaling
    mup_width_multiplier n_heads_in_group n_shared_head ngram_vocab_size_ratio no_kda_lora no_op
    no_rope_layer_interval no_rope_layers norm_eps norm_epsilon norm_expert_weight norm_head
    normalize_qk_projections num_attention_heads_per_layer num_global_key_value_heads
    num_kv_reuse_layers num_kv_shared_layers num_loops num_sink_tokens num_swa_attention_heads
    num_swa_key_value_heads o_groups output_multiplier partial_rotary_factors
    position_embedding_type post_norm_eps qk_scale_factor query_pre_attn_scalar replace_with_linear
    residual_gate_temperature rms_norm_eps rope_embedding_base rope_freq_constant rope_position_scale
    rope_traditional rotary_dim route_norm route_scale routed_expert_hidden_size scale_depth scale_emb
    score_func score_function skip_loop_final_norm sliding_window_layers sliding_window_size
    sparse_attention_config sparse_attention_freq sparsify ssm_in_multiplier ssm_multipliers
    ssm_out_multiplier swiglu_alpha swiglu_limit swiglu_limits swiglu_limits_shared time_step_limit
    time_step_max time_step_min topk_group topk_method unshifted_sink use_bcdt_rms use_cla
    use_double_wide_mlp use_expert_bias use_gemma_norm use_grouped_topk use_head_wise_attn_gate
    use_mixed_mlp_moe use_parallel_residual use_prefill_window_in_sink_attention use_rmsnorm
    v_low_rank_dim window_length window_size yarn_only_types zero_expert_num zero_expert_type
    """.split()  # noqa: SIM905  # one a line would be 250
)
