"""From a proposal to a phase's plan: checks of its rules and memory, its price, and a person's approval.

With `agents.approve`, `ApprovalAsked` makes a proposal wait. `ApprovalAnswered` ends the wait: a person
accepts, edits or refuses it, or the deadline accepts it. Everything that an agent proposes waits:
continuations, forced fresh starts and fixes of failed phases. These do not wait: the root, the default
recipe, runs of a method that plans them, clones, and continuations without a usable proposal.

Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from llmzero_ray.coordinator.plan import MAX_REFUSALS, Planned
from llmzero_ray.coordinator.price import price_text
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.errors import ProposalError
from llmzero_ray.hyperparameters import format_value, short
from llmzero_ray.records import Change, PhaseSpec, Proposal
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.utils.text import one_line


def towards_plan(state: SearchState, run: PhaseRun) -> Command | None:
    """Next command towards a new run's spec: ask an agent, ask a person, refuse the proposal, or plan. None
    while a person is asked."""
    if run.kind == "root" and not run.plan:
        return _record_plan(run, state.planner.root_phase(), None, "")
    if run.no_answer is not None or run.tries >= (MAX_REFUSALS if run.clone is None else 1):
        why = run.no_answer or f"{run.tries} proposals were refused, the last one: {run.rejected}"
        continued = state.planner.fallback(run, state.offered(run.node))
        return _record_plan(run, continued.spec, None, f"{why}. {continued.note}")
    if run.answer is not None:
        return _judge(state, run, run.answer)
    # A planned root is proposed like a run from scratch. It refers to itself, because no other node exists.
    on = run.node if run.on is None else run.on
    ask_id, rejected = f"propose-{run.node}-{run.tries}" + "-again" * run.revived, run.rejected
    if run.kind == "debug":
        return cmd.Analyze(id=ask_id, node=run.node, on=on, rejected=rejected, tries=run.tries)
    scratch = run.kind in ("root", "scratch")
    return cmd.Propose(
        id=ask_id, node=run.node, on=on, from_scratch=scratch, rejected=rejected, tries=run.tries
    )


def _judge(state: SearchState, run: PhaseRun, proposal: Proposal) -> Command | None:
    """Command to refuse a proposal, ask a person about it, or plan it. None while a person is asked."""
    answer = run.approval
    if answer is not None and not answer.accepted:
        why = _because(answer) or ", without a reason; propose another phase"
        return _refuse(run, f"the person who runs this search refused it{why}")
    try:
        planned = checked_phase(state, run, proposal)
    except ProposalError as error:
        return _refuse(run, str(error))
    if answer is None and run.clone is None and not run.plan:
        if (recorded := _recorded_answer(state, run)) is not None:
            return cmd.Record.of(f"approval-{run.node}-{run.tries}", recorded)
        if state.config.agents.approve and state.config.agents.backend != "recorded":
            if run.asked is not None:
                return None
            price = price_text(state, run, planned.spec)
            asked = ev.ApprovalAsked(node=run.node, tries=run.tries, spec=planned.spec, price=price)
            return cmd.Record.of(f"ask-{run.node}-{run.tries}", asked)
    note = planned.note
    if answer is not None and answer.edits:
        note = "; ".join(filter(None, (note, f"edited by a person{_because(answer)}")))
    return _record_plan(run, planned.spec, proposal, note)


def checked_phase(state: SearchState, run: PhaseRun, proposal: Proposal) -> Planned:
    """Phase of a proposal, checked against the rules and the GPU memory.

    Raises:
        ProposalError: it breaks a rule or does not fit; the message says what is allowed.
    """
    planned = state.planner.proposed_phase(run, proposal, state.offered(run.node))
    _check_memory(state, run, planned.spec)
    return planned


def _refuse(run: PhaseRun, message: str) -> Command:
    tries = run.tries + 1
    refused = ev.ProposalRefused(node=run.node, message=message, tries=tries)
    return cmd.Record.of(f"refuse-{run.node}-{tries}", refused)


def _check_memory(state: SearchState, run: PhaseRun, spec: PhaseSpec) -> None:
    """Check that an agent's phase fits into GPU memory. A fix of a failed phase only has to need less than
    that phase.

    Raises:
        ProposalError: it does not fit; the message says what is too large, why, and what would help.
    """
    if state.memory is None or run.clone is not None:
        return
    repairs = state.planner.hyperparameters_of(run.on) if run.kind == "debug" and run.on is not None else None
    problem = state.memory.problem(
        spec.hyperparameters, before=state.planner.base_of(run, spec.resume_from), repairs=repairs
    )
    if problem:
        raise ProposalError(problem)


def _record_plan(run: PhaseRun, spec: PhaseSpec, proposal: Proposal | None, note: str) -> Command:
    planned = ev.PhasePlanned(node=run.node, slot=run.slot, spec=spec, proposal=proposal, note=note)
    return cmd.Record.of(f"plan-{run.node}", planned)


# --- approval -----------------------------------------------------------------------------------------------


def waiting(state: SearchState) -> list[PhaseRun]:
    """Runs whose proposals wait for a person."""
    return [run for run in state.runs.values() if run.stage == "proposing" and run.waits]


def deadline(state: SearchState, asked: ev.ApprovalAsked) -> float | None:
    """Unix seconds at which a proposal that waits is accepted. None if it waits indefinitely."""
    hours = state.config.agents.approve_hours
    return None if hours is None else asked.time + hours * 3600


def unanswered(state: SearchState, now: float) -> Iterator[ev.ApprovalAnswered]:
    """Event that accepts the proposal, for each one whose deadline has passed."""
    for run in waiting(state):
        asked = run.asked
        until = None if asked is None else deadline(state, asked)
        if until is not None and now >= until:
            yield ev.ApprovalAnswered(
                node=run.node,
                tries=run.tries,
                accepted=True,
                reason=f"nobody answered within {state.config.agents.approve_hours:g} hours",
                source=f"timer:approval:{run.node}:{run.tries}",
            )


def answer_problem(state: SearchState, answer: ev.ApprovalAnswered) -> str | None:
    """Reason why a person's answer to a proposal cannot be used, or None if it can."""
    run = state.runs.get(answer.node)
    if run is None or run.stage != "proposing" or not run.waits or run.answer is None:
        others = ", ".join(str(one.node) for one in waiting(state))
        found = (
            "unknown" if run is None else "still being proposed" if run.stage == "proposing" else run.status
        )
        which = f"these wait for approval: {others}" if others else "no proposal waits for approval"
        return f"node {answer.node} is {found}; {which}."
    if answer.tries != run.tries:
        return f"node {answer.node} has another proposal by now; look at it before you answer."
    if not answer.accepted:
        return "a refusal changes nothing; leave out --refuse to train with them." if answer.edits else None
    try:
        checked_phase(state, run, edited(state, run.answer, answer))
    except ProposalError as error:
        return str(error)
    return None


