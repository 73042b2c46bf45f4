"""Access rules for VeRL's keys: what users may set at the root, what proposers may change, what the engine
owns.

Data alone; `Space` reads it. Not here: whether a value is sensible (table.py, couplings.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from llmzero_ray.hyperparameters.table import (
    GPU_MEMORY,
    LORA_ALPHA,
    LORA_RANK,
    MAX_NUM_SEQS,
    MAX_PROMPT,
    TARGET_MODULES,
    TENSOR_PARALLEL,
)

_PER_BLOCK = {
    LORA_RANK: "model.lora_rank",
    LORA_ALPHA: "model.lora_alpha",
    TARGET_MODULES: "model.target_modules",
    MAX_PROMPT: "engine.max_prompt_length",
    MAX_NUM_SEQS: "engine.max_num_seqs",
    GPU_MEMORY: "engine.gpu_memory_utilization",
    TENSOR_PARALLEL: "engine.tensor_model_parallel_size",
}
FROM_CONFIG: Mapping[str, str] = {field: key for key, field in _PER_BLOCK.items()}
"""Field of search.yaml -> the key whose root value it gives."""

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

NEVER = (
    r"(^|[._])(path|paths|dir|dirs|file|files|url|logger|backend)$|(^|\.)(custom|external)_|_class$|_target_"
    r"|trust_remote_code|^reward|(^|\.)(tool|function)_|chat_template|tokenizer|engine_kwargs|optimizer_impl"
    r"|override_config|override_optimizer_config|^ray_kwargs|^transfer_queue"
)
"""What runs code, or names a path, a reward or a log."""

FIXED: Mapping[str, str] = {MAX_PROMPT: "it decides which prompts are seen: fixed for the whole search"}
