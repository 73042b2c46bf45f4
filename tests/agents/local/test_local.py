"""The local search as a proposer: candidates, races, the best node's settings, and the hybrid with a
diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.base import Budget, NodeView, ProposalRequest
from llmzero_ray.agents.expert import ExpertProposer
from llmzero_ray.agents.local import HybridProposer, LocalProposer
from llmzero_ray.agents.local.levers import LEVERS, live_levers
from llmzero_ray.hyperparameters.table import LR, TEMPERATURE
from llmzero_ray.metrics import Curves
from llmzero_ray.records import Change, Diagnosis, Hyperparameters, Proposal, ResumeFrom
from tests.agents import curves as c
from tests.agents.expert.test_properties import LIMITS, TASK, nodes, offered, steps_saved

LOCAL = LocalProposer(n_val=512)


def request(on: NodeView, **more: Any) -> ProposalRequest:
    values: dict[str, Any] = {
        "task": c.TASK, "on": on, "path": (on,), "siblings": (), "best": on, "default": c.TINY,
        "checkpoints": c.checkpoints(on), "from_scratch": False, "node": 5, "budget": Budget(runs=6),
    }  # fmt: skip
    return ProposalRequest(**{**values, **more})


def full_of(asked: ProposalRequest, proposal: Proposal) -> dict[str, Any]:
    changes = {change.key: change.new for change in proposal.changes}
    return hp.complete(asked.base(proposal.resume_from), changes, limits=hp.Limits(max_model_len=104))


def child(asked: ProposalRequest, proposal: Proposal, node: int) -> NodeView:
    return c.node(
        Curves(), full_of(asked, proposal), node=node, kind="evolve", n_steps=proposal.n_steps,
        resume_from=proposal.resume_from,
    )  # fmt: skip


@given(
    on=nodes(number=3),
    parent=nodes(number=1),
    saved=steps_saved,
    fresh=st.booleans(),
    seed=st.integers(1, 50),
)
def test_any_local_proposal_is_valid_and_moves_live_levers_only(
    on: NodeView, parent: NodeView, saved: list[int], fresh: bool, seed: int
) -> None:
    asked = ProposalRequest(
        task=TASK, on=on, path=(parent, on), siblings=(), best=parent, default=parent.hyperparameters,
        checkpoints=() if fresh else offered(on, saved), from_scratch=fresh, node=seed, n_scratch=1,
    )  # fmt: skip
    proposal = LocalProposer(n_val=200, slots=2, seed=seed).propose(asked)
    base = asked.base(proposal.resume_from)
    full = hp.complete(base, {change.key: change.new for change in proposal.changes}, limits=LIMITS)
    assert {change.key for change in proposal.changes} <= {lever.key for lever in live_levers(base)}
    assert all(change.old == base[change.key] != change.new for change in proposal.changes)
    assert 1 <= proposal.n_steps <= TASK.max_phase_steps
    assert proposal.resume_from is None or proposal.resume_from.step in saved
    assert full
    assert LocalProposer(n_val=200, slots=2, seed=seed).propose(asked) == proposal


def test_no_phase_is_proposed_twice() -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    siblings: list[NodeView] = []
    for number in range(8):
        asked = request(on, siblings=tuple(siblings), node=10 + number)
        proposal = LOCAL.propose(asked)
        assert full_of(asked, proposal) not in [dict(sibling.hyperparameters) for sibling in siblings]
        siblings.append(child(asked, proposal, 10 + number))


def test_a_race_is_two_short_phases_in_opposite_directions_and_the_better_one_goes_on() -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    asked = request(on, node=10)
    first = LOCAL.propose(asked)
    assert first.changes
    assert first.n_steps == 10  # half of a usual phase

    one = child(asked, first, 10)
    asked = request(on, siblings=(one,), node=11)
    second = LOCAL.propose(asked)
    assert (second.resume_from, second.n_steps) == (first.resume_from, 10)
    assert "node 10 tries the other direction" in second.rationale
    for lever in live_levers(c.TINY):
        there, back = (lever.moved(c.TINY, full) for full in (one.hyperparameters, full_of(asked, second)))
        assert there * back <= 0

    def ran(view: NodeView, *scores: float) -> NodeView:
        reward, kl = c.line(0.5, 0.55, 10, 0.05), c.line(0.2, 0.25, 10)
        found = c.curves(10, start=0.72, val={5: scores[0], 10: scores[1]}, reward=reward, kl=kl)
        return replace(view, curves=found, score=max(scores))

    two = ran(child(asked, second, 11), 0.70, 0.69)
    won = ran(one, 0.74, 0.76)
    third = LOCAL.propose(request(won, path=(on, won), tree=(two,), node=12, checkpoints=c.checkpoints(won)))
    assert third.resume_from == ResumeFrom(node=10, step=10)
    assert third.changes == ()
    assert third.n_steps == 30


@pytest.mark.parametrize(("race", "left"), [(1.0, 6), (0.5, 1)])
def test_there_is_no_race_where_it_is_off_or_too_few_runs_are_left(race: float, left: int) -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    proposal = LocalProposer(n_val=512, race=race).propose(request(on, budget=Budget(runs=left)))
    assert proposal.n_steps >= 20


def test_what_gained_is_done_again_and_further_and_what_lost_is_reversed() -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)

    def rates(*scores: float) -> list[float]:
        found = c.curves(20, start=0.72, val={10: scores[0], 20: scores[1]}, reward=c.line(0.5, 0.6, 20))
        other = c.node(found, hp.complete(c.TINY, {"lr": 5e-4}), node=4, kind="evolve",
                       resume_from=ResumeFrom(node=3, step=20))  # fmt: skip
        proposals = [
            LocalProposer(n_val=512, seed=seed, race=1.0).propose(request(on, tree=(other,)))
            for seed in range(1, 31)
        ]
        return [float(str(full_of(request(on), one)[LR])) for one in proposals]

    lower, higher = rates(0.85, 0.9), rates(0.5, 0.4)
    assert sum(rate < 1e-3 for rate in lower) > 3 * sum(rate > 1e-3 for rate in lower)
    assert sum(rate > 1e-3 for rate in higher) > sum(rate < 1e-3 for rate in higher)


def test_settings_of_the_best_node_are_a_candidate_where_several_slots_train() -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    best = c.node(c.csum_steady(), hp.complete(c.TINY, {"lr": 2.5e-4, "temperature": 0.7}), node=9)

    def exploits(slots: int) -> int:
        made = [
            LocalProposer(n_val=512, seed=seed, slots=slots, race=1.0).propose(request(on, best=best))
            for seed in range(1, 31)
        ]
        return sum("Node 9 scores best" in proposal.rationale for proposal in made)

    assert exploits(1) == 0
    assert exploits(2) > 0


def test_fresh_starts_are_shaken_settings_of_the_best_node() -> None:
    best = c.node(c.csum_steady(), hp.complete(c.TINY, {"lr": 2.5e-4}), node=5, base_step=10)
    asked = request(best, from_scratch=True, checkpoints=(), n_scratch=1)
    proposal = LOCAL.propose(asked)
    assert proposal.resume_from is None
    assert 1e-4 < float(str(full_of(asked, proposal)[LR])) < 6e-4
    assert proposal.n_steps == 30  # as long as the best path


class Guide:
    """A diagnosis that always says the same."""

    def __init__(self, changes: Hyperparameters, step: int = 20) -> None:
        self._changes, self._step = changes, step
        self.asked: list[int | None] = []

    def propose(self, request: ProposalRequest) -> Proposal:
        self.asked.append(request.node)
        start = ResumeFrom(node=request.on.node, step=self._step)
        base = request.base(start)
        return Proposal(
            diagnosis=Diagnosis(state="plateau", summary="It is flat."),
            changes=tuple(
                Change(key=key, old=base[key], new=new, reason="because")
                for key, new in self._changes.items()
            ),
            resume_from=start,
            n_steps=13,
            total_epochs=None,
            rationale="Flat.",
            agent="guide",
        )


def test_the_diagnosis_gives_direction_start_and_length_and_the_local_search_the_distance() -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    guide = Guide({LR: 1e-5, "actor_rollout_ref.actor.optim.weight_decay": 0.1})
    proposal = HybridProposer(LOCAL, guide, share=1.0, seed=1).propose(request(on))
    new = {change.key: change.new for change in proposal.changes}
    assert new[LR] == 5e-4  # down, by the first step
    assert new["actor_rollout_ref.actor.optim.weight_decay"] == 0.1
    assert (proposal.resume_from, proposal.n_steps) == (ResumeFrom(node=3, step=20), 13)
    assert (proposal.diagnosis.summary, proposal.agent) == ("It is flat.", "hybrid")


@pytest.mark.parametrize("changes", [{}, {"actor_rollout_ref.actor.optim.weight_decay": 0.1}])
def test_a_guide_that_moves_no_lever_is_followed_as_it_is(changes: Hyperparameters) -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    guide = Guide(changes)
    assert HybridProposer(LOCAL, guide, share=1.0, seed=1).propose(request(on)) == guide.propose(request(on))


def test_the_share_of_guided_nodes_is_kept_and_follows_from_seed_and_number() -> None:
    hybrid = HybridProposer(LOCAL, ExpertProposer(), share=0.3, seed=7)
    guided = [node for node in range(400) if hybrid.guides(node)]
    assert 90 < len(guided) < 150
    assert guided == [node for node in range(400) if hybrid.guides(node)]
    assert not any(HybridProposer(LOCAL, ExpertProposer(), share=0.0, seed=7).guides(n) for n in range(50))
    on, guide = c.node(c.csum_swinging(), c.TINY, node=3), Guide({TEMPERATURE: 0.8})
    for node in range(20):
        HybridProposer(LOCAL, guide, share=0.3, seed=7).propose(request(on, node=node))
    assert guide.asked == [node for node in guided if node < 20]


def test_every_lever_is_a_known_hyperparameter_that_a_proposal_may_change() -> None:
    for lever in LEVERS:
        assert hp.forbidden(lever.key) is None
        assert lever.coordinate(hp.BY_KEY[lever.key].default) is not None
