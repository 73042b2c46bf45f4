"""Keys of VeRL beyond the hyper-parameter table that proposals may set, each with its bounds.

Left out, and so refused of an agent: what starts processes or threads, what changes the model's parallel
layout, number types or seeds, what validation or the read-back of a phase depends on, and what VeRL's GRPO
trainer never reads. A user may set those in `root.overrides`, or allow them under `agents.allow`. Not here:
the table (table.py), what no proposal may ever set (access.py).
"""

from __future__ import annotations

from llmzero_ray.hyperparameters.space import Group, Parameter

_ACTOR = "actor_rollout_ref.actor."
_REF = "actor_rollout_ref.ref."
_ROLLOUT = "actor_rollout_ref.rollout."
_POLICY = _ACTOR + "policy_loss."
_CORRECTION = "algorithm.rollout_correction."
_MANY = 2**31 - 1


def _float(key: str, low: float, high: float, doc: str, group: Group, *, nullable: bool = False) -> Parameter:
    return Parameter(
        key=key, alias=key, kind="float", low=low, high=high, default=None, doc=doc, group=group,
        nullable=nullable,
    )  # fmt: skip


def _int(key: str, low: int, high: int, doc: str, group: Group, *, nullable: bool = False) -> Parameter:
    return Parameter(
        key=key, alias=key, kind="int", low=low, high=high, default=None, doc=doc, group=group,
        nullable=nullable,
    )  # fmt: skip


def _bool(key: str, doc: str, group: Group) -> Parameter:
    return Parameter(key=key, alias=key, kind="bool", default=None, doc=doc, group=group)


def _choice(
    key: str, choices: tuple[str, ...], doc: str, group: Group, *, nullable: bool = False
) -> Parameter:
    return Parameter(
        key=key, alias=key, kind="choice", choices=choices, default=None, doc=doc, group=group,
        nullable=nullable,
    )  # fmt: skip


# fmt: off
PROPOSABLE: tuple[Parameter, ...] = (
    _float(_ACTOR + "optim.min_lr_ratio", 0.0, 1.0, "Share of the rate where a cosine ends.",
           "optimisation"),
    _float(_ACTOR + "optim.num_cycles", 0.1, 10.0, "Waves of a cosine.", "optimisation"),
    _choice(_POLICY + "loss_mode",
            ("vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "cispo", "dppo_tv",
             "dppo_kl"),
            "The policy's loss.", "clipping"),
    _float(_POLICY + "clip_cov_ratio", 0.0, 1.0, "Share of tokens that clip_cov clips.", "clipping"),
    _float(_POLICY + "clip_cov_lb", 0.0, 100.0, "Lower bound of clip_cov.", "clipping"),
    _float(_POLICY + "clip_cov_ub", 0.0, 100.0, "Upper bound of clip_cov.", "clipping"),
    _float(_POLICY + "kl_cov_ratio", 0.0, 1.0, "Share of tokens that kl_cov penalises.", "clipping"),
    _float(_POLICY + "ppo_kl_coef", 0.0, 10.0, "Weight of that penalty.", "clipping"),
    _float(_ACTOR + "tau_pos", 0.01, 100.0, "Temperature of sapo for positive advantages.", "clipping"),
    _float(_ACTOR + "tau_neg", 0.01, 100.0, "Temperature of sapo for negative advantages.", "clipping"),
    _int(_ACTOR + "loss_scale_factor", 1, _MANY, "Constant that seq-mean-token-sum-norm divides by.",
         "optimisation", nullable=True),
    _choice(_CORRECTION + "rollout_is", ("token", "sequence"), "Importance weights of rollouts.", "rollout",
            nullable=True),
    _float(_CORRECTION + "rollout_is_threshold", 1.0, 100.0, "Upper bound of these weights.", "rollout"),
    _bool(_CORRECTION + "rollout_is_batch_normalize", "Whether their mean is made 1.", "rollout"),
    _bool(_ACTOR + "fsdp_config.reshard_after_forward", "Free gathered parameters after a layer.", "memory"),
    _bool(_ACTOR + "fsdp_config.forward_prefetch", "Gather the next layer early.", "memory"),
    _bool("actor_rollout_ref.model.enable_activation_offload", "Keep activations in host memory.", "memory"),
    _bool(_ACTOR + "entropy_from_logits_with_chunking", "Compute the entropy in chunks.", "memory"),
    _bool(_ACTOR + "entropy_checkpointing", "Recompute the entropy instead of keeping it.", "memory"),
    _bool(_REF + "entropy_from_logits_with_chunking", "The same for the reference.", "memory"),
    _bool(_REF + "entropy_checkpointing", "The same for the reference.", "memory"),
    _bool(_REF + "fsdp_config.param_offload", "Keep the reference's parameters in host memory.", "memory"),
    _bool(_REF + "log_prob_use_dynamic_bsz", "Pack the reference's micro batches by tokens.", "memory"),
    _int(_REF + "log_prob_max_token_len_per_gpu", 1, _MANY, "Tokens of one of them.", "memory"),
    _bool(_ROLLOUT + "log_prob_use_dynamic_bsz", "Pack the policy's forward batches by tokens.",
          "memory"),
    _int(_ROLLOUT + "log_prob_max_token_len_per_gpu", 1, _MANY, "Tokens of one of them.", "memory"),
    _bool(_ROLLOUT + "enable_chunked_prefill", "Let the server read long prompts in parts.", "memory"),
    _bool(_ROLLOUT + "enable_prefix_caching", "Let the server keep what prompts share.", "memory"),
)
# fmt: on
