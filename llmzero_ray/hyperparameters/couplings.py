"""Couplings between VeRL's values: batches that must divide, lengths that must fit, switches that enable a
term. The rows of the table name them.

`follow_…` adjust values that depend on a changed one; `check_…` name combinations that VeRL would refuse
minutes later or silently read differently; `…_inert` say why a value has no effect, which VeRL does not tell.
Not here: single values (table.py), when a coupling is applied (space.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from llmzero_ray.hyperparameters.space import AUTO, Conflict, Limits
from llmzero_ray.hyperparameters.verl_keys import (
    ADV_ESTIMATOR,
    ALGO_KL,
    ALGO_KL_TYPE,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RATIO,
    DYNAMIC_BSZ,
    KL_LOSS_COEF,
    LOG_PROB_DYNAMIC_BSZ,
    LOG_PROB_MICRO,
    MAX_MODEL_LEN,
    MAX_PROMPT,
    MAX_RESPONSE,
    MAX_TOKENS,
    MICRO_BATCH,
    MINI_BATCH,
    PPO_EPOCHS,
    REF_MICRO,
    ROLLOUT_N,
    TENSOR_PARALLEL,
    TRAIN_BATCH,
    USE_KL_IN_REWARD,
    USE_KL_LOSS,
    WARMUP_STEPS,
)
from llmzero_ray.records import Hyperparameters, HyperparameterValue
from llmzero_ray.utils.text import is_number

MICRO_BATCHES: Mapping[str, str] = {
    MICRO_BATCH: MINI_BATCH,
    LOG_PROB_MICRO: TRAIN_BATCH,
    REF_MICRO: TRAIN_BATCH,
}
"""Micro batch (sequences per GPU) -> the batch (prompts) that it cuts up."""


def follow_clip(
    full: dict[str, HyperparameterValue], _: Hyperparameters, changes: Hyperparameters, __: int
) -> None:
    """`clip_ratio` moves both sides."""
    # VeRL reads clip_ratio only where low or high is null, and both default to 0.2: alone it would change
    # nothing.
    if CLIP_RATIO in changes:
        for key in (CLIP_LOW, CLIP_HIGH):
            if key not in changes:
                full[key] = changes[CLIP_RATIO]


def follow_kl(
    full: dict[str, HyperparameterValue], _: Hyperparameters, changes: Hyperparameters, __: int
) -> None:
    """Use one KL term at a time: a coefficient above 0, or a switch, turns its term on and the other one off.

    If both coefficients are named, as in Tables 9 and 11 of the paper, the one in the loss takes effect. Both
    terms apply only if both switches are named.
    """
    terms = ((KL_LOSS_COEF, USE_KL_LOSS), (ALGO_KL, USE_KL_IN_REWARD))
    if changes.get(ALGO_KL) == 0 and USE_KL_IN_REWARD not in changes:
        full[USE_KL_IN_REWARD] = False
    switched = [switch for _, switch in terms if changes.get(switch)]
    weighed = [
        switch for weight, switch in terms if switch not in changes and _number(changes.get(weight)) > 0
    ]
    if not switched and not weighed:
        return
    acting = (switched or weighed)[0]
    for term in (USE_KL_LOSS, USE_KL_IN_REWARD):
        if term not in changes:
            full[term] = term == acting


def _number(value: object) -> float:
    return float(value) if is_number(value) else 0.0


def follow_mini_batch(
    full: dict[str, HyperparameterValue], base: Hyperparameters, changes: Hyperparameters, _: int
) -> None:
    """Change the mini batch so that the number of updates per step stays."""
    if TRAIN_BATCH not in changes or MINI_BATCH in changes:
        return
    train, old_mini = int(_number(changes[TRAIN_BATCH])), _number(base.get(MINI_BATCH))
    updates = max(1, round(_number(base.get(TRAIN_BATCH)) / old_mini)) if old_mini else 1
    full[MINI_BATCH] = nearest_divisor(train, train / updates)


def follow_micro_batches(
    full: dict[str, HyperparameterValue], _: Hyperparameters, changes: Hyperparameters, n_gpus: int
) -> None:
    """Reduce micro batches to a divisor that is no larger than before."""
    for micro in MICRO_BATCHES:
        rows, size = _rows_per_gpu(full, micro, n_gpus), full.get(micro)
        if micro not in changes and isinstance(size, int) and rows:
            full[micro] = largest_divisor(rows, size)


def _rows_per_gpu(full: Hyperparameters, micro: str, n_gpus: int) -> int:
    """Sequences per GPU in the batch that `micro` divides, or 0 if the batch itself does not divide."""
    rows = int(_number(full.get(MICRO_BATCHES[micro])) * _number(full.get(ROLLOUT_N)))
    return rows // n_gpus if rows % n_gpus == 0 else 0


def largest_divisor(number: int, limit: int) -> int:
    """Largest divisor of `number` (>= 1) that is <= `limit`, at least 1."""
    return next(d for d in range(max(1, min(number, limit)), 0, -1) if number % d == 0)


def nearest_divisor(number: int, target: float) -> int:
    """Divisor of `number` (>= 1) whose ratio to `target` is nearest to 1 (the smaller one in a tie)."""
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    return min(divisors, key=lambda d: max(d / target, target / d))


def resolve(
    full: Hyperparameters, *, n_gpus: int = 1, micro_batch_limit: int = 16
) -> dict[str, HyperparameterValue]:
    """Configuration in which each "auto" micro batch is the largest divisor of its batch <= the limit.

    `micro_batch_limit` counts sequences per GPU. Specs keep "auto", so that a changed batch never leaves a
    micro batch that no longer divides it.
    """
    found = dict(full)
    for micro in MICRO_BATCHES:
        if full.get(micro) == AUTO:
            found[micro] = largest_divisor(max(1, _rows_per_gpu(full, micro, n_gpus)), micro_batch_limit)
    return found


# --- what does not fit together ---------------------------------------------------------------------------


def check_algorithm(full: Hyperparameters, _: int, __: Limits) -> Conflict | None:
    """Advantages come from rewards alone."""
    if full.get(ADV_ESTIMATOR) != "gae":
        return None
    why = (
        "PPO's critic is not supported: phases exchange, save and resume the policy's adapter alone, so "
        "that a critic would begin untrained in each of them; take grpo, rloo or reinforce_plus_plus"
    )
    return (ADV_ESTIMATOR,), why


def check_batches(full: Hyperparameters, n_gpus: int, _: Limits) -> Conflict | None:
    """Batches divide into mini batches, over the GPUs, and into micro batches."""
    train, mini, n = (int(_number(full[key])) for key in (TRAIN_BATCH, MINI_BATCH, ROLLOUT_N))
    if train % mini:
        return (TRAIN_BATCH, MINI_BATCH), "the batch must be a multiple of the mini batch (prompts)"
    if mini * n % n_gpus:
        why = f"mini batch x n = {mini * n} sequences must divide over {n_gpus} GPUs"
        return (MINI_BATCH, ROLLOUT_N), why
    if full[DYNAMIC_BSZ]:
        return None
    for micro, batch in MICRO_BATCHES.items():
        rows = _rows_per_gpu(full, micro, n_gpus)
        if full[micro] != AUTO and rows % int(_number(full[micro])):
            why = f"must divide the {rows} sequences of one GPU; write auto to let it fit"
            return (micro, batch, ROLLOUT_N), why
    return None


def check_packing(full: Hyperparameters, n_gpus: int, _: Limits) -> Conflict | None:
    """Forward batches are packed if the others are, and a packed one holds a sequence."""
    packed = full[DYNAMIC_BSZ]
    if full.get(LOG_PROB_DYNAMIC_BSZ) not in (None, packed):
        return (LOG_PROB_DYNAMIC_BSZ, DYNAMIC_BSZ), "both must be the same; leave out the first"
    sequence = int(_number(full[MAX_PROMPT]) + _number(full[MAX_RESPONSE]))
    # All GPUs may share a sequence (ulysses_sequence_parallel_size).
    if packed and _number(full[MAX_TOKENS]) * n_gpus < sequence:
        why = f"a packed micro batch must hold a sequence, which may have {sequence} tokens"
        return (MAX_TOKENS, MAX_PROMPT, MAX_RESPONSE), why
    return None


def check_lengths(full: Hyperparameters, _: int, limits: Limits) -> Conflict | None:
    """Prompt and response fit into the server, and the response under the search's cap."""
    prompt, response = int(_number(full[MAX_PROMPT])), int(_number(full[MAX_RESPONSE]))
    lengths = [v for v in (limits.max_model_len, full.get(MAX_MODEL_LEN)) if isinstance(v, int)]
    if lengths and prompt + response > min(lengths):
        why = (
            f"together {prompt + response} tokens, but the rollout server's context length is {min(lengths)}"
        )
        return (MAX_PROMPT, MAX_RESPONSE), why
    if limits.max_response_length is not None and response > limits.max_response_length:
        return (MAX_RESPONSE,), f"the search allows at most {limits.max_response_length} tokens"
    return None


