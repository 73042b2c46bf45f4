"""Parses a language model's response into a proposal, and moves a proposal that breaks rules into its bounds.

The coordinator rejects a first proposal that breaks a rule. The second one is corrected here: values are
clipped, forbidden changes dropped, and an unknown checkpoint is replaced by the nearest one. Pure.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llmzero_ray.agents.expert.resume import best_scored, passes_text
from llmzero_ray.agents.llm.response_schemas import ChangeSchema, CheckpointSchema, LengthSchema
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import (
    VERL_SPACE,
    Limits,
    Space,
    format_value,
    mentioned_keys,
)
from llmzero_ray.records import Change, Diagnosis, Hyperparameters, HyperparameterValue, Proposal, ResumeFrom
from llmzero_ray.records.agents import ErrorRequest, OfferedCheckpoint, ProposalRequest, TaskView
from llmzero_ray.utils.text import one_line


@dataclass(frozen=True, kw_only=True)
class ProposalBounds:
    """Base configuration, checkpoints and limits of the next phase."""

    task: TaskView
    base: Callable[[ResumeFrom | None], Hyperparameters]
    """Callback: start of the phase -> configuration that its changes are relative to."""
    checkpoints: tuple[OfferedCheckpoint, ...]
    """Checkpoints to resume from. Empty if the phase starts from the base model."""
    n_gpus: int
    space: Space = VERL_SPACE

    @property
    def limits(self) -> Limits:
        """Maximum length of a response, and the number of training items."""
        return Limits(max_model_len=self.task.max_model_len, n_train=self.task.n_train)

    def full(self, changes: Iterable[Change], resume: ResumeFrom | None) -> Hyperparameters:
        """Complete configuration of a phase that starts there.

        Raises:
            HyperparameterError: a key, a value or a coupling is wrong.
        """
        values = {change.key: change.new for change in changes}
        return self.space.complete(self.base(resume), values, n_gpus=self.n_gpus, limits=self.limits)


def bounds_of(
    request: ProposalRequest | ErrorRequest, n_gpus: int, space: Space = VERL_SPACE
) -> ProposalBounds:
    """Bounds for a response to this request."""
    scratch = isinstance(request, ProposalRequest) and request.from_scratch
    offered = () if scratch else request.checkpoints
    return ProposalBounds(
        task=request.task, base=request.base, checkpoints=offered, n_gpus=n_gpus, space=space
    )


# --- reading ------------------------------------------------------------------------------------------------


def parse_proposal(
    diagnosis: Diagnosis,
    changes: Sequence[ChangeSchema],
    checkpoint: CheckpointSchema,
    length: LengthSchema,
    bounds: ProposalBounds,
    agent: str,
) -> Proposal:
    """Proposal from the parts of a response. It may break rules."""
    wanted = checkpoint.resume_from
    resume = None if wanted is None else ResumeFrom(node=wanted.node, step=wanted.step)
    base = bounds.base(resume)
    parsed = tuple(_change(change, base, bounds.space) for change in changes)
    parsed = tuple(change for change in parsed if change.old != change.new or change.key not in base)
    parts = [f"{_change_text(change, bounds.space)}: {_sentence(change.reason)}" for change in parsed]
    where = "the base model" if resume is None else f"node {resume.node}, step {resume.step}"
    parts.append(f"Starts from {where}: {_sentence(checkpoint.reason)}")
    proposal = Proposal(
        diagnosis=diagnosis,
        changes=parsed,
        resume_from=resume,
        n_steps=length.n_steps,
        rationale=" ".join(parts),
        agent=agent,
    )
    return _with_passes(proposal, bounds)


def _with_passes(proposal: Proposal, bounds: ProposalBounds) -> Proposal:
    """The proposal with its passes over the data in the rationale."""
    try:
        full = bounds.full(proposal.changes, proposal.resume_from)
    except HyperparameterError:
        return proposal  # it will be rejected anyway
    start = 0
    if proposal.resume_from is not None:
        start = _global_step(bounds.checkpoints, proposal.resume_from)
    passes = passes_text(bounds.task, full, global_step=start, n_steps=max(1, proposal.n_steps))
    return dataclasses.replace(proposal, rationale=f"{proposal.rationale} {passes}".strip())


def _change(response: ChangeSchema, base: Hyperparameters, space: Space) -> Change:
    """Change under VeRL's key. An unknown name is kept, so that the rejection quotes it."""
    value: HyperparameterValue = tuple(response.value) if isinstance(response.value, list) else response.value
    try:
        key = space.canonical(response.name)
    except HyperparameterError:
        return Change(key=response.name, old=None, new=value, reason=response.reason)
    with contextlib.suppress(HyperparameterError):  # validation rejects a wrong value later, with the reason
        value = space.proposed(key, value)
    return Change(key=key, old=base.get(key), new=value, reason=response.reason)


