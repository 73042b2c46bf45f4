"""Offline error analyzer: a fix for a failed phase, by failure class and number of earlier failures.

Out of memory: the memory estimate's remedy if there is one, otherwise smaller pieces first and a smaller task
last. This is the only place that reduces capacity (response length, rollouts). NaN: smaller steps from an
earlier checkpoint. A rejected configuration: the value that worked. Any other failure: a retry, then smaller
pieces.

Changes are relative to the failed phase's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from llmzero_ray.agents.expert.apply_moves import valid
from llmzero_ray.agents.expert.proposer import change_text, proposal_base
from llmzero_ray.agents.expert.resume import best_scored, passes_text
from llmzero_ray.hyperparameters import VERL_SPACE, diff, mentioned_keys
from llmzero_ray.hyperparameters.couplings import largest_divisor, resolve
from llmzero_ray.hyperparameters.verl_keys import (
    CAPACITY,
    DYNAMIC_BSZ,
    GPU_MEMORY,
    GRAD_CLIP,
    GRADIENT_CHECKPOINTING,
    KL_LOSS_COEF,
    LOG_PROB_MICRO,
    LR,
    MAX_NUM_SEQS,
    MAX_PROMPT,
    MAX_RESPONSE,
    MAX_TOKENS,
    MICRO_BATCH,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    ROLLOUT_N,
)
from llmzero_ray.records import (
    Change,
    Diagnosis,
    FailureClass,
    Hyperparameters,
    HyperparameterValue,
    PhaseFailure,
    Proposal,
)
from llmzero_ray.records.agents import ErrorRequest, OfferedCheckpoint

_Values: TypeAlias = Mapping[str, tuple[HyperparameterValue, str]]
"""Key -> (new value, reason)."""
_FROM_ESTIMATE = "the memory estimate, corrected by this failure, asks for it"
_FEWEST_SEQUENCES = 16
_LOWEST_SHARE, _HIGHEST_SHARE = 0.3, 0.9
_UNKNOWN = PhaseFailure(node=-1, failure_class="engine", cause="no cause was recorded", log_tail="")
_SERVER_MEMORY = re.compile(r"kv cache|cache blocks|gpu_memory_utilization", re.IGNORECASE)
_MEANING: Mapping[FailureClass, str] = {
    "oom": "Memory ran out",
    "nan": "A loss, gradient or reward was not finite",
    "config": "The configuration was refused",
    "mismatch": "The training differed from its configuration",
    "reward": "The reward could not score the answers",
    "engine": "The engine raised an exception",
    "timeout": "The phase did not end in time",
    "resource": "A process or node was lost twice at the same point",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A failure with its request and context."""

    request: ErrorRequest
    failure: PhaseFailure
    n_gpus: int

    @property
    def base(self) -> Hyperparameters:
        """Hyper-parameters of the failed phase."""
        return self.request.failed.hyperparameters

    def times(self, *classes: FailureClass) -> int:
        """Number of failures of these classes in this chain, including this one. A rejected proposal adds
        one."""
        failures = [view.failure for view in self.request.chain if view.failure is not None]
        same = sum(failure.failure_class in classes for failure in failures)
        return max(1, same) + (1 if self.request.rejected else 0)


@dataclass(frozen=True, kw_only=True)
class Fix:
    """New values with their reasons. Empty for a retry without changes."""

    values: _Values
    why: str


class ExpertErrorAnalyzer:
    """Explains a failure and proposes the phase that avoids it. `n_gpus` is the number of GPUs of a slot."""

    def __init__(self, *, n_gpus: int = 1) -> None:
        self._n_gpus = n_gpus

    def analyze(self, request: ErrorRequest) -> Proposal:
        """Diagnosis of the failure and the fixed phase, which always has a valid configuration."""
        failure = request.failed.failure or _UNKNOWN
        fix = _FIXES[failure.failure_class](Case(request=request, failure=failure, n_gpus=self._n_gpus))
        changes, full = self._applied(request, fix)
        start = _choose_start(request, failure)
        n_steps = _length(request, start)
        behind = 0 if start is None else start.global_step
        passes = passes_text(request.task, full, global_step=behind, n_steps=n_steps)
        changes_text = ", ".join(change_text(c.key, c.old, c.new) for c in changes) or "Nothing changed"
        from_where = "the base model" if start is None else f"node {start.node}, step {start.step}"
        return Proposal(
            diagnosis=_diagnosis(failure),
            changes=changes,
            resume_from=None if start is None else start.resume_from,
            n_steps=n_steps,
            rationale=f"{fix.why} {changes_text}; from {from_where}. {passes}",
        )

    def _applied(self, request: ErrorRequest, fix: Fix) -> tuple[tuple[Change, ...], Hyperparameters]:
        """Changes that differ from the base and were not rejected, with the resulting configuration. If they
        are invalid together, they are added one by one, without those that fail."""
        base = proposal_base(request, request.failed.hyperparameters, self._n_gpus)
        rejected = mentioned_keys(request.rejected)
        wanted = [
            Change(key=key, old=base.hyperparameters.get(key), new=new, reason=reason)
            for key, (new, reason) in fix.values.items()
            if base.hyperparameters.get(key) != new and key not in rejected
        ]
        full = valid(base, wanted)
        if full is None:
            kept: list[Change] = []
            for change in wanted:
                kept += [change] if valid(base, [*kept, change]) is not None else []
            wanted, full = kept, valid(base, kept)
        return tuple(wanted), base.hyperparameters if full is None else full