def check_task(full: Hyperparameters, _: int, limits: Limits) -> Conflict | None:
    """The task has items for a step."""
    if limits.n_train is not None and _number(full[TRAIN_BATCH]) > limits.n_train:
        return (TRAIN_BATCH,), f"with {limits.n_train} training items an epoch would have no step"
    return None


def check_gpus(full: Hyperparameters, n_gpus: int, _: Limits) -> Conflict | None:
    """A server's GPUs divide those of the slot."""
    if n_gpus % int(_number(full[TENSOR_PARALLEL])):
        return (TENSOR_PARALLEL,), f"must divide the {n_gpus} GPUs of a slot"
    return None


# --- what has no effect -----------------------------------------------------------------------------------


def clip_is_inert(full: Hyperparameters) -> bool:
    """Whether every step makes one update on its own rollouts: then ratios are 1 and nothing is ever
    clipped."""
    return full.get(MINI_BATCH) == full.get(TRAIN_BATCH) and full.get(PPO_EPOCHS, 1) == 1


def clips_inert(full: Hyperparameters) -> str | None:
    """The reason while nothing is clipped."""
    if not clip_is_inert(full):
        return None
    return (
        "each step makes one update on its own rollouts, so that nothing is clipped: it acts only while "
        "mini_batch_size < batch_size or ppo_epochs > 1"
    )


