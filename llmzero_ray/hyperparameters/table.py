"""The hyper-parameters this project knows: VeRL 0.9.1's key, short name, bounds, default, group, and hot or
cold.

Defaults are the practitioner's recipe of the LLMZero paper (Table 12) where it gives one, else VeRL's own.
`hot` means that a live engine can change the value between two phases and reads it back from where it acts;
the rest is cold. Not here: what values mean together (couplings.py), who may touch what (access.py), and
advice on values (prompts/hyperparameters.yaml).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmzero_ray.hyperparameters.space import Group, Parameter


def _float(key: str, alias: str, low: float, high: float, default: float, doc: str, **more: Any) -> Parameter:
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


_ACTOR = "actor_rollout_ref.actor."
_OPTIM = "actor_rollout_ref.actor.optim."
_ROLLOUT = "actor_rollout_ref.rollout."
_VAL = "actor_rollout_ref.rollout.val_kwargs."
_MODEL = "actor_rollout_ref.model."
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
        _float(_OPTIM + "lr", "lr", 0.0, 0.1, 5e-5, "Learning rate; 0 trains nothing.",
               hot=True, also=("learning_rate",), scale="log"),
        _float(_OPTIM + "weight_decay", "weight_decay", 0.0, 1.0, 0.01, "AdamW's decoupled decay.",
               hot=True, also=("wd",), scale="log"),
        Parameter(key=_OPTIM + "betas", alias="betas", kind="betas", low=0.0, high=0.9999,
                  default=(0.9, 0.999), doc="AdamW's two moment decays.", hot=True),
        # actor.grad_clip exists too, but VeRL's FSDP engine reads only this one.
        _float(_OPTIM + "clip_grad", "grad_clip", 1e-4, 1e4, 1.0, "Largest gradient norm of an update.",
               hot=True, scale="log"),
        _int(_OPTIM + "lr_warmup_steps", "lr_warmup_steps", -1, _MANY, -1,
             "Steps over which the rate rises; -1: by ratio.", hot=True),
        _float(_OPTIM + "lr_warmup_steps_ratio", "lr_warmup_ratio", 0.0, 1.0, 0.0,
               "Share of the phase over which the rate rises.", hot=True),
        _choice(_OPTIM + "lr_scheduler_type", "lr_scheduler", ("constant", "cosine"),
                "Course of the rate in a phase.", hot=True),
        _bool("algorithm.norm_adv_by_std_in_grpo", "adv_norm", False,
              "Divide a group's advantages by their standard deviation.", hot=True, also=("norm_adv",)),
        _int(_ACTOR + "ppo_epochs", "ppo_epochs", 1, 16, 1, "Passes over one step's rollouts.", hot=True),
        _choice(_ACTOR + "loss_agg_mode", "loss_agg_mode", _AGGREGATES, "How token losses become one.",
               hot=True),
        _float(_ACTOR + "entropy_coeff", "entropy_coeff", 0.0, 0.1, 0.0,
               "Entropy bonus; leave 0 with GRPO.", hot=True, scale="log"),
    ),
    *_group(
        "clipping",
        _float(_ACTOR + "clip_ratio", "clip_ratio", 1e-4, 0.999, 0.2,
               "PPO clip range; as a change it sets clip_low and clip_high too.", hot=True),
        _float(_ACTOR + "clip_ratio_low", "clip_low", 1e-4, 0.999, 0.2, "PPO clip range below 1.",
               hot=True),
        _float(_ACTOR + "clip_ratio_high", "clip_high", 1e-4, 10.0, 0.28, "PPO clip range above 1.",
               hot=True),
        _float(_ACTOR + "clip_ratio_c", "clip_c", 1.001, 100.0, 3.0,
               "Bound of dual clipping, for negative advantages.", hot=True),
    ),
    *_group(
        "kl",
        _bool(_ACTOR + "use_kl_loss", "use_kl_loss", True, "Add the KL to the base model to the loss.",
               hot=True),
        _float(_ACTOR + "kl_loss_coef", "kl_loss_coef", 0.0, 10.0, 0.001, "Weight of that KL.",
               hot=True, also=("kl", "kl_coef"), scale="log"),
        _choice(_ACTOR + "kl_loss_type", "kl_loss_type", _LOSS_KL, "Estimator of that KL.", hot=True),
        _bool("algorithm.use_kl_in_reward", "use_kl_in_reward", False, "Subtract a KL from the reward.",
               hot=True),
        _float("algorithm.kl_ctrl.kl_coef", "algo_kl", 0.0, 10.0, 0.001, "Weight of the KL in the reward.",
               hot=True, scale="log"),
        _choice("algorithm.kl_ctrl.type", "algo_kl_type", ("fixed", "adaptive"),
                "Whether that weight adapts."),
        _float("algorithm.kl_ctrl.target_kl", "algo_kl_target", 1e-6, 100.0, 0.1,
               "What an adaptive weight aims at.", scale="log"),
        _int("algorithm.kl_ctrl.horizon", "algo_kl_horizon", 1, _MANY, 10_000,
             "Pace of an adaptive weight."),
        _choice("algorithm.kl_penalty", "algo_kl_estimator", ("kl", "abs", "mse", "low_var_kl", "full"),
                "Estimator of the KL in the reward."),
    ),
    *_group(
        "rollout",
        _float(_ROLLOUT + "temperature", "temperature", 0.05, 2.0, 1.0, "Sampling temperature of rollouts.",
               hot=True, also=("T", "temp")),
        _float(_ROLLOUT + "top_p", "top_p", 0.01, 1.0, 1.0, "Nucleus of the rollouts' sampling.", hot=True),
        _int(_ROLLOUT + "top_k", "top_k", -1, _MANY, -1, "Tokens sampled from; -1: all.", hot=True),
    ),
    *_group(
        "capacity",
        _int(_ROLLOUT + "n", "n", 2, 1024, 8, "Rollouts of one prompt: the group that is compared.",
             hot=True, also=("rollout_n", "rollouts")),
        _int("data.max_response_length", "max_response_length", 1, 131_072, 6144, "Cap of a rollout, tokens.",
             hot=True, also=("resp", "cap")),
        _int("data.max_prompt_length", "max_prompt_length", 1, 131_072, 1024, "Longest prompt, tokens."),
    ),
    *_group(
        "batch",
        _int("data.train_batch_size", "batch_size", 1, 65_536, 128, "Prompts of one step.",
             hot=True, also=("batch",)),
        _int(_ACTOR + "ppo_mini_batch_size", "mini_batch_size", 1, 65_536, 128, "Prompts of one update.",
             hot=True, also=("mini_batch",)),
    ),
    *_group(
        "memory",
        _int(_ACTOR + "ppo_micro_batch_size_per_gpu", "micro_batch_size", 1, 65_536, "auto",
             "Sequences of one backward pass per GPU.", auto=True, hot=True),
        _int(_ROLLOUT + "log_prob_micro_batch_size_per_gpu", "log_prob_micro_batch_size", 1, 65_536, "auto",
             "Sequences of one forward pass per GPU, policy.", auto=True, hot=True),
        _int("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", "ref_micro_batch_size", 1, 65_536,
             "auto", "Sequences of one forward pass per GPU, reference.", auto=True, hot=True),
        _bool(_ACTOR + "use_dynamic_bsz", "dynamic_bsz", False, "Pack micro batches by tokens."),
        _int(_ACTOR + "ppo_max_token_len_per_gpu", "max_token_len_per_gpu", 1, _MANY, 16_384,
             "Tokens of one packed micro batch."),
        _int(_ROLLOUT + "max_num_seqs", "max_num_seqs", 1, 65_536, 256,
             "Sequences the server generates at once."),
        _int(_ROLLOUT + "max_num_batched_tokens", "max_num_batched_tokens", 1, _MANY, None,
             "Tokens of one server step.", nullable=True),
        _float(_ROLLOUT + "gpu_memory_utilization", "gpu_memory_utilization", 0.01, 0.98, 0.5,
               "Share of a GPU the server takes."),
        _int(_ROLLOUT + "tensor_model_parallel_size", "tensor_model_parallel_size", 1, 1024, 1,
             "GPUs one server spreads over: the fewest that hold the model.", also=("tp",)),
        _bool(_MODEL + "enable_gradient_checkpointing", "gradient_checkpointing", None,
              "Recompute activations instead of keeping them.", nullable=True),
        _bool(_ACTOR + "fsdp_config.param_offload", "param_offload", None,
              "Keep parameters in host memory.", nullable=True),
        _bool(_ACTOR + "fsdp_config.optimizer_offload", "optimizer_offload", None,
              "Keep the optimizer's state in host memory.", nullable=True),
    ),
    *_group(
        "adapter",
        _int(_MODEL + "lora_rank", "lora_rank", 1, 1024, 64, "Rank of the adapter.", also=("rank",)),
        _int(_MODEL + "lora_alpha", "lora_alpha", 1, 4096, 64, "Scale of the adapter: alpha / rank.",
             also=("alpha",)),
        _text(_MODEL + "target_modules", "target_modules", "all-linear", "Layers that get an adapter."),
        _text(_MODEL + "exclude_modules", "exclude_modules", None, "Layers that get none.", nullable=True),
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
        # With a critic (gae) is refused by couplings.py, in words.
        _choice("algorithm.adv_estimator", "adv_estimator", ("grpo", "rloo", "reinforce_plus_plus", "gae"),
                "How advantages are estimated.", hot=True, by_permission=True),
        _int(_ROLLOUT + "max_model_len", "max_model_len", 1, _MANY, None,
             "Prompt + response the server has room for.", nullable=True),
        _float(_VAL + "temperature", "val_temperature", 0.0, 2.0, 0.0, "Temperature of validation."),
        _float(_VAL + "top_p", "val_top_p", 0.01, 1.0, 1.0, "Nucleus of validation."),
        _int(_VAL + "top_k", "val_top_k", -1, _MANY, -1, "Tokens validation samples from."),
        _int(_VAL + "n", "val_n", 1, 1024, 1, "Answers per validation item."),
        _bool(_VAL + "do_sample", "val_do_sample", False, "Whether validation samples at all."),
    ),
)
# fmt: on
"""Every hyper-parameter of the paper's tables and App. F, and the rest that a phase's configuration is made
of."""

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

CAPACITY = (MAX_RESPONSE, ROLLOUT_N)
"""Keys that only ever grow along a path, unless memory ran out (paper, section 4.3.2)."""
ADAPTER = tuple(row.key for row in PARAMETERS if row.group == "adapter")
"""Keys that a phase which resumes must share with the phase it resumes from."""
