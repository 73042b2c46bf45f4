"""Scores an answer to a recorded request by rules, without a judge model.

form        the first answer fits its schema
keys        every change names a hyper-parameter that agents may set there
values      with the changes, the configuration is complete and within all bounds and couplings
start       the phase starts from an offered checkpoint or from the base model
length      the number of steps is within the search's limit
new         no phase with this start and this configuration exists
direction   verdicts: a phase that would have won continues, one that would have lost is stopped
moves       of the changes for which a better direction is known, more follow it than oppose it
substance   every change has a reason, and the evidence (of a verdict: the reason) names a number or metric
            from the request, or quotes it; an answer that says nothing fails
statements  statements on a metric (`actor/kl_loss 0.02 -> 0.31`) agree with its series or the request
            (llmzero_ray/report/audit.py)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from llmzero_ray.agents.llm.proposal_response import bounds_of
from llmzero_ray.dynamics.diagnosis import direction
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.records import Hyperparameters, Proposal, StopDecision
from llmzero_ray.records.agents import ErrorRequest, NodeView, ProposalRequest, StopRequest
from llmzero_ray.report.audit import Statement, statements

CHECKS = (
    "form", "keys", "values", "start", "length", "new", "direction", "moves", "substance", "statements",
)  # fmt: skip
_NAMED = re.compile(r"\w*\.\d+|\d{2,}|\w+(?:[/_]\w+)+|\w+Error\b")
"""Pattern of a number, a metric or an exception."""


def proposal_checks(
    request: ProposalRequest | ErrorRequest,
    proposal: Proposal,
    *,
    n_gpus: int,
    better: Mapping[str, int] | None = None,
) -> dict[str, bool]:
    """Check -> whether the proposal passes it. Checks that do not apply are missing.

    `better`: hyper-parameter -> 1 or -1, the direction that is known to be better.
    """
    bounds = bounds_of(request, n_gpus)
    found = {
        "keys": _keys_may_be_set(proposal),
        "values": True,
        "start": _starts_where_it_may(request, proposal),
        "length": 1 <= proposal.n_steps <= request.task.max_phase_steps,
    }
    try:
        for change in proposal.changes:
            if VERL_SPACE.bounds(key := VERL_SPACE.canonical(change.key)) is not None:
                VERL_SPACE.proposed(key, change.new)
        full = bounds.full(proposal.changes, proposal.resume_from)
    except HyperparameterError:
        return {**found, "values": False}
    found["new"] = not any(
        view.resume_from == proposal.resume_from and dict(view.hyperparameters) == dict(full)
        for view in _views(request)
    )
    base = bounds.base(proposal.resume_from)
    return {**found, **_moves(base, full, better or {})}


def verdict_checks(decision: StopDecision, wins: bool | None) -> dict[str, bool]:
    """`direction`: whether the verdict agrees with how the phase ended when it was not stopped."""
    return {} if wins is None else {"direction": decision.stop != wins}


def substance(answer: Proposal | StopDecision, printed: str) -> dict[str, bool]:
    """`substance`: whether an answer says anything about its request, whose text is `printed`."""
    reasons = [change.reason for change in answer.changes] if isinstance(answer, Proposal) else []
    named = [name for said in _said(answer) for name in _NAMED.findall(said)]
    quotes = [quote for said in _said(answer) if " " in (quote := said.strip())]
    grounded = any(words in printed for words in (*named, *quotes))
    return {"substance": grounded and all(reason.strip() for reason in reasons)}


def answer_statements(
    request: ProposalRequest | ErrorRequest | StopRequest, answer: Proposal | StopDecision, printed: str
) -> Iterator[Statement]:
    """Statements of an answer on metrics, checked against the request's series and its text `printed`."""
    views = _views(request)
    curves = {view.node: view.curves for view in reversed(views)}
    summary = (answer.diagnosis.summary,) if isinstance(answer, Proposal) else ()
    return statements((*summary, *_said(answer)), curves, views[0].node, printed)


# --- parts --------------------------------------------------------------------------------------------------


def _keys_may_be_set(proposal: Proposal) -> bool:
    for change in proposal.changes:
        try:
            key = VERL_SPACE.canonical(change.key)
        except HyperparameterError:
            return False
        kept = proposal.resume_from is not None and key in VERL_SPACE.kept_at_resume
        if VERL_SPACE.forbidden(key) is not None or kept:
            return False
    return True


def _starts_where_it_may(request: ProposalRequest | ErrorRequest, proposal: Proposal) -> bool:
    if proposal.resume_from is None:
        return True
    from_scratch = isinstance(request, ProposalRequest) and request.from_scratch
    wanted = (proposal.resume_from.node, proposal.resume_from.step)
    return not from_scratch and wanted in {(c.node, c.step) for c in request.checkpoints}


def _said(answer: Proposal | StopDecision) -> tuple[str, ...]:
    return answer.diagnosis.evidence if isinstance(answer, Proposal) else (answer.reason,)


def _views(request: ProposalRequest | ErrorRequest | StopRequest) -> tuple[NodeView, ...]:
    """All nodes that a request shows, the judged one first."""
    match request:
        case ProposalRequest():
            return (request.on, *request.path, *request.siblings, *request.tree)
        case ErrorRequest():
            return (request.failed, *request.chain)
    return (request.running, request.incumbent, *request.incumbent_chain)


def _moves(base: Hyperparameters, full: Hyperparameters, better: Mapping[str, int]) -> dict[str, bool]:
    """Whether more changes follow the better direction than oppose it. Empty if no better direction is
    known."""
    signs = [sign * direction(base, full, key) for key, sign in better.items()]
    right, wrong = signs.count(1), signs.count(-1)
    return {"moves": right > wrong} if right + wrong else {}