def _global_step(offered: Sequence[OfferedCheckpoint], wanted: ResumeFrom) -> int:
    same = [c for c in offered if c.node == wanted.node and c.step <= wanted.step]
    return max((c.global_step for c in same), default=0)


# --- repairing ----------------------------------------------------------------------------------------------


def enforce_bounds(proposal: Proposal, bounds: ProposalBounds) -> tuple[Proposal, tuple[str, ...]] | None:
    """(proposal that breaks no rule, notes on its corrections). None if all its changes had to be dropped."""
    notes: list[str] = []
    resume = _checkpoint(proposal.resume_from, bounds, notes)
    changes = [
        bounded
        for change in proposal.changes
        if (bounded := _within_bounds(change, resume, bounds.space, notes)) is not None
    ]
    once = {change.key: change for change in changes}
    named = Counter(change.key for change in changes)
    notes += [
        f"{bounds.space.short(key)} was named {n} times: the last value counts"
        for key, n in named.items()
        if n > 1
    ]
    changes = list(once.values())
    changes = _without_conflicts(changes, resume, bounds, notes)
    if proposal.changes and not changes:
        return None
    n_steps = max(1, min(proposal.n_steps, bounds.task.max_phase_steps))
    if n_steps != proposal.n_steps:
        notes.append(f"n_steps {proposal.n_steps} -> {n_steps} (1 to {bounds.task.max_phase_steps})")
    kept = {change.key for change in changes}
    whole = kept == {c.key for c in proposal.changes} and resume == proposal.resume_from and not notes
    repaired = dataclasses.replace(proposal, changes=tuple(changes), resume_from=resume, n_steps=n_steps)
    return (proposal if whole else _with_passes(repaired, bounds)), tuple(notes)


def _checkpoint(wanted: ResumeFrom | None, bounds: ProposalBounds, notes: list[str]) -> ResumeFrom | None:
    if wanted is None:
        return None
    if not bounds.checkpoints:
        notes.append("starts from the base model: there is no checkpoint to resume from")
        return None
    of_node = [c for c in bounds.checkpoints if c.node == wanted.node]
    if of_node:
        return wanted  # the coordinator takes the nearest saved step
    best = best_scored(bounds.checkpoints)
    notes.append(f"node {wanted.node} is not offered: resumes from node {best.node}, step {best.step}")
    return best.resume_from


def _within_bounds(
    change: Change, resume: ResumeFrom | None, space: Space, notes: list[str]
) -> Change | None:
    """The change with its value clipped to the bounds. None if the key is unknown or may not change."""
    try:
        key = space.canonical(change.key)
    except HyperparameterError:
        notes.append(f"{change.key} left out: no such hyper-parameter")
        return None
    reason = space.forbidden(key)
    if reason is None and resume is not None and key in space.kept_at_resume:
        reason = "the adapter of a checkpoint keeps its shape"
    if reason is not None:
        notes.append(f"{space.short(key)} left out: {reason}")
        return None
    try:
        return dataclasses.replace(change, key=key, new=space.proposed(key, change.new))
    except HyperparameterError:
        value = _clipped(key, change.new, space)
    if value is None:
        notes.append(f"{space.short(key)} left out: {one_line(repr(change.new))} is not a value for it")
        return None
    notes.append(
        f"{space.short(key)} {one_line(repr(change.new))} -> {format_value(key, value)}, the nearest that is "
        "allowed"
    )
    return dataclasses.replace(change, key=key, new=value)


def _clipped(key: str, value: HyperparameterValue, space: Space) -> HyperparameterValue:
    """Number clipped to the bounds of its key, or None if that is impossible."""
    row = space.bounds(key)
    if row is None or row.low is None or row.high is None or isinstance(value, bool | tuple | None):
        return None
    try:
        number = min(max(float(value), row.low), row.high)
        if number != number:
            return None
        return space.proposed(key, round(number) if row.kind == "int" else number)
    except (TypeError, ValueError, OverflowError, HyperparameterError):
        return None


def _without_conflicts(
    changes: list[Change], resume: ResumeFrom | None, bounds: ProposalBounds, notes: list[str]
) -> list[Change]:
    """Changes without those that violate a coupling, dropped one at a time."""
    while changes:
        try:
            bounds.full(changes, resume)
            return changes
        except HyperparameterError as error:
            named = mentioned_keys(str(error))
            last = next((c for c in reversed(changes) if c.key in named), changes[-1])
            notes.append(f"{_change_text(last, bounds.space)} left out: {error}")
            changes = [change for change in changes if change is not last]
    return changes


def _change_text(change: Change, space: Space) -> str:
    name = space.short(change.key)
    old, new = (format_value(change.key, value) for value in (change.old, change.new))
    return f"{name} {old} -> {new}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
