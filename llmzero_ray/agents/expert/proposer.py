"""Offline proposer: documented, deterministic rules over observed dynamics. No LLM, no clock, no randomness.

It has the four steps of the paper's proposer: diagnose the run (dynamics/diagnosis.py), choose the checkpoint
and the length (resume.py), choose a set of changes (moves.py, choice.py), explain. Earlier attempts from the
same checkpoint count most, wherever they are in the tree. Changes are relative to the configuration that
trained the checkpoint, or to the root's for a forced fresh start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from llmzero_ray.agents.expert.apply_moves import ChangePlan, ProposalBase, bounds
from llmzero_ray.agents.expert.choice import Tried, choose
from llmzero_ray.agents.expert.fresh_start import fresh_length, fresh_plan
from llmzero_ray.agents.expert.moves import UNCHANGED, MoveSet
from llmzero_ray.agents.expert.resume import StartPoint, choose_length, choose_start, passes_text
from llmzero_ray.dynamics.diagnosis import Finding, diagnose
from llmzero_ray.dynamics.features import observe
from llmzero_ray.dynamics.gains import (
    Attempt,
    attempts,
    known_nodes,
    losing_rates,
    lowest_losing_raise,
    went_on,
)
from llmzero_ray.hyperparameters import Limits, diff, format_value, short
from llmzero_ray.hyperparameters.compute import amount, planned_tokens, seconds_per_token, step_tokens
from llmzero_ray.hyperparameters.verl_keys import MAX_RESPONSE
from llmzero_ray.records import Diagnosis, Hyperparameters, Proposal, TokenCounts
from llmzero_ray.records.agents import ErrorRequest, NodeView, ProposalRequest
from llmzero_ray.records.metrics import VAL_TOKENS, series


def _with_inherited_doubts(request: ProposalRequest) -> NodeView:
    """The expanded node. Without doubts of its own, it inherits those of the phase that it continued."""
    on, earlier = request.on, reversed(request.path[:-1])
    source = None if on.doubts else next((view for view in earlier if view.doubts), None)
    if source is None or source.doubts is None:
        return on
    doubts = tuple(f"In node {source.node}, from which it continues: {doubt}" for doubt in source.doubts)
    return replace(on, doubts=doubts)


def _without_room(finding: Finding, base: ProposalBase) -> Finding | None:
    """The finding that answers are cut off, if their cap is the search's own limit, with the setting of that
    limit. None for any other finding."""
    longest = bounds(base, MAX_RESPONSE)[1]
    if finding.kind != "truncated" or longest > float(str(base.hyperparameters[MAX_RESPONSE])):
        return None
    advice = (
        f"No phase may have a larger cap, because engine.max_response_length is {longest:g}; set a larger "
        "one in another search."
    )
    return replace(finding, summary=f"{finding.summary} {advice}")


def _undo(on: NodeView) -> MoveSet:
    return replace(
        UNCHANGED,
        name="undo",
        why=f"What node {on.node} changed did not help: continue from before it, with the earlier settings.",
    )


def proposal_base(
    request: ProposalRequest | ErrorRequest, base: Hyperparameters, n_gpus: int
) -> ProposalBase:
    """Base that changes are relative to, with the limits of the search."""
    limits = Limits(max_model_len=request.task.max_model_len, n_train=request.task.n_train)
    return ProposalBase(hyperparameters=base, default=request.default, limits=limits, n_gpus=n_gpus)


def _tried(request: ProposalRequest, start: StartPoint, base: Hyperparameters, n_val: int) -> Tried:
    known = attempts(request, n_val)
    here = [attempt for attempt in known if attempt.source == start.resume_from]
    elsewhere = [a for a in known if a.source != start.resume_from and a.source is not None]
    if start.checkpoint is not None:
        source = known_nodes(request)[start.checkpoint.node]
        further = went_on(source, start.checkpoint.step, n_val)
        if further is not None:
            here.append(
                Attempt(
                    node=source.node,
                    source=start.resume_from,
                    base=base,
                    full=base,
                    gain=further,
                    failed=False,
                )
            )
    return Tried(
        here=tuple(here),
        elsewhere=tuple(elsewhere),
        losing=losing_rates(request, n_val),
        lowest_losing_raise=lowest_losing_raise(known),
    )


class ExpertProposer:
    """Proposer of the next phase below a node. `n_val` is the number of validation items, `n_gpus` the number
    of GPUs of a slot."""

    def __init__(self, *, n_val: int = 500, n_gpus: int = 1) -> None:
        self._n_val = n_val
        self._n_gpus = n_gpus

    def propose(self, request: ProposalRequest) -> Proposal:
        """Diagnosis, changes (empty to keep the settings), start and length. Always valid."""
        return self._fresh(request) if request.from_scratch else self._continue(request)

    def _continue(self, request: ProposalRequest) -> Proposal:
        on = _with_inherited_doubts(request)
        chance = request.task.chance or 0.0
        dynamics = observe(on.curves, on.hyperparameters, n_val=self._n_val, chance=chance)
        continued = request.path[-2] if len(request.path) >= 2 else None
        findings = diagnose(dynamics, on, continued)
        start = choose_start(findings[0], on, request.path, request.checkpoints, n_val=self._n_val)
        if request.rejected and "must be null" in request.rejected:
            start = StartPoint(checkpoint=None, reason="no checkpoint may be used here")
        base = proposal_base(request, request.base(start.resume_from), self._n_gpus)
        tried = _tried(request, start, base.hyperparameters, self._n_val)
        went_back = start.checkpoint is None or start.checkpoint.node != on.node
        unchanged = _undo(on) if went_back else UNCHANGED
        choice = choose(base, findings, tried, dynamics, request.rejected, unchanged=unchanged)
        n_steps = choose_length(choice.finding, request.task, unchanged=not choice.plan.changes)
        n_steps = affordable(request, choice.plan.full, request.on, n_steps, n_gpus=self._n_gpus)
        beside = tuple(tried_lines(tried, base.hyperparameters))
        finding = _without_room(findings[0], base) or choice.finding
        return write(request, finding.to_record(), choice.plan, start, n_steps, beside=beside)

    # --- fresh starts ---------------------------------------------------------------------------------------

    def _fresh(self, request: ProposalRequest) -> Proposal:
        """Proposal of a run from the base model that differs from earlier ones and uses the best node's
        settings."""
        base = proposal_base(request, request.default, self._n_gpus)
        best = request.best
        findings: tuple[Finding, ...] = ()
        if best is not None:
            chance = request.task.chance or 0.0
            dynamics = observe(best.curves, best.hyperparameters, n_val=self._n_val, chance=chance)
            findings = diagnose(dynamics, best, None)
        healthy = bool(findings) and findings[0].state == "healthy"
        # If training from the base model lost at some learning rate, stay with settings that gained.
        inherit = healthy or (best is not None and bool(losing_rates(request, self._n_val)))
        chosen = fresh_plan(base, request, inherit=inherit)
        diagnosis = Diagnosis(
            state=findings[0].state if findings else "unknown",
            summary=f"Fresh start number {request.n_scratch}. {_known(best, findings)}".strip(),
            evidence=findings[0].evidence if findings else (),
        )
        start = StartPoint(
            checkpoint=None, reason="a fresh start, so that the root does not anchor the whole search"
        )
        length = fresh_length(request)
        n_steps = affordable(request, chosen.full, best or request.on, length, n_gpus=self._n_gpus)
        return write(request, diagnosis, chosen, start, n_steps)


def write(
    request: ProposalRequest,
    diagnosis: Diagnosis,
    chosen: ChangePlan,
    start: StartPoint,
    n_steps: int,
    *,
    beside: Sequence[str] = (),
    agent: str = "expert",
) -> Proposal:
    """Proposal with its rationale: changes and reasons, earlier attempts, start, passes over the data, and
    hints."""
    origin = "" if start.checkpoint else "the base model: "
    parts = (
        f"{chosen.move_set.name.capitalize()}: {chosen.move_set.why}",
        *(f"{change_text(c.key, c.old, c.new)}: {c.reason}." for c in chosen.changes),
        *beside,
        f"Starts from {origin}{start.reason}.",
        passes_text(request.task, chosen.full, global_step=start.global_step, n_steps=n_steps),
        *(f'Not followed, since rules cannot read it: the hint "{hint}".' for hint in request.hints),
    )
    return Proposal(
        diagnosis=diagnosis,
        changes=chosen.changes,
        resume_from=start.resume_from,
        n_steps=n_steps,
        rationale=" ".join(parts),
        agent=agent,
    )


def _known(best: NodeView | None, findings: Sequence[Finding]) -> str:
    if best is None or best.score is None:
        return ""
    return f"Best so far is node {best.node} with {best.score:.3f}: {findings[0].summary}"


def change_text(key: str, old: object, new: object) -> str:
    """`lr 1e-3 -> 5e-4`."""
    return f"{short(key)} {format_value(key, old)} -> {format_value(key, new)}"  # type: ignore[arg-type]


def tried_lines(tried: Tried, base: Hyperparameters) -> Iterator[str]:
    """Earlier attempts from the same checkpoint, with their gains."""
    for attempt in tried.here:
        changed = diff(base, attempt.full)
        what = ", ".join(change_text(key, old, new) for key, (old, new) in list(changed.items())[:5])
        what = f"tried {what}" if what else "left the settings unchanged"
        waits = attempt.status in ("pending", "running")
        came = "not finished" if waits else attempt.status if attempt.gain is None else str(attempt.gain)
        came = "failed" if attempt.failed else f"{came}, in doubt" if attempt.doubted else came
        yield f"From the same start node {attempt.node} {what} ({came})."


def affordable(
    request: ProposalRequest, full: Hyperparameters, shown: NodeView, n_steps: int, *, n_gpus: int
) -> int:
    """Steps of a phase with configuration `full`: `n_steps`, or as many as the remaining compute and hours
    pay for, but at least one. Answers and prompts are assumed to be as long as those of `shown`. A step has
    the price that language-model requests state: tokens as compute.py charges them."""
    step = shown.step_tokens or step_tokens(shown.hyperparameters, shown.curves)
    if step is None:
        return n_steps
    planned = planned_tokens(full, 1, like=shown.hyperparameters, step=step)
    fit, budget = [float(n_steps)], request.budget
    if budget.compute is not None:
        counted = series(shown.curves, VAL_TOKENS).values
        sampled = shown.val_tokens if shown.val_tokens is not None else fmean(counted) if counted else 0.0
        validation = TokenCounts(rollout=sampled / (request.task.test_freq or n_steps), trained=0.0)
        each = amount(planned, budget.compute.cost) + amount(validation, budget.compute.cost)
        start = TokenCounts(rollout=budget.validates_start * sampled, trained=0.0)
        left = budget.compute.amount - amount(start, budget.compute.cost)
        fit += [left / each] if each > 0 else []
    timed = seconds_per_token(shown.hyperparameters, shown.curves, step)
    seconds = 0.0 if timed is None else amount(planned, timed)
    for hours, gpus in ((budget.wall_clock_hours, 1), (budget.gpu_hours, n_gpus)):
        if hours is not None and seconds > 0:
            fit.append(3600 * hours / gpus / seconds)
    return max(1, round(min(fit)))