def _diagnosis(failure: PhaseFailure) -> Diagnosis:
    tail = [line.strip() for line in failure.log_tail.splitlines() if line.strip()][-3:]
    where = f" after {failure.steps_done} steps" if failure.steps_done else " before the first step"
    text = f"{_MEANING[failure.failure_class]}{where}: {failure.cause}"
    return Diagnosis(state="failed", summary=text, evidence=(failure.cause, *tail))


# --- fixes by class -----------------------------------------------------------------------------------------


def _oom(case: Case) -> Fix:
    memory = case.request.memory
    if memory is not None and memory.fix:
        values = {key: (value, _FROM_ESTIMATE) for key, value in memory.fix.items()}
        return Fix(values=values, why=f"{memory.verdict}. With these changes it {memory.fix_verdict}.")
    return _oom_by_rule(case)


def _oom_by_rule(case: Case) -> Fix:
    """Fix without an estimate: half the pieces, then also offloading, then the smallest pieces. The task is
    reduced only if nothing else is left."""
    base, times = case.base, case.times("oom", "resource")
    in_server = bool(_SERVER_MEMORY.search(case.failure.cause + case.failure.log_tail))
    factor = 0.5 if times < 3 else 0.0
    pieces = _smaller_pieces(base, case.n_gpus, factor)
    values = {**pieces, **_smaller_server(base, in_server, factor)}
    why = "Smaller pieces need less memory and train the same."
    if times >= 2 or _changes_nothing(base, pieces):
        values |= _offloaded()
        why = "Smaller pieces are not enough: activations are recomputed and state moves to host memory."
    if times >= 3 and _changes_nothing(base, values):
        values |= _smaller_task(base)
        why = "Nothing smaller is left but the task: shorter answers and smaller groups."
    return Fix(values=values, why=why)


def _changes_nothing(base: Hyperparameters, values: _Values) -> bool:
    return all(base.get(key) == value for key, (value, _) in values.items())


def _smaller_pieces(base: Hyperparameters, n_gpus: int, factor: float) -> _Values:
    """Smaller forward and backward passes: by the token budget if micro batches are packed (their sizes then
    have no effect), otherwise by micro-batch sizes."""
    reason = "activations of one pass shrink with it"
    if base.get(DYNAMIC_BSZ):
        budget = base.get(MAX_TOKENS)
        longest = sum(size for key in (MAX_PROMPT, MAX_RESPONSE) if isinstance(size := base.get(key), int))
        # A sequence is never split, so the token budget must hold the longest one.
        return {MAX_TOKENS: (max(longest, int(budget * factor)), reason)} if isinstance(budget, int) else {}
    sizes = resolve(base, n_gpus=n_gpus)
    acting = (MICRO_BATCH, LOG_PROB_MICRO)
    known = {key: size for key in acting if isinstance(size := sizes.get(key), int)}
    return {key: (largest_divisor(size, max(1, int(size * factor))), reason) for key, size in known.items()}


def _smaller_server(base: Hyperparameters, in_server: bool, factor: float) -> _Values:
    seqs, share = base.get(MAX_NUM_SEQS), base.get(GPU_MEMORY)
    values: dict[str, tuple[HyperparameterValue, str]] = {}
    if isinstance(seqs, int):
        least = min(seqs, _FEWEST_SEQUENCES)
        values[MAX_NUM_SEQS] = (max(least, int(seqs * factor)), "fewer sequences at once need less cache")
    if isinstance(share, float):
        # The server and the trainer share the GPU: give memory to the one that ran out.
        if in_server:
            wanted = max(share, min(_HIGHEST_SHARE, share + 0.1) if factor else _HIGHEST_SHARE)
            reason = "the server needs memory for its cache"
        else:
            wanted = min(share, max(_LOWEST_SHARE, share * 0.85) if factor else _LOWEST_SHARE)
            reason = "leaves more of the card to the trainer"
        values[GPU_MEMORY] = (share if wanted == share else round(wanted, 2), reason)
    return values


def _offloaded() -> _Values:
    return {
        GRADIENT_CHECKPOINTING: (True, "activations are recomputed instead of kept"),
        PARAM_OFFLOAD: (True, "idle parameters wait in host memory"),
        OPTIMIZER_OFFLOAD: (True, "so does the optimizer's state"),
    }


