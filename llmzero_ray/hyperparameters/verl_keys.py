"""Configuration keys of VeRL 0.9.1: those that code names, all that a search may name, and who owns which.

All are written down so that a misspelt key is refused on a machine without VeRL, before anything starts. A
test compares the list with the composed configuration of the installed VeRL. Left out: critic, distillation,
profiler and other blocks that this project never composes. Not here: values (table.py).
"""

from __future__ import annotations

from collections.abc import Iterator

VERL_VERSION = "0.9.1"

# --- keys that code names -----------------------------------------------------------------------------------

LR = "actor_rollout_ref.actor.optim.lr"
WEIGHT_DECAY = "actor_rollout_ref.actor.optim.weight_decay"
GRAD_CLIP = "actor_rollout_ref.actor.optim.clip_grad"
WARMUP_STEPS = "actor_rollout_ref.actor.optim.lr_warmup_steps"
WARMUP_RATIO = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"
LR_SCHEDULER = "actor_rollout_ref.actor.optim.lr_scheduler_type"
ADV_ESTIMATOR = "algorithm.adv_estimator"
ADV_NORM = "algorithm.norm_adv_by_std_in_grpo"
PPO_EPOCHS = "actor_rollout_ref.actor.ppo_epochs"
ENTROPY_COEFF = "actor_rollout_ref.actor.entropy_coeff"
CLIP_RATIO = "actor_rollout_ref.actor.clip_ratio"
CLIP_LOW = "actor_rollout_ref.actor.clip_ratio_low"
CLIP_HIGH = "actor_rollout_ref.actor.clip_ratio_high"
USE_KL_LOSS = "actor_rollout_ref.actor.use_kl_loss"
KL_LOSS_COEF = "actor_rollout_ref.actor.kl_loss_coef"
USE_KL_IN_REWARD = "algorithm.use_kl_in_reward"
ALGO_KL = "algorithm.kl_ctrl.kl_coef"
ALGO_KL_TYPE = "algorithm.kl_ctrl.type"
TEMPERATURE = "actor_rollout_ref.rollout.temperature"
ROLLOUT_N = "actor_rollout_ref.rollout.n"
MAX_RESPONSE = "data.max_response_length"
MAX_PROMPT = "data.max_prompt_length"
TRAIN_BATCH = "data.train_batch_size"
MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"
MICRO_BATCH = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
LOG_PROB_MICRO = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
REF_MICRO = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
DYNAMIC_BSZ = "actor_rollout_ref.actor.use_dynamic_bsz"
LOG_PROB_DYNAMIC_BSZ = "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"
MAX_TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
MAX_NUM_SEQS = "actor_rollout_ref.rollout.max_num_seqs"
GPU_MEMORY = "actor_rollout_ref.rollout.gpu_memory_utilization"
MAX_MODEL_LEN = "actor_rollout_ref.rollout.max_model_len"
TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
GRADIENT_CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
PARAM_OFFLOAD = "actor_rollout_ref.actor.fsdp_config.param_offload"
OPTIMIZER_OFFLOAD = "actor_rollout_ref.actor.fsdp_config.optimizer_offload"
LORA_RANK = "actor_rollout_ref.model.lora_rank"
LORA_ALPHA = "actor_rollout_ref.model.lora_alpha"
TARGET_MODULES = "actor_rollout_ref.model.target_modules"
EXCLUDE_MODULES = "actor_rollout_ref.model.exclude_modules"

CAPACITY = (MAX_RESPONSE, ROLLOUT_N)
"""Keys that only ever grow along a path, unless memory ran out (paper, section 4.3.2)."""

# --- all keys -----------------------------------------------------------------------------------------------

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
"""Mappings that VeRL passes on unchanged. Any key below them is allowed."""


def _read(text: str) -> Iterator[str]:
    prefix = ""
    for line in text.strip().splitlines():
        names = line
        if not line.startswith(" "):
            prefix, _, names = line.partition(":")
        yield from (f"{prefix}.{name}" for name in names.split())


