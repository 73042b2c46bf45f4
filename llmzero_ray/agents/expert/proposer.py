"""The offline proposer: documented, deterministic rules over observed dynamics. No LLM, no clock, no
randomness.

In four steps, as the paper's proposer: diagnose the run (diagnosis.py), choose a set of several coordinated
changes (moves.py, apply_moves.py), choose the checkpoint, compute length and epochs
(resume.py). Siblings of the new node are read first, so that a second child takes another reading of the same
curves. Changes are relative to the expanded node's configuration; for a forced fresh start, to the root's.

Not here: failed phases (error_analyzer.py) and running ones (early_stopper.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from llmzero_ray.agents.base import NodeView, ProposalRequest
from llmzero_ray.agents.dynamics import observe
from llmzero_ray.agents.expert.apply_moves import ChangePlan, ProposalBase, apply_moves, signature
from llmzero_ray.agents.expert.diagnosis import Finding, diagnose
from llmzero_ray.agents.expert.early_stopper import ExpertEarlyStopper
from llmzero_ray.agents.expert.error_analyzer import ExpertErrorAnalyzer
from llmzero_ray.agents.expert.fresh_start import fresh_length, fresh_plan
from llmzero_ray.agents.expert.moves import MoveSet, general, move_sets
from llmzero_ray.agents.expert.rejection import mentioned_keys
from llmzero_ray.agents.expert.resume import StartPoint, choose_length, choose_start, count_epochs
from llmzero_ray.hyperparameters import Limits, diff, format_value, short
from llmzero_ray.records import Change, Diagnosis, Hyperparameters, Proposal

__all__ = ["ExpertEarlyStopper", "ExpertErrorAnalyzer", "ExpertProposer"]

REPEATED = 0.6
"""Share of common (key, direction) pairs from which two sets of changes count as the same attempt."""
STRENGTHS = (1.0, 1.5, 2.0, 3.0)
"""Factor on all moves once every set of moves has been tried."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A finding, the move_set chosen for it, and the configuration that gives."""

    finding: Finding
    plan: ChangePlan


class ExpertProposer:
    """Proposes the next phase below a node. `n_val`: validation items; `n_gpus`: GPUs of a slot."""

    def __init__(self, *, n_val: int = 500, n_gpus: int = 1) -> None:
        self._n_val = n_val
        self._n_gpus = n_gpus

    def propose(self, request: ProposalRequest) -> Proposal:
        """A diagnosis, two to five coordinated changes, a start and a length; always valid."""
        return self._fresh(request) if request.from_scratch else self._continue(request)

    def _continue(self, request: ProposalRequest) -> Proposal:
        on = request.on
        findings = self._findings(on, request.path)
        base = self._proposal_base(request, on.hyperparameters)
        choice = _choose(base, findings, request.siblings, request.rejected)
        start = choose_start(choice.finding, on, request.path, request.checkpoints, n_val=self._n_val)
        if request.rejected and "must be null" in request.rejected:
            start = StartPoint(checkpoint=None, reason="no checkpoint may be used here")
        n_steps = choose_length(choice.finding, request.task)
        return self._proposal(request, choice.finding.to_record(), choice.plan, start, n_steps)

    def _findings(self, view: NodeView, path: Sequence[NodeView]) -> tuple[Finding, ...]:
        before = path[-2] if len(path) >= 2 else None
        return diagnose(observe(view.curves, view.hyperparameters, n_val=self._n_val), view, before)

    def _proposal_base(self, request: ProposalRequest, base: Hyperparameters) -> ProposalBase:
        limits = Limits(max_model_len=request.task.max_model_len, n_train=request.task.n_train)
        return ProposalBase(hyperparameters=base, default=request.default, limits=limits, n_gpus=self._n_gpus)

    # --- fresh starts ---------------------------------------------------------------------------------------

    def _fresh(self, request: ProposalRequest) -> Proposal:
        """A run from the base model, unlike the runs from scratch so far and informed by the best one."""
        base = self._proposal_base(request, request.default)
        best = request.best
        findings = self._findings(best, ()) if best is not None else ()
        inherit = bool(findings) and findings[0].state == "healthy"
        chosen = fresh_plan(base, request, inherit=inherit)
        diagnosis = Diagnosis(
            state=findings[0].state if findings else "unknown",
            summary=f"Fresh start number {request.n_scratch}. {_known(best, findings)}".strip(),
            evidence=findings[0].evidence if findings else (),
        )
        start = StartPoint(
            checkpoint=None, reason="a fresh start, so that the root does not anchor the whole search"
        )
        return self._proposal(request, diagnosis, chosen, start, fresh_length(request))

    def _proposal(
        self,
        request: ProposalRequest,
        diagnosis: Diagnosis,
        chosen: ChangePlan,
        start: StartPoint,
        n_steps: int,
    ) -> Proposal:
        base = request.base(start.resume_from)
        changes = _relative_to(base, chosen)
        epochs = count_epochs(request.task, chosen.full, global_step=start.global_step, n_steps=n_steps)
        origin = "" if start.checkpoint else "the base model: "
        parts = (
            f"{chosen.move_set.name.capitalize()}: {chosen.move_set.why}",
            *(f"{_change_text(c.key, c.old, c.new)}: {c.reason}." for c in changes),
            *_beside(request),
            f"Starts from {origin}{start.reason}.",
            epochs.arithmetic,
        )
        return Proposal(
            diagnosis=diagnosis,
            changes=changes,
            resume_from=start.resume_from,
            n_steps=n_steps,
            total_epochs=epochs.total,
            rationale=" ".join(parts),
        )