def _smaller_task(base: Hyperparameters) -> _Values:
    values: dict[str, tuple[HyperparameterValue, str]] = {}
    for key, least, factor in ((MAX_RESPONSE, 8, 0.75), (ROLLOUT_N, 2, 0.5)):
        size = base.get(key)
        if isinstance(size, int) and size > least:
            values[key] = (max(least, int(size * factor)), "the last resort: memory grows with it")
    return values


def _nan(case: Case) -> Fix:
    base, factor = case.base, 0.5 ** case.times("nan")
    lr, clip, kl = (base.get(key) for key in (LR, GRAD_CLIP, KL_LOSS_COEF))
    values: dict[str, tuple[HyperparameterValue, str]] = {}
    if isinstance(lr, float) and lr > 0:
        values[LR] = (_two_digits(lr * factor), "smaller steps keep the loss finite")
    if isinstance(clip, float):
        values[GRAD_CLIP] = (_two_digits(max(0.05, clip * factor)), "one exploding gradient must not pass")
    if isinstance(kl, float) and kl > 0:
        values[KL_LOSS_COEF] = (_two_digits(min(0.1, kl * 2)), "keeps likelihoods away from the extremes")
    return Fix(values=values, why="The update blew up: smaller, clipped steps from before it did.")


def _config(case: Case) -> Fix:
    """Fix that resets each key named in the message to the root's value, or all differing keys if it names
    none."""
    changed = diff(case.base, case.request.default).items()
    differing = {key: new for key, (_, new) in changed if key not in VERL_SPACE.kept_at_resume}
    named = mentioned_keys(case.failure.cause) or mentioned_keys(case.failure.log_tail)
    chosen = {k: v for k, v in differing.items() if k in named} if case.times("config") == 1 else {}
    if not chosen:
        # Do not reduce capacity unless the message names it.
        chosen = {k: v for k, v in differing.items() if k not in CAPACITY or k in named}
    values = {k: (v, "the value that the root trained with") for k, v in chosen.items()}
    return Fix(values=values, why="What the message names goes back to what is known to work.")


def _again(case: Case) -> Fix:
    if case.times("mismatch", "engine", "timeout") == 1:
        return Fix(values={}, why="Nothing in the configuration explains it: the same once more.")
    if case.failure.failure_class == "mismatch":
        return _config(case)
    values = {**_smaller_pieces(case.base, case.n_gpus, 0.5), **_smaller_server(case.base, False, 0.5)}
    return Fix(values=values, why="The same came back: once more with smaller pieces.")


def _reward(_case: Case) -> Fix:
    return Fix(values={}, why="The reward failed, which no hyper-parameter fixes: the same once more.")


def _resource(case: Case) -> Fix:
    fix = _oom_by_rule(case)
    # The kernel's out-of-memory killer looks like any other kill, so stop offloading to host memory.
    host = (PARAM_OFFLOAD, OPTIMIZER_OFFLOAD)
    values = {key: value for key, value in fix.values.items() if key not in host}
    return Fix(values=values, why=f"Most likely host memory. {fix.why}")


_FIXES: Mapping[FailureClass, Callable[[Case], Fix]] = {
    "oom": _oom,
    "nan": _nan,
    "config": _config,
    "mismatch": _again,
    "reward": _reward,
    "engine": _again,
    "timeout": _again,
    "resource": _resource,
}


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


# --- start and length ---------------------------------------------------------------------------------------


def _choose_start(request: ErrorRequest, failure: PhaseFailure) -> OfferedCheckpoint | None:
    """Start of the fixed phase: the failed phase's last checkpoint, or the failed phase's own start if that
    checkpoint may be the cause."""
    failed = request.failed
    own = [c for c in request.checkpoints if c.node == failed.node]
    if failure.failure_class == "nan":
        own = [c for c in own if c.step <= 0.8 * failure.steps_done]
        return best_scored(own) if own else _source(request)
    if failure.failure_class in ("config", "mismatch") or not own:
        return _source(request)
    last, best = max(own, key=lambda c: c.step), best_scored(own)
    return last if last.val_score is None or last.val_score >= (best.val_score or 0.0) - 0.02 else best


def _source(request: ErrorRequest) -> OfferedCheckpoint | None:
    """Checkpoint that the failed phase started from, or the nearest earlier one if that was deleted.

    None for the base model.
    """
    start, failed = request.failed.base_step, request.failed.node
    others = [c for c in request.checkpoints if c.node != failed and c.global_step <= start]
    return max(others, key=lambda c: (c.global_step, c.node), default=None) if start > 0 else None


def _length(request: ErrorRequest, start: OfferedCheckpoint | None) -> int:
    """Remaining steps, but at least half a standard phase."""
    failed, task = request.failed, request.task
    done = start.step if start is not None and start.node == failed.node else 0
    wanted = max(failed.n_steps - done, task.phase_steps // 2, 1)
    if failed.failure is not None and failed.failure.failure_class == "timeout" and len(request.chain) > 1:
        wanted = max(1, wanted // 2)
    return min(wanted, task.max_phase_steps)