VERL_KEYS: frozenset[str] = frozenset(_read(_TEXT))


def is_verl_key(key: str) -> bool:
    """Whether VeRL 0.9.1 has this key, or passes on a mapping that may contain it."""
    return key in VERL_KEYS or f"{key}." in OPEN_PREFIXES or key.startswith(OPEN_PREFIXES)


# --- who may set them ---------------------------------------------------------------------------------------

OWNED_BY: tuple[tuple[str, str], ...] = (
    (r"trainer\.total_(epochs|training_steps)", "phases are counted in steps: set phase.n_steps"),
    (r"trainer\.(test|save)_freq", "set phase.test_freq and phase.save_freq"),
    (r"trainer\..*", "the engine sets the trainer up"),
    (r"actor_rollout_ref\.rollout\.val_kwargs\..*", "validation is measured one way in the whole search"),
    (
        r"actor_rollout_ref\.rollout\.max_model_len",
        "it is engine.max_prompt_length + engine.max_response_length",
    ),
    (r"actor_rollout_ref\.rollout\.(prompt|response)_length", "set max_prompt_length or max_response_length"),
    (
        r"actor_rollout_ref\.rollout\.(name|mode|seed|full_determinism|dtype|load_format|free_cache_engine"
        r"|quantization.*|agent\..*|multi_turn\..*|engine_kwargs.*)",
        "the engine starts the rollout server; fixed extras go to engine.overrides",
    ),
    (
        r"actor_rollout_ref\.rollout\.calculate_log_probs",
        "the engine checks rollouts against the policy with it",
    ),
    (
        r"actor_rollout_ref\.model\.(path|lora_adapter_path|tokenizer_path|hf_config_path)",
        "set model.path; adapters come from checkpoints",
    ),
    (
        r"actor_rollout_ref\.model\.lora(\.merge)?",
        "what vLLM is given is fixed for the search: set engine.serve_merged",
    ),
    (r".*\.(rollout_n|nnodes|n_gpus_per_node)", "it follows from n and from slots"),
    (r"actor_rollout_ref\.actor\.optim\.total_training_steps", "it follows from the phase's n_steps"),
    (r"actor_rollout_ref\.(actor|ref)\.strategy", "only fsdp2 works on every platform"),
    (r"actor_rollout_ref\.actor\.checkpoint\..*", "checkpoints are adapters only"),
    (
        r"actor_rollout_ref\.actor\.grad_clip",
        "VeRL's FSDP engine does not read it: set grad_clip (optim.clip_grad)",
    ),
    (
        r"actor_rollout_ref\..*\.(log_prob|ppo)_micro_batch_size",
        "deprecated in VeRL: set the one that ends in _per_gpu",
    ),
    (r"data\.(train|val)_files", "set task.dir"),
    (r"data\.(seed|shuffle|validation_shuffle|.*max_samples|.*_key)", "the engine and the task set it"),
    (r"reward\..*", "the task's manifest names the reward"),
    (r"actor_rollout_ref\.rollout\.ignore_eos", "an answer ends where the model ends it"),
    (r"data\.filter_overlong_prompts.*", "which prompts are seen is fixed for the whole search"),
    (r"data\.apply_chat_template_kwargs.*", "it is part of every prompt: set it in engine.overrides"),
    (r"data\.return_raw_.*|data\.return_full_prompt", "the engine decides what a row carries"),
    (r"actor_rollout_ref\.hybrid_engine", "trainer and rollout server share the slot's hardware"),
)
"""(pattern of keys, why the user may not set them and what to set instead)."""

NEVER = (
    r"(^|[._])(path|paths|dir|dirs|file|files|url|logger|backend)$|(^|\.)(custom|external)_|_class$|_target_"
    r"|trust_remote_code|^reward|(^|\.)(tool|function)_|chat_template|tokenizer|engine_kwargs|optimizer_impl"
    r"|override_config|override_optimizer_config|^ray_kwargs|^transfer_queue"
)
"""Keys that run code, or name a path, a reward or a log."""