def apply_answer(state: SearchState, answer: ev.ApprovalAnswered) -> None:
    """Store a person's answer with its run. Refusals and edits are also shown to the proposer later."""
    run = state.runs.get(answer.node)
    if run is None or run.answer is None or run.tries != answer.tries or run.approval is not None:
        return
    if answer.edits or not answer.accepted:
        said = ", ".join(_values(run.answer.changes)) or "no change"
        did = f"was edited to {edits_text(answer)}" if answer.accepted else "was refused"
        state.approvals.append(f"The proposal of node {run.node} ({said}) {did}{_because(answer)}")
    run.approval, run.answer = answer, edited(state, run.answer, answer)


def edited(state: SearchState, proposal: Proposal, answer: ev.ApprovalAnswered) -> Proposal:
    """The proposal with a person's edits."""
    space = state.planner.space
    before = state.planner.base_of(state.runs[answer.node], proposal.resume_from)
    why = f"a person's edit{_because(answer)}"
    kept = [change for change in proposal.changes if space.canonical(change.key) not in answer.changes]
    own = [Change(key=key, old=before.get(key), new=new, reason=why) for key, new in answer.changes.items()]
    n_steps = proposal.n_steps if answer.n_steps is None else answer.n_steps
    return dataclasses.replace(proposal, changes=(*kept, *own), n_steps=n_steps)


def edits_text(answer: ev.ApprovalAnswered) -> str:
    """A person's edits as text: `lr = 5e-4, 20 steps`. Empty if there are none."""
    values = [f"{short(key)} = {format_value(key, value)}" for key, value in answer.changes.items()]
    return ", ".join(values + ([] if answer.n_steps is None else [f"{answer.n_steps} steps"]))


def _values(changes: tuple[Change, ...]) -> Iterator[str]:
    return (f"{short(change.key)} = {format_value(change.key, change.new)}" for change in changes)


def _because(answer: ev.ApprovalAnswered) -> str:
    return f": {one_line(answer.reason, None)}" if answer.reason else ""


def _recorded_answer(state: SearchState, run: PhaseRun) -> ev.ApprovalAnswered | None:
    """Answer that a person gave to this proposal in the recorded search that this one repeats."""
    facts: Mapping[str, Any] = {} if state.started is None else state.started.agents
    found = facts.get("approvals", {}).get(f"{run.node}-{run.tries}")
    return None if found is None else ev.ApprovalAnswered(node=run.node, tries=run.tries, **found)