def warmup_ratio_inert(full: Hyperparameters) -> str | None:
    """The reason while the warm-up is given in steps."""
    steps = full.get(WARMUP_STEPS)
    given = isinstance(steps, int) and steps > 0  # VeRL takes the ratio at 0 too
    return "lr_warmup_steps decides; it acts only while that is -1 or 0" if given else None


def adv_norm_inert(full: Hyperparameters) -> str | None:
    """The reason while another estimator than GRPO's is chosen."""
    estimator = full.get(ADV_ESTIMATOR, "grpo")
    return None if estimator == "grpo" else f"only adv_estimator grpo reads it, and {estimator} is chosen"


def kl_loss_inert(full: Hyperparameters) -> str | None:
    """The reason while the loss has no KL."""
    return None if full.get(USE_KL_LOSS) else "it acts only while use_kl_loss is true"


def kl_reward_inert(full: Hyperparameters) -> str | None:
    """The reason while the reward has no KL."""
    return None if full.get(USE_KL_IN_REWARD) else "it acts only while use_kl_in_reward is true"


def adaptive_kl_inert(full: Hyperparameters) -> str | None:
    """The reason while the weight of the KL in the reward stays fixed."""
    fixed = full.get(ALGO_KL_TYPE, "fixed") == "fixed"
    return kl_reward_inert(full) or (
        "it acts only while algorithm.kl_ctrl.type is adaptive" if fixed else None
    )


def micro_batch_inert(full: Hyperparameters) -> str | None:
    """The reason while micro batches are packed by tokens."""
    why = "micro batches are packed by tokens (dynamic_bsz): max_token_len_per_gpu decides"
    return why if full.get(DYNAMIC_BSZ) else None


def reference_inert(_: Hyperparameters) -> str:
    """The reason, which always applies because every phase trains an adapter."""
    return "the reference is the policy without its adapter: log_prob_micro_batch_size decides"


def max_tokens_inert(full: Hyperparameters) -> str | None:
    """The reason while micro batches count sequences."""
    return None if full.get(DYNAMIC_BSZ) else "it acts only while dynamic_bsz is true"
