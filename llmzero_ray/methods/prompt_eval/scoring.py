"""Scores an answer to a recorded request by rules, without a judge model.

form        the first answer fits its schema
keys        every change names a hyper-parameter that agents may set there
values      with the changes the configuration is complete and within all bounds and couplings
start       the phase starts where it may: from a checkpoint that is offered, or from the base model
length      as long as the search allows
new         no phase with this start and this configuration exists
direction   proposals: what the diagnosis says is not contradicted by the changes (not looser after
            `declining` or `collapsing`, not tighter after `slow`); verdicts: no phase is stopped that
            would have won, and none goes on that would have lost, as far as that is known
moves       of the changed hyper-parameters for which a better direction is known, more go there than not
statements  what the evidence says of a metric (`actor/kl_loss 0.02 -> 0.31`) is in its series
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from llmzero_ray.agents.expert.diagnosis import direction, loosened_and_tightened
from llmzero_ray.agents.llm.proposal_response import bounds_of
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.records import Hyperparameters, Proposal, StopDecision
from llmzero_ray.records.agents import ErrorRequest, NodeView, ProposalRequest, StopRequest
from llmzero_ray.records.metrics import Curves

CHECKS = ("form", "keys", "values", "start", "length", "new", "direction", "moves", "statements")
_HELD = ("declining", "collapsing")
"""Diagnoses after which a phase must not take larger steps."""
_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_PAIR = re.compile(rf"({_NUMBER})\s*(?:->|→|to)\s*({_NUMBER})")
_NAME = re.compile(r"[a-z][\w-]*(?:/[\w@.-]+)+")
_TOLERANCE = 0.06
"""Relative: two significant digits of a value between two that are logged."""
_WIDEST_MEAN = 10


def proposal_checks(
    request: ProposalRequest | ErrorRequest,
    proposal: Proposal,
    *,
    n_gpus: int,
    better: Mapping[str, int] | None = None,
) -> dict[str, bool]:
    """Check -> whether the proposal passes it; without those that do not apply.

    `better`: hyper-parameter -> 1 or -1, the direction that is known to be better there.
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
        for view in _others(request)
    )
    base = bounds.base(proposal.resume_from)
    return {**found, **_direction(proposal, base, full), **_moves(base, full, better or {})}


def verdict_checks(decision: StopDecision, wins: bool | None) -> dict[str, bool]:
    """`direction`: whether the verdict agrees with how the phase ended, had it run on."""
    return {} if wins is None else {"direction": decision.stop != wins}


def statements(request: ProposalRequest | ErrorRequest | StopRequest, said: Iterable[str]) -> Iterator[bool]:
    """Whether each statement on a metric that names two of its values is in the series; sentences without
    such a statement are left out."""
    curves = _curves(request)
    for sentence in said:
        for name, first, last in _claims(sentence):
            for one in curves:
                if name in one.metrics:
                    yield _goes(_points(one.metrics[name]), first, last)
                    break
                if name == "validation" and one.val_scores:
                    yield _goes(_points([one.start_score, *one.val_scores]), first, last)
                    break


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


def _others(request: ProposalRequest | ErrorRequest) -> tuple[NodeView, ...]:
    if isinstance(request, ErrorRequest):
        return request.chain
    return (*request.path, *request.siblings, *request.tree)


def _direction(proposal: Proposal, base: Hyperparameters, full: Hyperparameters) -> dict[str, bool]:
    loosened, tightened = loosened_and_tightened(base, full)
    if proposal.diagnosis.state in _HELD:
        return {"direction": loosened <= tightened}
    return {"direction": tightened <= loosened} if proposal.diagnosis.state == "slow" else {}


def _moves(base: Hyperparameters, full: Hyperparameters, better: Mapping[str, int]) -> dict[str, bool]:
    """Whether more changes follow the better direction than oppose it. Empty if no better direction is
    known."""
    signs = [sign * direction(base, full, key) for key, sign in better.items()]
    right, wrong = signs.count(1), signs.count(-1)
    return {"moves": right > wrong} if right + wrong else {}


def _curves(request: ProposalRequest | ErrorRequest | StopRequest) -> tuple[Curves, ...]:
    match request:
        case ProposalRequest():
            return tuple(view.curves for view in (request.on, *reversed(request.path), *request.siblings))
        case ErrorRequest():
            return tuple(view.curves for view in reversed(request.chain))
    return (request.running.curves, request.incumbent.curves)


def _claims(sentence: str) -> Iterator[tuple[str, float, float]]:
    """(metric, first value, last value): each pair of numbers belongs to the name before it."""
    names = [(match.start(), match[0]) for match in _NAME.finditer(sentence)]
    names += [(match.start(), "validation") for match in re.finditer("validation", sentence, re.IGNORECASE)]
    for pair in _PAIR.finditer(sentence):
        before = [name for place, name in sorted(names) if place < pair.start()]
        if before and not re.search(r"steps?\s*$", sentence[: pair.start()], re.IGNORECASE):
            yield before[-1], float(pair[1]), float(pair[2])


def _points(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _goes(values: list[float], first: float, last: float) -> bool:
    """Whether a series, or its mean over up to ten steps, has the first value and later the last."""
    widest = min(_WIDEST_MEAN, max(1, len(values) // 2))
    for width in range(1, widest + 1):
        means = [fmean(values[place : place + width]) for place in range(len(values) - width + 1)]
        begins = next((place for place, mean in enumerate(means) if _is(mean, first)), None)
        if begins is not None and any(_is(mean, last) for mean in means[begins:]):
            return True
    return False


def _is(value: float, said: float) -> bool:
    return abs(value - said) <= max(_TOLERANCE * abs(value), 5e-4 if abs(said) < 1 else 0.0)
