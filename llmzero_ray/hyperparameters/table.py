"""The hyper-parameters this project knows, one row each: all that `Parameter` says of one.

Defaults are the practitioner's recipe of the LLMZero paper (Table 12) where it gives one, else VeRL's own.
Everything else reads these rows: a new hyper-parameter is a row here, and advice on its values for prompts in
prompts/hyperparameters.yaml. One that is hot is also swapped and read back by the engine
(engines/verl/workers.py, config_check.py). Not here: the code of couplings (couplings.py), keys without a row
(verl_keys.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmzero_ray.hyperparameters.couplings import (
    adaptive_kl_inert,
    adv_norm_inert,
    check_algorithm,
    check_batches,
    check_gpus,
    check_lengths,
    check_packing,
    check_task,
    clips_inert,
    follow_clip,
    follow_kl,
    follow_micro_batches,
    follow_mini_batch,
    kl_loss_inert,
    kl_reward_inert,
    max_tokens_inert,
    micro_batch_inert,
    reference_inert,
    warmup_ratio_inert,
)
from llmzero_ray.hyperparameters.space import Group, Parameter, Reach
from llmzero_ray.hyperparameters.verl_keys import (
    ADV_ESTIMATOR,
    ADV_NORM,
    ALGO_KL,
    ALGO_KL_TYPE,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RATIO,
    DYNAMIC_BSZ,
    ENTROPY_COEFF,
    EXCLUDE_MODULES,
    GPU_MEMORY,
    GRAD_CLIP,
    GRADIENT_CHECKPOINTING,
    KL_LOSS_COEF,
    LOG_PROB_MICRO,
    LORA_ALPHA,
    LORA_RANK,
    LR,
    LR_SCHEDULER,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    MAX_PROMPT,
    MAX_RESPONSE,
    MAX_TOKENS,
    MICRO_BATCH,
    MINI_BATCH,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    PPO_EPOCHS,
    REF_MICRO,
    ROLLOUT_N,
    TARGET_MODULES,
    TEMPERATURE,
    TENSOR_PARALLEL,
    TRAIN_BATCH,
    USE_KL_IN_REWARD,
    USE_KL_LOSS,
    WARMUP_RATIO,
    WARMUP_STEPS,
    WEIGHT_DECAY,
)


def _float(
    key: str, alias: str, low: float, high: float, default: float | None, doc: str, **more: Any
) -> Parameter:
    return Parameter(key=key, alias=alias, kind="float", low=low, high=high, default=default, doc=doc, **more)


def _int(
    key: str, alias: str, low: int, high: int, default: int | str | None, doc: str, **more: Any
) -> Parameter:
    return Parameter(key=key, alias=alias, kind="int", low=low, high=high, default=default, doc=doc, **more)


def _bool(key: str, alias: str, default: bool | None, doc: str, **more: Any) -> Parameter:
    return Parameter(key=key, alias=alias, kind="bool", default=default, doc=doc, **more)


def _choice(key: str, alias: str, choices: tuple[str, ...], doc: str, **more: Any) -> Parameter:
    return Parameter(
        key=key, alias=alias, kind="choice", choices=choices, default=choices[0], doc=doc, **more
    )


def _text(key: str, alias: str, default: str | None, doc: str, **more: Any) -> Parameter:
    return Parameter(key=key, alias=alias, kind="text", default=default, doc=doc, **more)


def _group(group: Group, *rows: Parameter) -> tuple[Parameter, ...]:
    return tuple(replace(row, group=group) for row in rows)


def _further(group: Group, *rows: Parameter) -> tuple[Parameter, ...]:
    """Rows without a short name, of keys that a phase need not have."""
    return tuple(replace(row, alias=row.key, default=None, group=group) for row in rows)


_ACTOR = "actor_rollout_ref.actor."
_OPTIM = "actor_rollout_ref.actor.optim."
_ROLLOUT = "actor_rollout_ref.rollout."
_VAL = "actor_rollout_ref.rollout.val_kwargs."
_MODEL = "actor_rollout_ref.model."
_POLICY = "actor_rollout_ref.actor.policy_loss."
_CORRECTION = "algorithm.rollout_correction."
_LOSS_KL = ("low_var_kl", "kl", "abs", "mse", "k1", "k2", "k3")
_AGGREGATES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
_MANY = 2**31 - 1

# fmt: off
PARAMETERS: tuple[Parameter, ...] = (
    *_group(
        "optimisation",
        _float(LR, "lr", 0.0, 0.1, 5e-5, "Learning rate; 0 trains nothing.",
               hot=True, also=("learning_rate",), scale="log", reach=Reach(down=30, up=5)),
        _float(WEIGHT_DECAY, "weight_decay", 0.0, 1.0, 0.01, "AdamW's decoupled decay.",
               hot=True, also=("wd",), scale="log", reach=Reach(low=0.0, high=0.2)),
        Parameter(key=_OPTIM + "betas", alias="betas", kind="betas", low=0.0, high=0.9999,
                  default=(0.9, 0.999), doc="AdamW's two moment decays.", hot=True),
        # actor.grad_clip exists too, but VeRL's FSDP engine reads only this one.
        _float(GRAD_CLIP, "grad_clip", 1e-4, 1e4, 1.0, "Largest gradient norm of an update.",
               hot=True, scale="log", reach=Reach(down=10, up=4)),
        _int(WARMUP_STEPS, "lr_warmup_steps", -1, _MANY, -1,
             "Steps over which the rate rises; -1 or 0: by ratio.", hot=True),
        _float(WARMUP_RATIO, "lr_warmup_ratio", 0.0, 1.0, 0.0,
               "Share of the phase over which the rate rises.", hot=True, inert=warmup_ratio_inert),
        _choice(LR_SCHEDULER, "lr_scheduler", ("constant", "cosine"),
                "Course of the rate in a phase.", hot=True),
        _bool(ADV_NORM, "adv_norm", False,
              "Divide a group's advantages by their standard deviation.", hot=True, also=("norm_adv",),
              inert=adv_norm_inert),
        _int(PPO_EPOCHS, "ppo_epochs", 1, 16, 1, "Passes over one step's rollouts.", hot=True),
        _choice(_ACTOR + "loss_agg_mode", "loss_agg_mode", _AGGREGATES, "How token losses become one.",
               hot=True),
        _float(ENTROPY_COEFF, "entropy_coeff", 0.0, 0.1, 0.0,
               "Entropy bonus; leave 0 with GRPO.", hot=True, scale="log"),
    ),
    *_group(
        "clipping",
        _float(CLIP_RATIO, "clip_ratio", 1e-4, 0.999, 0.2,
               "PPO clip range; as a change it sets clip_low and clip_high too.", hot=True,
               follow=(follow_clip,), inert=clips_inert),
        _float(CLIP_LOW, "clip_low", 1e-4, 0.999, 0.2, "PPO clip range below 1.",
               hot=True, reach=Reach(low=0.1, high=0.3), inert=clips_inert),
        _float(CLIP_HIGH, "clip_high", 1e-4, 10.0, 0.28, "PPO clip range above 1.",
               hot=True, reach=Reach(low=0.15, high=0.5), inert=clips_inert),
        _float(_ACTOR + "clip_ratio_c", "clip_c", 1.001, 100.0, 3.0,
               "Bound of dual clipping, for negative advantages.", hot=True, inert=clips_inert),
    ),
    *_group(
        "kl",
        _bool(USE_KL_LOSS, "use_kl_loss", True, "Add the KL to the base model to the loss.",
              hot=True, follow=(follow_kl,)),
        _float(KL_LOSS_COEF, "kl_loss_coef", 0.0, 10.0, 0.001, "Weight of that KL.",
               hot=True, also=("kl", "kl_coef"), scale="log", reach=Reach(high=0.05, down=20, up=50),
               follow=(follow_kl,), inert=kl_loss_inert),
        _choice(_ACTOR + "kl_loss_type", "kl_loss_type", _LOSS_KL, "Estimator of that KL.", hot=True,
                inert=kl_loss_inert),
        _bool(USE_KL_IN_REWARD, "use_kl_in_reward", False, "Subtract a KL from the reward.",
              hot=True, follow=(follow_kl,)),
        _float(ALGO_KL, "algo_kl", 0.0, 10.0, 0.001, "Weight of the KL in the reward.",
               hot=True, scale="log", follow=(follow_kl,), inert=kl_reward_inert),
        _choice(ALGO_KL_TYPE, "algo_kl_type", ("fixed", "adaptive"),
                "Whether that weight adapts.", inert=kl_reward_inert),
        _float("algorithm.kl_ctrl.target_kl", "algo_kl_target", 1e-6, 100.0, 0.1,
               "What an adaptive weight aims at.", scale="log", inert=adaptive_kl_inert),
        _int("algorithm.kl_ctrl.horizon", "algo_kl_horizon", 1, _MANY, 10_000,
             "Pace of an adaptive weight.", inert=adaptive_kl_inert),
        _choice("algorithm.kl_penalty", "algo_kl_estimator", ("kl", "abs", "mse", "low_var_kl", "full"),
                "Estimator of the KL in the reward.", inert=kl_reward_inert),
    ),
    *_group(
        "rollout",
        _float(TEMPERATURE, "temperature", 0.05, 2.0, 1.0, "Sampling temperature of rollouts.",
               hot=True, also=("T", "temp"), reach=Reach(low=0.6, high=1.3)),
        _float(_ROLLOUT + "top_p", "top_p", 0.01, 1.0, 1.0, "Nucleus of the rollouts' sampling.", hot=True),
        _int(_ROLLOUT + "top_k", "top_k", -1, _MANY, -1, "Tokens sampled from; -1: all.", hot=True),
    ),
    *_group(
        "capacity",
        _int(ROLLOUT_N, "n", 2, 1024, 8, "Rollouts of one prompt: the group that is compared.",
             hot=True, also=("rollout_n", "rollouts"), reach=Reach(low=2.0, high=8.0, up=2),
             check=(check_batches,)),
        _int(MAX_RESPONSE, "max_response_length", 1, 131_072, 6144, "Cap of a rollout, tokens.",
             hot=True, also=("resp", "cap"), check=(check_lengths,)),
        _int(MAX_PROMPT, "max_prompt_length", 1, 131_072, 1024, "Longest prompt, tokens.",
             setting="engine.max_prompt_length", check=(check_lengths,),
             why_fixed="it decides which prompts are seen: fixed for the whole search"),
    ),
    *_group(
        "batch",
        # Reach: with fewer prompts, the variance between prompts dominates a step.
        _int(TRAIN_BATCH, "batch_size", 1, 65_536, 128, "Prompts of one step.",
             hot=True, also=("batch",), reach=Reach(down=4 / 3, up=4),
             follow=(follow_mini_batch,), check=(check_batches, check_task)),
        _int(MINI_BATCH, "mini_batch_size", 1, 65_536, 128, "Prompts of one update.",
             hot=True, also=("mini_batch",), follow=(follow_mini_batch,), check=(check_batches,)),
    ),
    *_group(
        "memory",
        _int(MICRO_BATCH, "micro_batch_size", 1, 65_536, "auto",
             "Sequences of one backward pass per GPU.", auto=True, hot=True,
             follow=(follow_micro_batches,), check=(check_batches,), inert=micro_batch_inert),
        _int(LOG_PROB_MICRO, "log_prob_micro_batch_size", 1, 65_536, "auto",
             "Sequences of one forward pass per GPU, policy.", auto=True, hot=True,
             follow=(follow_micro_batches,), check=(check_batches,), inert=micro_batch_inert),
        _int(REF_MICRO, "ref_micro_batch_size", 1, 65_536,
             "auto", "Sequences of one forward pass per GPU, reference.", auto=True, hot=True,
             follow=(follow_micro_batches,), check=(check_batches,), inert=reference_inert),
        _bool(DYNAMIC_BSZ, "dynamic_bsz", False, "Pack micro batches by tokens.", check=(check_packing,)),
        _int(MAX_TOKENS, "max_token_len_per_gpu", 1, _MANY, 16_384,
             "Tokens of one packed micro batch.", inert=max_tokens_inert),
        _int(MAX_NUM_SEQS, "max_num_seqs", 1, 65_536, 256,
             "Sequences the server generates at once.", setting="engine.max_num_seqs"),
        _int(_ROLLOUT + "max_num_batched_tokens", "max_num_batched_tokens", 1, _MANY, None,
             "Tokens of one server step.", nullable=True),
        _float(GPU_MEMORY, "gpu_memory_utilization", 0.01, 0.98, 0.5,
               "Share of a GPU the server takes.", setting="engine.gpu_memory_utilization"),
        _int(TENSOR_PARALLEL, "tensor_model_parallel_size", 1, 1024, 1,
             "GPUs one server spreads over: the fewest that hold the model.", also=("tp",),
             setting="engine.tensor_model_parallel_size", check=(check_gpus,)),
        _bool(GRADIENT_CHECKPOINTING, "gradient_checkpointing", None,
              "Recompute activations instead of keeping them.", nullable=True),
        _bool(PARAM_OFFLOAD, "param_offload", None,
              "Keep parameters in host memory.", nullable=True),
        _bool(OPTIMIZER_OFFLOAD, "optimizer_offload", None,
              "Keep the optimizer's state in host memory.", nullable=True),
    ),
    *_group(
        "adapter",
        _int(LORA_RANK, "lora_rank", 1, 1024, 64, "Rank of the adapter.", also=("rank",),
             setting="model.lora_rank", kept_at_resume=True),
        _int(LORA_ALPHA, "lora_alpha", 1, 4096, 64, "Scale of the adapter: alpha / rank.",
             also=("alpha",), setting="model.lora_alpha", kept_at_resume=True),
        _text(TARGET_MODULES, "target_modules", "all-linear", "Layers that get an adapter.",
              setting="model.target_modules", kept_at_resume=True),
        _text(EXCLUDE_MODULES, "exclude_modules", None, "Layers that get none.", nullable=True,
              kept_at_resume=True),
    ),
    *_group(
        "duration",
        _int("trainer.total_epochs", "total_epochs", 1, _MANY, 1, "Passes over the data, along a path.",
             also=("epochs",)),
        _int("trainer.total_training_steps", "total_training_steps", 1, _MANY, None,
             "Steps of a run; wins over epochs.", nullable=True),
        _int("trainer.test_freq", "test_freq", -1, _MANY, -1, "Steps between validations."),
        _int("trainer.save_freq", "save_freq", -1, _MANY, -1, "Steps between checkpoints."),
        _bool("trainer.val_before_train", "val_before_train", True, "Validate before the first step."),
    ),
    *_group(
        "fixed",
        _choice(ADV_ESTIMATOR, "adv_estimator", ("grpo", "rloo", "reinforce_plus_plus", "gae"),
                "How advantages are estimated.", hot=True, by_permission=True, check=(check_algorithm,)),
        _int(MAX_MODEL_LEN, "max_model_len", 1, _MANY, None,
             "Context length of the server, prompt + response.", nullable=True, check=(check_lengths,)),
        _float(_VAL + "temperature", "val_temperature", 0.0, 2.0, 0.0, "Temperature of validation."),
        _float(_VAL + "top_p", "val_top_p", 0.01, 1.0, 1.0, "Nucleus of validation."),
        _int(_VAL + "top_k", "val_top_k", -1, _MANY, -1, "Tokens validation samples from."),
        _int(_VAL + "n", "val_n", 1, 1024, 1, "Answers per validation item."),
        _bool(_VAL + "do_sample", "val_do_sample", False, "Whether validation samples at all."),
    ),
)
"""Every hyper-parameter of the paper's tables and App. F, and the rest that a phase's configuration is made
of."""

PROPOSABLE: tuple[Parameter, ...] = (
    *_further(
        "optimisation",
        _float(_OPTIM + "min_lr_ratio", "", 0.0, 1.0, None, "Share of lr where a cosine ends.", hot=True),
        _float(_OPTIM + "num_cycles", "", 0.1, 10.0, None, "Waves of a cosine."),
        _int(_ACTOR + "loss_scale_factor", "", 1, _MANY, None,
             "Constant that seq-mean-token-sum-norm divides by.", nullable=True),
    ),
    *_further(
        "clipping",
        _choice(_POLICY + "loss_mode", "",
                ("vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "cispo", "dppo_tv",
                 "dppo_kl"),
                "The policy's loss."),
        _float(_POLICY + "clip_cov_ratio", "", 0.0, 1.0, None, "Share of tokens that clip_cov clips."),
        _float(_POLICY + "clip_cov_lb", "", 0.0, 100.0, None, "Lower bound of clip_cov."),
        _float(_POLICY + "clip_cov_ub", "", 0.0, 100.0, None, "Upper bound of clip_cov."),
        _float(_POLICY + "kl_cov_ratio", "", 0.0, 1.0, None, "Share of tokens that kl_cov penalises."),
        _float(_POLICY + "ppo_kl_coef", "", 0.0, 10.0, None, "Weight of that penalty."),
        _float(_ACTOR + "tau_pos", "", 0.01, 100.0, None, "Temperature of sapo for positive advantages."),
        _float(_ACTOR + "tau_neg", "", 0.01, 100.0, None, "Temperature of sapo for negative advantages."),
    ),
    *_further(
        "rollout",
        _choice(_CORRECTION + "rollout_is", "", ("token", "sequence"), "Importance weights of rollouts.",
                nullable=True),
        _float(_CORRECTION + "rollout_is_threshold", "", 1.0, 100.0, None, "Upper bound of these weights."),
        _bool(_CORRECTION + "rollout_is_batch_normalize", "", None, "Whether their mean is made 1."),
    ),
    *_further(
        "memory",
        _bool(_ACTOR + "fsdp_config.reshard_after_forward", "", None,
              "Free gathered parameters after a layer."),
        _bool(_ACTOR + "fsdp_config.forward_prefetch", "", None, "Gather the next layer early."),
        _bool(_MODEL + "enable_activation_offload", "", None, "Keep activations in host memory."),
        _bool(_ACTOR + "entropy_from_logits_with_chunking", "", None, "Compute the entropy in chunks."),
        _bool(_ACTOR + "entropy_checkpointing", "", None, "Recompute the entropy instead of keeping it."),
        _int(_ROLLOUT + "log_prob_max_token_len_per_gpu", "", 1, _MANY, None,
             "Tokens of one packed forward batch."),
        _bool(_ROLLOUT + "enable_chunked_prefill", "", None, "Let the server read long prompts in parts."),
        _bool(_ROLLOUT + "enable_prefix_caching", "", None, "Let the server keep what prompts share."),
    ),
)
# fmt: on
"""Keys beyond the table that proposals may set, each with its bounds.

Left out, and so refused of an agent: what starts processes or threads, what changes the model's parallel
layout, number types or seeds, what validation or the read-back of a phase depends on, and what VeRL's GRPO
trainer never reads. A user may set those in `root.overrides`, or allow them under `agents.allow`.
"""
