"""Configuration keys of VeRL 0.9.1: what a search may name beyond the hyper-parameter table.

Written down so that a misspelt key is refused on a machine without VeRL, before anything starts. A test
compares the list with the composed configuration of the installed VeRL. Left out: critic, distillation,
profiler and other blocks that this project never composes.
"""

from __future__ import annotations

from collections.abc import Iterator

VERL_VERSION = "0.9.1"

# prefix: leaf names. A line that is indented continues the one above it.
_TEXT = """
actor_rollout_ref.actor.optim: optimizer optimizer_impl lr lr_warmup_steps_ratio total_training_steps
    weight_decay lr_warmup_steps betas clip_grad min_lr_ratio num_cycles lr_scheduler_type zero_indexed_step
    warmup_style override_optimizer_config
actor_rollout_ref.actor.fsdp_config.wrap_policy: min_num_params
actor_rollout_ref.actor.fsdp_config: param_offload optimizer_offload offload_policy reshard_after_forward
    fsdp_size forward_prefetch model_dtype use_orig_params seed full_determinism
    ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_from_logits_chunk_size
    use_torch_compile entropy_checkpointing use_no_sync_for_gradient_accumulation pad_to_length
    pad_to_length_bucket forward_only strategy dtype
actor_rollout_ref.actor: rollout_n strategy ppo_mini_batch_size ppo_micro_batch_size
    ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu clip_ratio clip_ratio_low
    clip_ratio_high tau_pos tau_neg freeze_vision_tower clip_ratio_c loss_agg_mode loss_scale_factor
    entropy_coeff calculate_entropy calculate_sum_pi_squared use_kl_loss use_prefix_grouper
    use_torch_compile kl_loss_coef kl_loss_type ppo_epochs shuffle data_loader_seed use_fused_kernels
    grad_clip ulysses_sequence_parallel_size entropy_from_logits_with_chunking
    entropy_from_logits_chunk_size entropy_checkpointing pad_to_length use_remove_padding
actor_rollout_ref.actor.policy_loss: loss_mode clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio
    ppo_kl_coef dro_beta
actor_rollout_ref.actor.checkpoint: save_contents load_contents async_save strict
actor_rollout_ref.ref: rollout_n strategy use_torch_compile log_prob_micro_batch_size
    log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
    ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_from_logits_chunk_size
    entropy_checkpointing pad_to_length
actor_rollout_ref.ref.fsdp_config.wrap_policy: min_num_params
actor_rollout_ref.ref.fsdp_config: param_offload optimizer_offload offload_policy reshard_after_forward
    fsdp_size forward_prefetch model_dtype use_orig_params seed full_determinism
    ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_from_logits_chunk_size
    use_torch_compile entropy_checkpointing use_no_sync_for_gradient_accumulation pad_to_length
    pad_to_length_bucket forward_only strategy dtype
actor_rollout_ref.rollout: name mode nnodes n_gpus_per_node temperature top_k top_p full_determinism seed
    prompt_length response_length dtype gpu_memory_utilization ignore_eos enforce_eager
    cudagraph_capture_sizes free_cache_engine tensor_model_parallel_size data_parallel_size
    expert_parallel_size pipeline_model_parallel_size max_num_batched_tokens max_model_len max_num_seqs
    enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy load_format layered_summon
    log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz
    log_prob_max_token_len_per_gpu disable_log_stats do_sample n over_sample_rate multi_stage_wake_up
    router_config_path calculate_log_probs skip_tokenizer_init enable_rollout_routing_replay
    moe_load_balance_metrics_interval quantization quantization_config_file
actor_rollout_ref.rollout.val_kwargs: top_k top_p temperature n do_sample
actor_rollout_ref.rollout.multi_turn: enable max_assistant_turns tool_config_path function_tool_path
    max_user_turns max_parallel_calls max_tool_response_length tool_response_truncate_side
    use_inference_chat_template tokenization_sanity_check_mode format num_repeat_rollouts
actor_rollout_ref.rollout.checkpoint_engine: update_weights_bucket_megabytes
actor_rollout_ref.rollout.agent: num_workers default_agent_loop agent_loop_config_path
actor_rollout_ref.rollout.agent.custom_async_server: path name
actor_rollout_ref.model: path hf_config_path tokenizer_path use_shm trust_remote_code custom_chat_template
    external_lib enable_gradient_checkpointing enable_activation_offload use_remove_padding lora_rank
    lora_alpha target_modules exclude_modules lora_adapter_path use_liger use_fused_kernels
actor_rollout_ref.model.fused_kernel_options: impl_backend
actor_rollout_ref.model.tiled_mlp: enabled num_shards
actor_rollout_ref.model.lora: type merge rank alpha dropout target_modules exclude_modules dropout_position
    lora_A_init_method lora_B_init_method a2a_experimental dtype adapter_path freeze_vision_model
    freeze_vision_projection freeze_language_model
actor_rollout_ref: hybrid_engine nccl_timeout
data: tokenizer use_shm train_files val_files train_max_samples val_max_samples prompt_key reward_fn_key
    max_prompt_length max_response_length train_batch_size gen_batch_size val_batch_size tool_config_path
    function_tool_path return_raw_input_ids return_raw_chat return_full_prompt shuffle seed
    dataloader_num_workers image_patch_size validation_shuffle filter_overlong_prompts
    filter_overlong_prompts_workers truncation image_key video_key audio_key trust_remote_code
    return_multi_modal_inputs
data.custom_cls: path name
reward: num_workers
reward.custom_reward_function: path name
reward.reward_manager: source name
reward.reward_manager.module: path name
reward.reward_model: enable enable_resource_pool n_gpus_per_node nnodes model_path
reward.sandbox_fusion: url max_concurrent memory_limit_mb
algorithm.rollout_correction: rollout_is rollout_is_threshold rollout_rs rollout_rs_threshold bypass_mode
    loss_type rollout_is_batch_normalize
algorithm: gamma lam adv_estimator norm_adv_by_std_in_grpo use_kl_in_reward kl_penalty use_pf_ppo
algorithm.filter_groups: enable metric max_num_gen_batches max_inflight_gen_batches
algorithm.kl_ctrl: type kl_coef horizon target_kl
algorithm.pf_ppo: reweight_method weight_pow
trainer: balance_batch total_epochs total_training_steps project_name experiment_name logger
    log_val_generations rollout_data_dir validation_data_dir nnodes n_gpus_per_node save_freq
    esi_redundant_time resume_mode resume_from_path checkpoint_callback_class val_before_train val_only
    test_freq critic_warmup default_hdfs_dir del_local_ckpt_after_load default_local_dir
    max_actor_ckpt_to_keep max_critic_ckpt_to_keep ray_wait_register_center_timeout device use_v1
trainer.v1: trainer_mode
trainer.v1.colocate_async: num_warmup_batches
trainer.v1.separate_async: num_warmup_batches parameter_sync_step
trainer.v1.separate_async.hybrid_rollout: enable_switch switch_threshold_ratio adaptive_switch_threshold
    switch_threshold_step_up switch_threshold_step_down switch_threshold_release_steps
    switch_cost_window_size
trainer.v1.sampler: max_off_policy_threshold max_off_policy_strategy sync_refill_failed_groups
trainer.v1.sampler.custom_sampler: path name
"""

OPEN_PREFIXES = (
    "actor_rollout_ref.rollout.engine_kwargs.",
    "actor_rollout_ref.model.override_config.",
    "actor_rollout_ref.actor.optim.override_optimizer_config.",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.",
    "data.apply_chat_template_kwargs.",
)
"""Mappings that VeRL hands on as they are: any key below them may be written."""


def _read(text: str) -> Iterator[str]:
    prefix = ""
    for line in text.strip().splitlines():
        names = line
        if not line.startswith(" "):
            prefix, _, names = line.partition(":")
        yield from (f"{prefix}.{name}" for name in names.split())


VERL_KEYS: frozenset[str] = frozenset(_read(_TEXT))


def is_verl_key(key: str) -> bool:
    """Whether VeRL 0.9.1 has this key, or hands on a mapping that may hold it."""
    return key in VERL_KEYS or f"{key}." in OPEN_PREFIXES or key.startswith(OPEN_PREFIXES)