def _relative_to(base: Hyperparameters, chosen: ChangePlan) -> tuple[Change, ...]:
    """The changes that lead from the configuration of the phase's start to the chosen one."""
    reasons = {change.key: change.reason for change in chosen.changes}
    return tuple(
        Change(key=key, old=old, new=new, reason=reasons.get(key, "as in the phase that this one follows"))
        for key, (old, new) in diff(base, chosen.full).items()
    )


def _known(best: NodeView | None, findings: Sequence[Finding]) -> str:
    if best is None or best.score is None:
        return ""
    return f"Best so far is node {best.node} with {best.score:.3f}: {findings[0].summary}"


def _change_text(key: str, old: object, new: object) -> str:
    return f"{short(key)} {format_value(key, old)} -> {format_value(key, new)}"  # type: ignore[arg-type]


def _beside(request: ProposalRequest) -> Iterator[str]:
    """Changes of the children so far, with their outcome."""
    for sibling in request.siblings:
        if not sibling.hyperparameters:
            continue
        changed = diff(request.on.hyperparameters, sibling.hyperparameters)
        tried = (
            ", ".join(_change_text(key, old, new) for key, (old, new) in list(changed.items())[:5])
            or "nothing"
        )
        came = f"{sibling.score:.3f}" if sibling.score is not None else sibling.status
        yield f"Not again what node {sibling.node} tried ({tried}; {came})."


# --- choosing among sets of moves ---------------------------------------------------------------------------


def _choose(
    base: ProposalBase, findings: Sequence[Finding], siblings: Sequence[NodeView], rejected: str | None
) -> Choice:
    """The first set of moves that is no repetition; keys that a rejection names are left out."""
    tried = [sibling.hyperparameters for sibling in siblings if sibling.hyperparameters]
    without = mentioned_keys(rejected)
    choices = list(_choices(base, findings, without))
    if rejected:
        # No key of the rejection can be left out: take another set of moves instead of the same again.
        first = next(iter(_novel(_choices(base, findings, ()), base.hyperparameters, tried)), None)
        if first is not None and not {change.key for change in first.plan.changes} & without:
            choices = [choice for choice in choices if choice.plan.full != first.plan.full] or choices
    # No change validates: the limits leave no room, so the phase goes on as it was.
    as_it_is = ChangePlan(move_set=move_sets(findings[0])[0], changes=(), full=base.hyperparameters)
    last_resort = choices[0] if choices else Choice(finding=findings[0], plan=as_it_is)
    return next(_novel(choices, base.hyperparameters, tried), last_resort)


def _choices(base: ProposalBase, findings: Sequence[Finding], without: Iterable[str]) -> Iterator[Choice]:
    """Every move_set of every finding, then the general ones; then all again, going further."""
    left_out = tuple(without)
    for strength in STRENGTHS:
        for finding, move_set in _readings(findings):
            found = apply_moves(base, move_set, without=left_out, strength=strength)
            if found.changes:
                yield Choice(finding=finding, plan=found)


def _readings(findings: Sequence[Finding]) -> Iterator[tuple[Finding, MoveSet]]:
    for finding in findings:
        yield from ((finding, move_set) for move_set in move_sets(finding))
    yield from ((findings[0], move_set) for move_set in general(findings[0]))


def _novel(
    choices: Iterable[Choice], base: Hyperparameters, tried: Sequence[Hyperparameters]
) -> Iterator[Choice]:
    """Choices that differ in kind from what was tried; after those, choices that at least differ in value."""
    different_value = []
    for choice in choices:
        if any(choice.plan.full == dict(config) for config in tried):
            continue
        if all(
            overlap(signature(base, choice.plan.full), signature(base, config)) < REPEATED for config in tried
        ):
            yield choice
        else:
            different_value.append(choice)
    yield from different_value


def overlap(a: frozenset[tuple[str, str]], b: frozenset[tuple[str, str]]) -> float:
    """Share of (key, direction) pairs that two sets of changes have in common; 0 when both are empty."""
    return len(a & b) / len(a | b) if a | b else 0.0
