"""The offline proposer: diagnosis, coordinated changes, checkpoint and epochs, siblings, refusals, fresh
starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.expert.apply_moves import signature
from llmzero_ray.agents.expert.choice import overlap
from llmzero_ray.agents.expert.proposer import ExpertProposer
from llmzero_ray.hyperparameters.compute import amount, planned_tokens
from llmzero_ray.hyperparameters.verl_keys import (
    CLIP_HIGH,
    KL_LOSS_COEF,
    LORA_RANK,
    LR,
    MAX_RESPONSE,
    ROLLOUT_N,
    TEMPERATURE,
)
from llmzero_ray.records import (
    ComputeLimit,
    Hyperparameters,
    HyperparameterValue,
    Proposal,
    ResumeFrom,
    TokenCost,
    TokenCounts,
)
from llmzero_ray.records.agents import (
    Budget,
    NodeView,
    OfferedCheckpoint,
    ProposalRequest,
    Proposer,
    TaskView,
)
from llmzero_ray.records.metrics import STEP_TIME, Curves
from tests.agents import curves as c

PROPOSER: Proposer = ExpertProposer(n_val=512)


def request(on: NodeView, **more: Any) -> ProposalRequest:
    """A request to continue `on`, with checkpoints every 10 steps of the whole path."""
    path: Sequence[NodeView] = more.get("path", (on,))
    big = on.hyperparameters[LORA_RANK] == c.PRACTITIONER[LORA_RANK]
    values: dict[str, Any] = {
        "task": c.BIG_TASK if big else c.TASK,
        "on": on,
        "path": path,
        "siblings": (),
        "best": on,
        "default": path[0].hyperparameters,
        "checkpoints": tuple(saved for view in path for saved in c.checkpoints(view)),
        "from_scratch": False,
    }
    return ProposalRequest(**{**values, **more})


def outcome(
    proposal_request: ProposalRequest, proposal: Proposal, base: Hyperparameters | None = None
) -> dict[str, Any]:
    """The configuration that a proposal leads to, as the coordinator builds it."""
    limits = hp.Limits(
        max_model_len=proposal_request.task.max_model_len, n_train=proposal_request.task.n_train
    )
    changes = {change.key: change.new for change in proposal.changes}
    return hp.complete(base or proposal_request.base(proposal.resume_from), changes, limits=limits)


def changed(proposal: Proposal) -> dict[str, HyperparameterValue]:
    return {change.key: change.new for change in proposal.changes}


def child(proposal_request: ProposalRequest, proposal: Proposal, node: int, **more: Any) -> NodeView:
    """The node that a proposal led to, without a result unless one is given."""
    values: dict[str, Any] = {
        "found": Curves(),
        "resume_from": proposal.resume_from,
        "kind": "evolve",
        **more,
    }
    return c.node(hyperparameters=outcome(proposal_request, proposal), node=node, **values)


# --- what is left -----------------------------------------------------------------------------------------


COST = TokenCost(rollout=1.0, trained=0.5)


@pytest.mark.parametrize("from_scratch", [False, True])
@pytest.mark.parametrize("steps_left", [0.2, 4.0, 1000.0])
def test_no_phase_is_longer_than_the_compute_that_is_left(from_scratch: bool, steps_left: float) -> None:
    """A step of the shown phase is 300 sampled and 600 trained tokens."""
    on = replace(c.node(c.csum_steady(), c.TINY), step_tokens=TokenCounts(rollout=300.0, trained=600.0))
    free = PROPOSER.propose(request(on, from_scratch=from_scratch))
    each = amount(
        planned_tokens(outcome(request(on), free, c.TINY), 1, like=c.TINY, step=on.step_tokens), COST
    )
    left = Budget(compute=ComputeLimit(amount=steps_left * each, cost=COST), whole_compute=1e9)
    bound = PROPOSER.propose(request(on, from_scratch=from_scratch, budget=left))
    assert bound.n_steps == min(free.n_steps, max(1, round(steps_left)))
    assert bound.changes == free.changes


def test_no_phase_is_longer_than_the_hours_that_are_left() -> None:
    found = c.csum_steady()
    timed = replace(found, metrics={**found.metrics, STEP_TIME: (36.0,) * len(found.steps)})
    on = replace(c.node(timed, c.TINY), step_tokens=TokenCounts(rollout=300.0, trained=600.0))
    proposed = PROPOSER.propose(request(on, budget=Budget(wall_clock_hours=0.04)))
    assert 1 <= proposed.n_steps <= 5, "144 seconds, of which a step takes about 36"
    assert PROPOSER.propose(request(on, budget=Budget(runs=1))).n_steps > 5


# --- what is proposed ---------------------------------------------------------------------------------------


def test_the_same_configuration_with_other_dynamics_gets_another_diagnosis_and_other_changes() -> None:
    makers = (c.csum_steady, c.csum_swinging, c.sort_collapse, c.untrained, lambda: c.cut(c.regh_late(), 15))
    proposals = [PROPOSER.propose(request(c.node(make(), c.TINY))) for make in makers]
    assert len({proposal.diagnosis.summary for proposal in proposals}) == len(makers)
    # Both that improve and that take off go on as they are.
    assert len({frozenset(changed(proposal).items()) for proposal in proposals}) == len(makers) - 1


def test_the_same_request_gives_the_same_proposal() -> None:
    proposal_request = request(c.node(c.csum_swinging()))
    assert ExpertProposer(n_val=512).propose(proposal_request) == PROPOSER.propose(proposal_request)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 50.0])
def test_moves_are_relative_to_what_was_trained_with(scale: float) -> None:
    on = c.node(c.csum_swinging(), hp.complete(c.TINY, {"lr": 1e-3 * scale}))
    assert changed(PROPOSER.propose(request(on)))[LR] == pytest.approx(0.5e-3 * scale)


def test_a_kl_spike_is_met_by_half_the_step_and_five_times_the_pull() -> None:
    on = c.node(c.chem_kl_spike(), c.PRACTITIONER, node=2)
    proposal = PROPOSER.propose(request(on))
    assert proposal.diagnosis.state == "collapsing"
    new = changed(proposal)
    assert new[LR] == 2.5e-5
    assert new[KL_LOSS_COEF] == 0.005
    assert float(str(new[CLIP_HIGH])) < 0.28
    assert TEMPERATURE not in new  # sampled answers are as good as greedy ones
    assert proposal.resume_from == ResumeFrom(node=2, step=10)  # the spike began at step 13


def test_truncation_is_met_by_a_larger_cap_in_proportion_to_its_share() -> None:
    slight = PROPOSER.propose(request(c.node(c.chem_truncated(), c.PRACTITIONER)))
    assert changed(slight)[MAX_RESPONSE] == 7424  # x1.17, in steps of 256
    capped = hp.complete(c.TINY, {"max_response_length": 10})
    heavy = PROPOSER.propose(request(c.node(c.regh_capped(), capped)))
    assert changed(heavy)[MAX_RESPONSE] == 24  # x2, in steps of 8


def test_the_cap_never_leaves_the_room_of_the_server() -> None:
    narrow = TaskView(
        name="t", n_train=4096, phase_steps=20, max_phase_steps=60, max_model_len=56, max_prompt_length=40
    )
    on = c.node(c.regh_capped(), hp.complete(c.TINY, {"max_response_length": 10}))
    assert changed(PROPOSER.propose(request(on, task=narrow)))[MAX_RESPONSE] == 16


def test_where_the_cap_cannot_grow_nothing_is_changed_for_its_sake() -> None:
    full = TaskView(
        name="t", n_train=4096, phase_steps=20, max_phase_steps=60, max_model_len=50, max_prompt_length=40
    )
    on = c.node(c.regh_capped(), hp.complete(c.TINY, {"max_response_length": 10}))
    proposal = PROPOSER.propose(request(on, task=full))
    assert proposal.diagnosis.state == "truncated"
    assert proposal.changes == ()


def test_a_cap_at_the_searchs_own_limit_stays_the_diagnosis_and_the_limit_is_named() -> None:
    cut = {"length": c.line(22, 24, 20), "longest": [24] * 20, "at_longest": c.line(0.2, 0.9, 20)}
    flat = c.curves(20, reward=[0.1] * 20, val={10: 0.1, 20: 0.1}, start=0.1, grad=[0.5] * 20, **cut)
    full = replace(c.TASK, max_model_len=64)
    proposal = PROPOSER.propose(request(c.node(flat), task=full))
    assert proposal.diagnosis.state == "truncated"
    assert "because engine.max_response_length is 24; set a larger one" in proposal.diagnosis.summary
    assert "engine." not in PROPOSER.propose(request(c.node(flat))).diagnosis.summary  # there is room


def test_a_weak_plateau_is_met_by_larger_steps_held_by_more_kl() -> None:
    new = changed(PROPOSER.propose(request(c.node(c.paper_plateau(), c.PRACTITIONER))))
    assert new == {LR: 1e-4, KL_LOSS_COEF: 0.002, TEMPERATURE: 1.1}


def test_collapsed_entropy_is_met_by_a_weaker_pull_and_warmer_rollouts() -> None:
    new = changed(PROPOSER.propose(request(c.node(c.wildsci_entropy(), c.PRACTITIONER))))
    assert (new[KL_LOSS_COEF], new[LR], new[TEMPERATURE], new[CLIP_HIGH]) == (0.0005, 3e-5, 1.1, 0.33)


def fallen(**more: Any) -> Curves:
    """A phase that went from .82 to .70, beside which sampled answers are right in .37."""
    return c.curves(
        20,
        start=0.82,
        base_step=20,
        val={10: 0.73, 20: 0.70},
        **{"reward": c.line(0.37, 0.37, 20, 0.03), "kl": c.line(0.2, 0.25, 20), **more},
    )


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"lr": 2e-3, "temperature": 1.1}, "aggressive", {LR: 0.5e-3, TEMPERATURE: 0.8}),
        ({"lr": 0.5e-3}, "although the learning rate was lowered", {LR: 0.25e-3}),
        ({"temperature": 0.9}, "conservative", {}),
        ({"lr": 2e-3, "kl": 2e-3}, "as much as they tightened", {}),
        ({"n": 16, "batch": 8}, "as much as they tightened", {}),
    ],
)
def test_a_fall_goes_back_before_what_changed_and_cools_down_only_where_that_was_hotter(
    changes: dict[str, float], kind: str, expected: dict[str, float]
) -> None:
    first = c.node(c.csum_steady(), c.TINY, node=0)
    on = c.node(
        fallen(), hp.complete(c.TINY, changes), node=1, kind="evolve",
        resume_from=ResumeFrom(node=0, step=20),
    )  # fmt: skip
    proposal = PROPOSER.propose(request(on, path=(first, on)))
    assert kind in proposal.diagnosis.summary
    assert proposal.resume_from == ResumeFrom(node=0, step=20)
    assert changed(proposal) == expected
    assert outcome(request(on, path=(first, on)), proposal) == hp.complete(c.TINY, expected)


DESTROYED = c.curves(20, start=0.42, val={10: 0.08, 20: 0.06}, reward=c.line(0.3, 0.06, 20, 0.03))
LOST = c.curves(20, start=0.42, val={10: 0.32, 20: 0.30}, reward=c.line(0.3, 0.3, 20, 0.03))
GAINED = c.curves(20, start=0.42, val={20: 0.43}, reward=c.line(0.3, 0.4, 20, 0.03))


@pytest.mark.parametrize(("last", "factor"), [(0.06, 0.125), (0.20, 0.125), (0.30, 0.25)])
def test_a_start_that_is_destroyed_gets_an_eighth_of_the_step_and_one_that_lost_gets_a_quarter(
    last: float, factor: float
) -> None:
    ran = c.curves(20, start=0.42, val={10: last + 0.02, 20: last}, reward=c.line(0.3, last, 20, 0.03))
    on = c.node(ran, hp.complete(c.TINY, {"lr": 1e-3}))
    proposal = PROPOSER.propose(request(on))
    assert proposal.resume_from is None
    assert changed(proposal)[LR] == pytest.approx(1e-3 * factor, rel=0.05)  # two digits


@pytest.mark.parametrize(
    ("curves", "rate", "is_raised"),
    [
        (DESTROYED, 1.25e-4, False),
        (DESTROYED, 0.5e-4, True),
        (LOST, 2.5e-4, False),
        (LOST, 1.0e-4, True),
        (GAINED, 2.5e-4, True),
    ],
)
def test_no_rate_is_raised_to_near_one_at_which_the_base_model_lost(
    curves: Curves, rate: float, is_raised: bool
) -> None:
    root = c.node(curves, hp.complete(c.TINY, {"lr": 1e-3}), node=0)
    ran = c.curves(20, start=0.42, val={10: 0.44, 20: 0.46}, reward=c.line(0.40, 0.46, 20, 0.03))
    slow = c.node(ran, hp.complete(c.TINY, {"lr": rate}), node=1)
    proposal = PROPOSER.propose(request(slow, tree=(root, slow)))
    assert "only by" in proposal.diagnosis.summary
    assert (float(str(changed(proposal).get(LR, rate))) > rate) == is_raised


def test_a_second_loss_at_a_rate_that_was_cut_halves_it_and_no_later_change_raises_it_above_that() -> None:
    """The first steps at a rate that works lose at times: a further quarter would leave it standing still."""
    root = c.node(DESTROYED, hp.complete(c.TINY, {"lr": 1e-3}), node=0)
    cut = c.node(LOST, hp.complete(c.TINY, {"lr": 1.2e-4}), node=1, kind="evolve")
    proposal = PROPOSER.propose(request(cut, path=(cut,), tree=(root, cut), default=root.hyperparameters))
    assert proposal.resume_from is None and changed(proposal)[LR] == 6e-5
    slowly = c.curves(20, start=0.42, val={10: 0.44, 20: 0.46}, reward=c.line(0.40, 0.46, 20, 0.03))
    slow = c.node(slowly, hp.complete(c.TINY, {"lr": 6e-5}), node=2, kind="evolve")
    after = PROPOSER.propose(
        request(slow, path=(slow,), tree=(root, cut, slow), default=root.hyperparameters)
    )
    assert "only by" in after.diagnosis.summary
    assert float(str(changed(after).get(LR, 6e-5))) <= 6e-5


def gained(start: float, end: float) -> Curves:
    """Ten steps with one validation at their end."""
    reward = c.line(start, end, 10)
    return c.curves(10, reward=reward, kl=c.line(0.2, 0.25, 10), start=start, val={10: end})


def test_a_raised_rate_that_gained_is_halved_before_it_is_kept_and_not_raised_again() -> None:
    root = c.node(gained(0.45, 0.49))
    first = PROPOSER.propose(request(root))
    assert changed(first)[LR] == 2e-3
    raised = child(request(root), first, 1, found=gained(0.49, 0.60), base_step=10)
    path = {"path": (root, raised), "default": c.TINY}
    seen: list[NodeView] = []
    for number in range(2, 6):
        proposal_request = request(raised, siblings=tuple(seen), tree=(root,), **path)
        proposal = PROPOSER.propose(proposal_request)
        assert proposal.resume_from == ResumeFrom(node=1, step=10)
        seen.append(child(proposal_request, proposal, number))
    rates = [view.hyperparameters[LR] for view in seen]
    assert rates[:2] == [1e-3, 2e-3]
    assert max(float(str(rate)) for rate in rates) <= 2e-3


def test_no_rate_is_raised_to_one_that_a_raise_lost_with_in_another_branch() -> None:
    root = c.node(gained(0.45, 0.49))
    other = c.node(gained(0.49, 0.53), c.TINY, node=1, base_step=10, resume_from=ResumeFrom(node=0, step=10))
    hot = hp.complete(c.TINY, {"lr": 2e-3})
    lost = c.node(gained(0.49, 0.20), hot, node=2, base_step=10, resume_from=ResumeFrom(node=0, step=10))
    common = {"path": (root, other), "default": c.TINY}
    free = PROPOSER.propose(request(other, tree=(root,), **common))
    warned = PROPOSER.propose(request(other, tree=(root, lost), **common))
    assert float(str(changed(free)[LR])) == 2e-3
    assert float(str(changed(warned).get(LR, 1e-3))) <= 1e-3


def test_a_fresh_start_takes_the_rate_of_the_best_node_where_the_roots_destroyed_the_base_model() -> None:
    root = c.node(DESTROYED, hp.complete(c.TINY, {"lr": 1e-3}), node=0)
    ran = c.curves(20, start=0.42, val={10: 0.44, 20: 0.46}, reward=c.line(0.40, 0.46, 20, 0.03))
    best = c.node(ran, hp.complete(c.TINY, {"lr": 1.25e-4}), node=1)
    for turn in (1, 2, 3):
        fresh = request(best, path=(root,), tree=(root, best), from_scratch=True, n_scratch=turn)
        assert float(str(changed(PROPOSER.propose(fresh))[LR])) <= 2.5e-4


def test_what_fell_from_the_same_checkpoint_in_another_branch_is_not_tried_again() -> None:
    on = c.node(c.paper_plateau(), c.PRACTITIONER, node=3)
    first = PROPOSER.propose(request(on))
    lost = c.curves(20, start=0.408, val={10: 0.34, 20: 0.30}, reward=c.line(0.4, 0.3, 20))
    other = child(request(on), first, 9, found=lost, parent=7)
    second = PROPOSER.propose(request(on, tree=(other,)))
    assert second.resume_from == first.resume_from
    assert not {(key, value) for key, value in changed(second).items()} & set(changed(first).items())
    assert "node 9" in second.rationale


@pytest.mark.parametrize(
    ("status", "said"), [("failed", "failed"), ("cancelled", "cancelled"), ("running", "not finished")]
)
def test_a_phase_without_a_gain_is_told_as_it_ended(status: str, said: str) -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    start = PROPOSER.propose(request(on)).resume_from
    cooler = hp.complete(c.TINY, {"lr": 0.25e-3})
    other = c.node(Curves(), cooler, node=9, kind="evolve", resume_from=start, status=status, n_steps=20)
    assert f"node 9 tried lr 0.001 -> 0.00025 ({said})." in (
        PROPOSER.propose(request(on, tree=(other,))).rationale
    )


def test_what_gained_from_the_same_checkpoint_is_taken_further() -> None:
    on = c.node(c.csum_swinging(), c.TINY, node=3)
    start = PROPOSER.propose(request(on)).resume_from
    gained = c.curves(20, start=0.723, val={10: 0.80, 20: 0.85}, reward=c.line(0.4, 0.6, 20))
    cooler = hp.complete(c.TINY, {"lr": 0.25e-3})
    other = c.node(gained, cooler, node=9, kind="evolve", resume_from=start)
    new = outcome(request(on), PROPOSER.propose(request(on, tree=(other,))))
    assert float(str(new[LR])) < c.TINY[LR]  # type: ignore[operator]
    assert new != cooler


def test_a_run_that_rises_goes_on_unchanged_and_a_second_child_anneals() -> None:
    on = c.node(c.csum_steady(), c.TINY, node=3)
    first = PROPOSER.propose(request(on))
    assert (changed(first), first.n_steps) == ({}, 30)
    second = PROPOSER.propose(request(on, siblings=(child(request(on), first, 10),)))
    assert changed(second)[LR] == 0.5e-3


def test_hints_that_rules_cannot_read_are_said_to_be_left_out() -> None:
    proposal = PROPOSER.propose(request(c.node(c.csum_steady()), hints=("keep the batch",)))
    assert 'the hint "keep the batch"' in proposal.rationale


def test_a_dead_run_at_rate_zero_gets_the_rate_of_the_root() -> None:
    dead = hp.complete(c.TINY, {"lr": 0})
    on = c.node(c.untrained(), dead)
    proposal_request = request(on, default=c.TINY)
    assert changed(PROPOSER.propose(proposal_request))[LR] == 1e-3


def test_a_phase_that_hardly_moved_the_model_goes_on_at_four_times_the_rate() -> None:
    on = c.node(c.small_steps(), hp.complete(c.TINY, {"lr": 5e-5, "max_response_length": 16}))
    proposal = PROPOSER.propose(request(on))
    assert proposal.diagnosis.state == "inactive"
    assert changed(proposal)[LR] == 2e-4
    assert proposal.resume_from is not None and proposal.resume_from.step == 10


def test_clip_ranges_are_left_alone_while_they_are_inert() -> None:
    for make in (c.sort_collapse, c.wildsci_entropy, c.ssmr_regressed, c.regh_capped):
        keys = changed(PROPOSER.propose(request(c.node(make(), c.TINY))))
        assert not [key for key in keys if "clip_ratio" in key]


def test_the_kl_is_left_alone_while_it_is_not_part_of_the_loss() -> None:
    off = hp.complete(c.TINY, {"use_kl_loss": False})
    assert KL_LOSS_COEF not in changed(PROPOSER.propose(request(c.node(c.csum_swinging(), off))))


def test_where_no_change_fits_the_phase_goes_on_as_it_was() -> None:
    tight = TaskView(
        name="t", n_train=4096, phase_steps=20, max_phase_steps=60, max_model_len=10, max_prompt_length=40
    )
    proposal = PROPOSER.propose(request(c.node(c.csum_swinging()), task=tight))
    assert proposal.changes == ()


def test_every_change_says_old_new_and_why_and_the_rationale_repeats_it() -> None:
    proposal_request = request(c.node(c.csum_swinging()))
    proposal = PROPOSER.propose(proposal_request)
    assert proposal.changes
    for change in proposal.changes:
        assert change.old == proposal_request.on.hyperparameters[change.key] != change.new
        assert change.reason in proposal.rationale
        assert hp.short(change.key) in proposal.rationale


def test_a_chain_of_the_same_moves_stays_within_bounds() -> None:
    on = c.node(c.paper_plateau(), c.PRACTITIONER)
    for _ in range(12):
        proposal_request = request(on, default=c.PRACTITIONER)
        on = c.node(c.paper_plateau(), outcome(proposal_request, PROPOSER.propose(proposal_request)))
    assert float(str(on.hyperparameters[LR])) <= 2.5e-4
    assert float(str(on.hyperparameters[TEMPERATURE])) <= 1.3


# --- from where, and how long -------------------------------------------------------------------------------


def test_a_healthy_run_goes_on_from_its_last_step() -> None:
    assert PROPOSER.propose(request(c.node(c.csum_steady(), node=4))).resume_from == ResumeFrom(
        node=4, step=20
    )


def test_an_unsteady_run_goes_on_from_its_best_step_the_later_of_equals() -> None:
    assert PROPOSER.propose(request(c.node(c.csum_swinging(), node=4))).resume_from == ResumeFrom(
        node=4, step=30
    )


def test_a_collapse_goes_back_before_the_trouble_even_past_the_phase() -> None:
    good = c.node(c.csum_steady(), node=0)
    fallen = c.curves(
        20,
        start=0.82,
        base_step=20,
        val={10: 0.70, 20: 0.30},
        reward=c.joined(c.line(0.7, 0.7, 4, 0.01), c.line(0.5, 0.05, 16, 0.01)),
        kl=c.joined(c.line(0.17, 0.17, 4, 0.002), c.line(0.9, 3.0, 16)),
    )
    on = c.node(fallen, node=1)
    assert PROPOSER.propose(request(on, path=(good, on))).resume_from == ResumeFrom(node=0, step=20)


def test_a_collapse_that_learnt_nothing_before_starts_from_the_base_model() -> None:
    proposal = PROPOSER.propose(request(c.node(c.sort_collapse())))
    assert proposal.resume_from is None
    assert "from scratch" in proposal.rationale


def test_a_take_off_goes_on_from_its_last_step_and_longer() -> None:
    on = c.node(c.cut(c.regh_late(), 20), node=7)
    proposal = PROPOSER.propose(request(on))
    assert proposal.resume_from == ResumeFrom(node=7, step=20)
    assert proposal.n_steps == 30


def test_a_path_of_several_phases_offers_its_best_checkpoint() -> None:
    first = c.node(c.csum_steady(), node=0)
    second = c.node(c.csum_swinging(), node=1, base_step=20)
    proposal = PROPOSER.propose(request(second, path=(first, second)))
    assert proposal.resume_from == ResumeFrom(node=0, step=20)  # .824 against .723


def test_a_real_run_that_warms_up_goes_on_from_its_last_step_longer() -> None:
    proposal_request = request(c.node(c.recorded(0), c.TINY, node=0))
    proposal = PROPOSER.propose(proposal_request)
    assert proposal.resume_from == ResumeFrom(node=0, step=10)
    assert proposal.n_steps == 30
    assert changed(proposal) == {}


def test_without_checkpoints_a_run_starts_from_the_base_model() -> None:
    assert PROPOSER.propose(request(c.node(c.csum_steady()), checkpoints=())).resume_from is None


def test_passes_count_global_steps_with_the_new_batch_and_are_written_out() -> None:
    # 5000 // 128 = 39 steps per epoch; 140 steps behind, 60 more.
    on = c.node(c.paper_plateau(), c.PRACTITIONER, node=2, base_step=120)
    saved = OfferedCheckpoint(node=2, step=20, global_step=140, val_score=0.404)
    proposal = PROPOSER.propose(request(on, checkpoints=(saved,)))
    assert "60 steps, to global step 200: 5.13 passes over the 5000 training items" in proposal.rationale


def test_lengths_stay_within_the_longest_phase() -> None:
    short = TaskView(
        name="t", n_train=4096, phase_steps=20, max_phase_steps=22, max_model_len=104, max_prompt_length=40
    )
    assert PROPOSER.propose(request(c.node(c.cut(c.regh_late(), 20)), task=short)).n_steps == 22


# --- siblings and refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [c.csum_steady, c.csum_swinging, c.sort_collapse, c.untrained, c.regh_capped, c.reg_success]
)
def test_a_second_child_takes_another_reading_and_a_third_one_again(make: Any) -> None:
    on = c.node(make(), node=3)
    siblings: list[NodeView] = []
    for number in range(3):
        proposal_request = request(on, siblings=tuple(siblings))
        proposal = PROPOSER.propose(proposal_request)
        mine = signature(on.hyperparameters, outcome(proposal_request, proposal))
        for sibling in siblings:
            assert outcome(proposal_request, proposal) != sibling.hyperparameters
            if number < 2:
                assert overlap(mine, signature(on.hyperparameters, sibling.hyperparameters)) < 0.6
            assert f"node {sibling.node}" in proposal.rationale
        siblings.append(child(proposal_request, proposal, 10 + number, score=0.5))


def test_siblings_that_are_not_planned_yet_are_no_obstacle() -> None:
    pending = NodeView(node=9, kind="evolve", status="pending", hyperparameters={}, n_steps=0, base_step=0)
    on = c.node(c.csum_steady())
    assert PROPOSER.propose(request(on, siblings=(pending,))).changes == PROPOSER.propose(request(on)).changes


def test_a_refused_parameter_is_left_out() -> None:
    on = c.node(c.paper_plateau(), c.PRACTITIONER)
    first = PROPOSER.propose(request(on))
    message = "temperature=1.1: must be smaller."
    second = PROPOSER.propose(request(on, rejected=message))
    assert TEMPERATURE in changed(first)
    assert TEMPERATURE not in changed(second)
    assert changed(second)[LR] == changed(first)[LR]


def test_a_refusal_that_names_no_parameter_gets_another_reading() -> None:
    on = c.node(c.csum_swinging())
    first = PROPOSER.propose(request(on))
    second = PROPOSER.propose(request(on, rejected="the same phase was trained already"))
    assert changed(second) != changed(first)


def test_a_refused_checkpoint_is_given_up() -> None:
    message = "this run starts from the base model: resume_from must be null."
    assert PROPOSER.propose(request(c.node(c.csum_steady()), rejected=message)).resume_from is None


def test_a_proposer_that_knows_its_gpus_keeps_updates_divisible() -> None:
    eight = ExpertProposer(n_val=512, n_gpus=64)
    on = c.node(c.paper_plateau(), c.PRACTITIONER)
    proposal_request = request(on)
    proposal = eight.propose(proposal_request)
    limits = hp.Limits(max_model_len=proposal_request.task.max_model_len)
    hp.complete(on.hyperparameters, changed(proposal), n_gpus=64, limits=limits)


# --- fresh starts -------------------------------------------------------------------------------------------


def fresh(n_scratch: int, on: NodeView, **more: Any) -> tuple[ProposalRequest, Proposal]:
    proposal_request = request(
        on, from_scratch=True, checkpoints=(), n_scratch=n_scratch, default=c.TINY, **more
    )
    return proposal_request, PROPOSER.propose(proposal_request)


def test_fresh_starts_never_resume_and_differ_from_the_root_and_from_each_other() -> None:
    on = c.node(c.csum_steady(), c.TINY)
    seen: list[Hyperparameters] = [c.TINY]
    for number in range(1, 9):
        proposal_request, proposal = fresh(number, on)
        assert proposal.resume_from is None
        full = outcome(proposal_request, proposal, c.TINY)
        assert full not in seen
        seen.append(full)


def test_the_first_fresh_start_inherits_what_regularised_the_best_node_and_its_capacity() -> None:
    end = hp.complete(
        c.TINY, {"lr": 2.5e-4, "kl": 0.004, "temperature": 0.9, "n": 12, "max_response_length": 32}
    )
    best = c.node(c.csum_steady(), end, node=5, base_step=20)
    proposal_request, proposal = fresh(1, best)
    full = outcome(proposal_request, proposal, c.TINY)
    assert (full[LR], full[KL_LOSS_COEF], full[TEMPERATURE]) == (2.5e-4, 0.004, 0.9)
    assert (full[ROLLOUT_N], full[MAX_RESPONSE]) == (12, 32)


def test_a_fresh_start_does_not_inherit_from_a_best_node_in_bad_health() -> None:
    end = hp.complete(c.TINY, {"lr": 2.5e-4, "kl": 0.004, "temperature": 0.9, "n": 12})
    proposal_request, proposal = fresh(1, c.node(c.csum_swinging(), end, node=5))
    full = outcome(proposal_request, proposal, c.TINY)
    assert full[LR] == 2e-3  # twice the root's, not what the unsteady run ended with
    assert full[ROLLOUT_N] == 12


def test_a_fresh_start_does_not_inherit_a_rate_of_zero() -> None:
    best = c.node(c.csum_steady(), hp.complete(c.TINY, {"lr": 0}), node=5)
    proposal_request, proposal = fresh(1, best)
    assert float(str(outcome(proposal_request, proposal, c.TINY)[LR])) > 0


def test_a_fresh_start_is_unlike_earlier_ones_it_is_shown() -> None:
    on = c.node(c.csum_steady(), c.TINY)
    proposal_request, first = fresh(1, on)
    earlier = c.node(c.csum_steady(), outcome(proposal_request, first, c.TINY), node=8, kind="scratch")
    proposal_request, again = fresh(1, on, siblings=(earlier,))
    assert outcome(proposal_request, again, c.TINY) != earlier.hyperparameters


def test_a_refused_fresh_start_leaves_out_what_was_named() -> None:
    on = c.node(c.csum_steady(), c.TINY)
    _, first = fresh(1, on)
    _, second = fresh(1, on, rejected="lr=0.002 (actor_rollout_ref.actor.optim.lr): must be smaller.")
    assert LR in changed(first)
    assert LR not in changed(second)


def test_a_fresh_start_is_long_enough_to_be_compared_with_the_best_path() -> None:
    best = c.node(c.csum_steady(), c.TINY, base_step=10)
    _, proposal = fresh(1, best)
    assert proposal.n_steps == 30  # the best step, 20, ten steps into the path
    far = c.node(c.csum_steady(), c.TINY, base_step=200)
    assert fresh(1, far)[1].n_steps == 60  # the longest phase allowed


def test_a_fresh_start_works_before_anything_was_scored() -> None:
    on = c.node(c.curves(3, reward=[0.1, 0.2, 0.1]), c.TINY)
    proposal_request, proposal = fresh(1, on, best=None)
    assert outcome(proposal_request, proposal, c.TINY) != c.TINY
    assert proposal.diagnosis.state == "unknown"
