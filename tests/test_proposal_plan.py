"""What becomes of proposals at the plan: the configuration they apply to, copies, changes without effect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.coordinator import build_request, replay
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.records import Proposal, ResumeFrom
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.records.metrics import Curves
from tests.builders import LR, ROOT, Driver, make_config, make_proposal

KL = "actor_rollout_ref.actor.kl_loss_coef"


def asked(search: Driver, node: int) -> ProposalRequest | ErrorRequest:
    """The request that the agent of a node gets now."""
    command = next(
        found
        for found in search.core.outstanding()
        if isinstance(found, cmd.Propose | cmd.Analyze) and found.node == node
    )
    return build_request(search.core, command, lambda _: Curves())


def two_slots(**blocks: Any) -> Driver:
    """Two slots whose nodes 1 and 2 are being proposed below the root at the same time."""
    search = Driver(make_config(budget={"runs": 8}, slots={"count": 2}, **blocks))
    search.ready(0, 1)
    search.train(0, score=0.5)
    assert [run.stage for run in search.core.runs.values()] == ["done", "proposing", "proposing"]
    return search


def refused(search: Driver) -> list[str]:
    return [event.message for event in search.journal if isinstance(event, ev.ProposalRefused)]


# --- copies -------------------------------------------------------------------------------------------------


def test_a_proposal_knows_what_is_being_proposed_and_planned_elsewhere_in_the_tree() -> None:
    search = two_slots()
    request = asked(search, 2)
    assert isinstance(request, ProposalRequest)
    assert [(view.node, view.status, view.hyperparameters) for view in request.tree] == [(1, "pending", {})]
    search.propose(1, make_proposal(resume=(0, 10), lr=2e-4))
    request = asked(search, 2)
    assert isinstance(request, ProposalRequest)
    (planned,) = request.tree
    assert (planned.resume_from, planned.hyperparameters[LR]) == (ResumeFrom(node=0, step=10), 2e-4)
    search.start(1)
    request = asked(search, 2)
    assert isinstance(request, ProposalRequest)
    assert request.tree[0].status == "running"


def test_two_slots_never_train_the_same_phase_and_the_refusal_names_the_other() -> None:
    search = two_slots()
    same = make_proposal(resume=(0, 10), lr=2e-4)
    search.propose(1, same)
    search.propose(2, same)
    (why,) = refused(search)
    assert why.startswith("this phase would be a copy of node 1, which waits to be trained: it starts from")
    assert "node 0 step 10" in why
    request = asked(search, 2)
    assert request.rejected == why
    assert request.refused == search.journal[-2].proposal  # type: ignore[attr-defined]
    search.propose(2, make_proposal(resume=(0, 20), lr=2e-4), tries=1)
    assert search.core.runs[2].stage == "planned"
    assert replay(search.journal, ROOT).runs == search.core.runs


@pytest.mark.parametrize(
    "proposal",
    [
        make_proposal(resume=(0, 10), lr=2e-4, n_steps=7),
        make_proposal(resume=(0, 10), lr=2e-4, algo_kl_target=0.3),
    ],
    ids=["another length", "another value without effect"],
)
def test_neither_the_length_nor_what_has_no_effect_makes_a_copy_another_phase(proposal: Proposal) -> None:
    search = two_slots()
    search.propose(1, make_proposal(resume=(0, 10), lr=2e-4))
    search.propose(2, make_proposal(lr=9.0))
    search.propose(2, proposal, tries=1)
    assert "copy of node 1" in refused(search)[-1]


def test_a_copy_of_a_failed_phase_is_refused_unless_it_repairs_it() -> None:
    search = two_slots()
    search.propose(1, make_proposal(resume=(0, 10), lr=2e-4))
    search.start(1)
    search.fail(1)
    fix = next(run.node for run in search.core.runs.values() if run.kind == "debug")
    search.propose(2, make_proposal(resume=(0, 10), lr=2e-4))
    assert "copy of node 1, which is failed" in refused(search)[-1]
    search.propose(fix, make_proposal(resume=(0, 10), lr=None))
    assert search.core.runs[fix].stage == "planned"


def test_the_root_again_is_a_copy_and_a_clone_is_none() -> None:
    search = two_slots()
    search.propose(1, make_proposal(resume=None, lr=None))
    assert (
        "copy of node 0, which is completed with 0.500: it starts from the base model" in refused(search)[0]
    )
    search.propose(1, make_proposal(resume=(0, 10), lr=2e-4), tries=1)
    search.propose(2, make_proposal(resume=(0, 10), lr=3e-4))
    search.train(1, score=0.6)
    search.post(ev.CloneAsked(of=0, step=10, changes={"lr": 2e-4}, source="user:1"))
    search.train(2, score=0.6)
    planned = [run for run in search.core.runs.values() if run.clone is not None]
    assert [run.stage for run in planned] == ["planned"]
    assert VERL_SPACE.same_training(planned[0].spec.hyperparameters, search.core.runs[1].spec.hyperparameters)  # type: ignore[union-attr]


def test_an_author_who_goes_on_copying_gets_the_parent_continued_as_a_phase_of_its_own() -> None:
    search = two_slots()
    search.propose(1, make_proposal(resume=(0, 20), lr=None))
    for tries in range(3):
        search.propose(2, make_proposal(resume=(0, 20), lr=None), tries=tries)
    run = search.core.runs[2]
    assert run.spec is not None
    assert run.spec.resume_from == ResumeFrom(node=0, step=20)
    assert run.spec.hyperparameters[LR] == 8e-4
    assert run.note.endswith(
        "own configuration is continued with lr 0.001 -> 0.0008; unchanged it would repeat node 1."
    )


# --- changes without effect ---------------------------------------------------------------------------------


def test_a_change_without_effect_goes_back_once_and_is_then_left_out_by_name() -> None:
    search = two_slots()
    proposal = make_proposal(resume=(0, 10), lr=2e-4, clip_high=0.3)
    search.propose(1, proposal)
    assert refused(search)[0].startswith("clip_high has no effect here: each step makes one update")
    assert refused(search)[0].endswith("Leave it out, or change what it depends on.")
    search.propose(1, proposal, tries=1)
    run = search.core.runs[1]
    assert run.note.startswith("left out: clip_high has no effect here")
    assert run.spec is not None
    assert run.spec.hyperparameters[LR] == 2e-4
    root = search.core.runs[0].spec
    assert root is not None
    clip = VERL_SPACE.canonical("clip_high")
    assert run.spec.hyperparameters[clip] == root.hyperparameters[clip]


def test_a_change_that_another_one_gives_its_effect_is_taken() -> None:
    search = two_slots()
    search.propose(1, make_proposal(resume=(0, 10), clip_high=0.3, mini_batch_size=8))
    assert refused(search) == []
    assert search.core.runs[1].note == ""


@pytest.mark.parametrize(
    ("switch", "key"),
    [
        ({"use_kl_loss": False}, "kl_loss_coef"),
        ({"use_kl_in_reward": False}, "algo_kl"),
        ({"algo_kl_type": "fixed"}, "algo_kl_horizon"),
        ({"dynamic_bsz": True}, "micro_batch_size"),
        ({"dynamic_bsz": False}, "max_token_len_per_gpu"),
        ({"batch_size": 16, "mini_batch_size": 16, "ppo_epochs": 1}, "clip_low"),
        ({"lr_warmup_steps": 1}, "lr_warmup_ratio"),
    ],
)
def test_what_has_no_effect_depends_on_its_switch(switch: dict[str, Any], key: str) -> None:
    base = VERL_SPACE.complete(VERL_SPACE.defaults(), {})
    name = VERL_SPACE.canonical(key)
    assert name in VERL_SPACE.inert(VERL_SPACE.complete(base, switch))
    on: dict[str, Any] = {
        "use_kl_loss": True, "use_kl_in_reward": True, "algo_kl_type": "adaptive",
        "dynamic_bsz": not switch.get("dynamic_bsz", True), "batch_size": 16, "mini_batch_size": 8,
        "lr_warmup_steps": 0,
    }  # fmt: skip
    assert name not in VERL_SPACE.inert(VERL_SPACE.complete(base, on))


# --- the base of the changes --------------------------------------------------------------------------------


def grown(kinds: str) -> Driver:
    """A search of three nodes below one another with configurations of their own, then the kind wanted."""
    runs = 12 if kinds == "scratch" else 8
    search = Driver(
        make_config(budget={"runs": runs}, search={"rho_min": 0.9 if kinds == "scratch" else 0.0})
    )
    search.ready()
    search.train(0, score=0.5)
    node, kl = 1, 2e-3
    while True:
        run = search.core.runs[node]
        if run.kind == kinds and (kinds != "evolve" or node >= 3):
            return search
        assert run.on is not None
        search.propose(node, make_proposal(resume=(run.on, 10), lr=5e-4 * 0.9**node, kl=kl))
        if kinds == "debug":
            search.start(node)
            search.fail(node, saved=(10,))
        else:
            search.train(node, score=0.5 + 0.05 * node)
        node, kl = node + 1, kl * 1.5


@pytest.mark.parametrize("kind", ["evolve", "scratch", "debug"])
@given(data=st.data())
def test_the_configuration_of_the_request_is_the_one_that_changes_apply_to(
    kind: str, data: st.DataObject
) -> None:
    search = grown(kind)
    node = max(search.core.runs)
    request = asked(search, node)
    starts = [None, *(ResumeFrom(node=one.node, step=one.step) for one in request.checkpoints)]
    start = data.draw(st.sampled_from(starts))
    value = data.draw(st.floats(0.5, 1.5)).__round__(3)
    proposal = make_proposal(
        resume=None if start is None else (start.node, start.step), lr=None, temperature=value
    )
    search.propose(node, proposal)
    spec = search.core.runs[node].spec
    if spec is None:  # a copy of an earlier phase
        assert "copy" in refused(search)[-1]
        return
    expected = VERL_SPACE.complete(request.base(start), {"temperature": value})
    assert VERL_SPACE.diff(expected, spec.hyperparameters) == {}
    assert spec.resume_from == start


def test_going_back_applies_changes_to_the_phase_that_is_resumed() -> None:
    search = grown("evolve")
    node = max(search.core.runs)
    request = asked(search, node)
    assert isinstance(request, ProposalRequest)
    assert len(request.path) >= 2
    first, on = request.path[0], request.on
    assert first.hyperparameters[KL] != on.hyperparameters[KL]
    search.propose(node, make_proposal(resume=(first.node, 10), lr=7e-4))
    spec = search.core.runs[node].spec
    assert spec is not None
    assert spec.hyperparameters[KL] == first.hyperparameters[KL]
