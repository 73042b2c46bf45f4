"""Local search in any space: valid, new, deterministic, and along what gained."""

from __future__ import annotations

from typing import Any

import pytest

from llmzero_ray.hyperparameters import Parameter, Space
from llmzero_ray.records import PhaseFailure, Proposal, ResumeFrom
from llmzero_ray.records.agents import NodeView, OfferedCheckpoint, ProposalRequest, TaskView
from llmzero_ray.records.metrics import Curves
from llmzero_ray.tune.any_space import AnySpaceProposer, best_start

SPACE = Space(
    trainer="toy",
    parameters=(
        Parameter(
            key="lr", alias="lr", kind="float", low=1e-5, high=1.0, scale="log", default=0.01, doc="",
            group="optimisation",
        ),
        Parameter(
            key="width", alias="width", kind="int", low=1, high=64, default=8, doc="", group="optimisation"
        ),
        Parameter(
            key="kind", alias="kind", kind="choice", choices=("a", "b"), default="a", doc="",
            group="optimisation",
        ),
    ),
)  # fmt: skip
ROOT = SPACE.defaults()
TASK = TaskView(name="x", n_train=0, phase_steps=4, max_phase_steps=100, max_model_len=0, max_prompt_length=0)


def view(node: int, score: float | None, start: float | None = None, **given: Any) -> NodeView:
    values: dict[str, Any] = {
        "kind": "evolve",
        "status": "completed",
        "hyperparameters": ROOT,
        "n_steps": 4,
        "base_step": 0,
        "score": score,
        "curves": Curves(start_score=start),
    }
    return NodeView(node=node, **{**values, **given})


def request(*others: NodeView, on: NodeView | None = None, **given: Any) -> ProposalRequest:
    root = view(0, 0.5, kind="root")
    values: dict[str, Any] = {
        "task": TASK,
        "on": on or root,
        "path": (root,),
        "siblings": (),
        "best": root,
        "default": ROOT,
        "checkpoints": (
            OfferedCheckpoint(node=0, step=2, global_step=2, val_score=0.5),
            OfferedCheckpoint(node=0, step=4, global_step=4, val_score=0.4),
        ),
        "from_scratch": False,
        "node": 9,
        "tree": (root, *others),
    }
    return ProposalRequest(**{**values, **given})


def configuration(proposal: Proposal, base: Any = ROOT) -> dict[str, Any]:
    return SPACE.complete(base, {change.key: change.new for change in proposal.changes})


def test_it_starts_from_the_best_start_and_every_proposal_is_valid_and_new() -> None:
    known: list[NodeView] = []
    for node in range(1, 40):
        proposal = AnySpaceProposer(SPACE).propose(request(*known, node=node))
        assert proposal.resume_from == ResumeFrom(node=0, step=2) and proposal.changes
        full = configuration(proposal)
        assert all(full != other.hyperparameters for other in known)
        known.append(view(node, 0.6, 0.5, hyperparameters=full, resume_from=proposal.resume_from, parent=0))


def test_the_same_request_gives_the_same_proposal() -> None:
    assert AnySpaceProposer(SPACE).propose(request()) == AnySpaceProposer(SPACE).propose(request())


def test_a_fresh_start_resumes_nothing() -> None:
    proposal = AnySpaceProposer(SPACE).propose(request(from_scratch=True))
    assert proposal.resume_from is None and configuration(proposal) != ROOT


def test_a_failed_change_is_taken_back_by_half_then_whole() -> None:
    failure = PhaseFailure(node=1, failure_class="engine", cause="diverged", log_tail="")
    at = ResumeFrom(node=0, step=2)
    failed = view(
        1, None, status="failed", failure=failure, hyperparameters={**ROOT, "lr": 0.16}, resume_from=at,
        parent=0,
    )  # fmt: skip
    first = AnySpaceProposer(SPACE).propose(request(failed, on=failed))
    assert first.resume_from == at
    repaired = configuration(first, failed.hyperparameters)
    assert repaired["lr"] == pytest.approx(0.04)
    second = view(
        2, None, status="failed", failure=failure, kind="debug", hyperparameters=repaired, resume_from=at,
        parent=1,
    )  # fmt: skip
    again = AnySpaceProposer(SPACE).propose(request(failed, second, on=second))
    assert configuration(again, repaired) == ROOT


def test_a_failed_root_is_repeated_then_every_number_falls() -> None:
    failure = PhaseFailure(node=0, failure_class="engine", cause="lost", log_tail="")
    root = view(0, None, kind="root", status="failed", failure=failure)
    first = AnySpaceProposer(SPACE).propose(request(on=root, checkpoints=(), tree=(root,)))
    assert first.changes == () and first.resume_from is None
    second = view(1, None, kind="debug", status="failed", failure=failure, parent=0)
    again = AnySpaceProposer(SPACE).propose(request(on=second, checkpoints=(), tree=(root, second)))
    full = configuration(again)
    assert float(str(full["lr"])) < 0.01 and int(str(full["width"])) < 8


def test_a_second_repair_of_a_failed_root_is_not_the_first_one_again() -> None:
    failure = PhaseFailure(node=0, failure_class="engine", cause="lost", log_tail="")
    root = view(0, None, kind="root", status="failed", failure=failure)
    repair = view(1, None, kind="debug", status="failed", failure=failure, parent=0)
    proposal = AnySpaceProposer(SPACE).propose(
        request(repair, on=root, checkpoints=(), tree=(root, repair), siblings=(repair,))
    )
    assert float(str(configuration(proposal)["lr"])) < 0.01


def test_without_scores_the_last_checkpoint_is_taken() -> None:
    offered = [OfferedCheckpoint(node=0, step=s, global_step=s, val_score=None) for s in (1, 2)]
    assert best_start(offered) == ResumeFrom(node=0, step=2) and best_start([]) is None
