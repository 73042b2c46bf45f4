"""Every space of hyper-parameters keeps the same contract: VeRL's, and a small one for another trainer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llmzero_ray.agents.llm.context import proposer_context, stable_context
from llmzero_ray.agents.llm.prompts import Prompts
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import HyperparameterError, ProposalError
from llmzero_ray.hyperparameters import VERL_SPACE, Limits, Parameter, Space
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.space import Conflict
from llmzero_ray.hyperparameters.verl_keys import PPO_EPOCHS
from llmzero_ray.records import Hyperparameters, HyperparameterValue
from tests.agents.llm import large_requests
from tests.builders import make_config, make_proposal


def follow_width(
    full: dict[str, HyperparameterValue], _: Hyperparameters, asked: Hyperparameters, __: int
) -> None:
    """A higher rate takes a lower momentum, unless that was asked for, too."""
    if "lr" in asked and "momentum" not in asked and float(str(asked["lr"])) > 0.1:
        full["momentum"] = 0.5


def check_both(full: Hyperparameters, _: int, __: Limits) -> Conflict | None:
    too_fast = float(str(full["lr"])) > 0.5 and float(str(full["momentum"])) > 0.9
    return (("lr", "momentum"), "together they diverge") if too_fast else None


SGD = Space(
    trainer="the toy trainer",
    parameters=(
        Parameter(
            key="lr", alias="lr", kind="float", low=1e-5, high=1.0, default=0.01, scale="log",
            doc="Learning rate.", group="optimisation", hot=True, also=("rate",),
            follow=(follow_width,), check=(check_both,),
        ),
        Parameter(
            key="momentum", alias="momentum", kind="float", low=0.0, high=0.99, default=0.9,
            doc="Momentum.", group="optimisation", kept_at_resume=True,
        ),
    ),
    never=r"_fn$",
)  # fmt: skip
"""Two parameters, as a trainable of Ray Tune may have them."""


class SpaceContract:
    """What proposers, planning and reports rely on; a space of one's own is tested by a subclass."""

    space: Space
    change: dict[str, Any]
    """A change that is allowed, and that differs from the defaults."""

    def test_every_name_of_a_row_leads_to_its_key(self) -> None:
        for row in self.space.parameters:
            names = (row.key, row.alias, *row.also)
            assert {self.space.canonical(name) for name in names} == {row.key}
            assert self.space.short(row.key) == row.alias

    def test_an_unknown_name_is_answered_with_the_nearest_one(self) -> None:
        alias = self.space.parameters[0].alias
        with pytest.raises(HyperparameterError, match=rf"not known to .*did you mean '{alias}'"):
            self.space.canonical(f"{alias}x")

    def test_defaults_are_complete_and_within_bounds(self) -> None:
        full = self.space.defaults()
        self.space.validate(full)
        assert self.space.normalize(full) == full

    def test_values_outside_the_bounds_of_a_number_are_refused(self) -> None:
        for row in self.space.parameters:
            if row.kind == "float" and row.high is not None:
                with pytest.raises(HyperparameterError, match=f"{row.alias}="):
                    self.space.normalize({row.key: row.high * 2 + 1})

    def test_a_change_completes_a_configuration_and_is_the_difference(self) -> None:
        base = self.space.defaults()
        full = self.space.complete(base, self.change)
        wanted = self.space.normalize(self.change)
        assert {key: full[key] for key in wanted} == wanted
        assert set(wanted) <= set(self.space.diff(base, full))
        assert self.space.diff(full, full) == {}

    def test_an_incomplete_configuration_is_refused(self) -> None:
        full = self.space.defaults()
        full.popitem()
        with pytest.raises(HyperparameterError, match="is not complete"):
            self.space.validate(full)

    def test_what_a_checkpoint_fixes_stays_at_a_resume(self) -> None:
        key = self.space.kept_at_resume[0]
        base = self.space.defaults()
        row = self.space.by_key[key]
        other = {**base, key: row.low}
        with pytest.raises(HyperparameterError, match="at a resume"):
            self.space.check_transition(base, other)

    def test_a_scale_is_logarithmic_only_where_values_are_not_negative(self) -> None:
        for row in self.space.parameters:
            assert row.scale == "linear" or (row.low is not None and row.low >= 0)


class TestVerlSpace(SpaceContract):
    space = VERL_SPACE
    change = {"lr": 1e-4}  # noqa: RUF012


class TestToySpace(SpaceContract):
    space = SGD
    change = {"rate": 0.2}  # noqa: RUF012

    def test_its_own_couplings_act(self) -> None:
        assert SGD.complete(SGD.defaults(), {"lr": 0.2})["momentum"] == 0.5
        assert SGD.complete(SGD.defaults(), {"lr": 0.2, "momentum": 0.8})["momentum"] == 0.8
        with pytest.raises(HyperparameterError, match=r"lr=0\.9, momentum=0\.95: together they diverge\."):
            SGD.complete(SGD.defaults(), {"lr": 0.9, "momentum": 0.95})

    def test_nothing_of_verl_is_known_to_it(self) -> None:
        assert not SGD.is_hot("actor_rollout_ref.actor.optim.weight_decay")
        with pytest.raises(HyperparameterError, match="not known to the toy trainer"):
            SGD.canonical("kl_loss_coef")
        assert SGD.forbidden("loss_fn") is not None
        assert SGD.forbidden("lr") is None


def refuse_pull(full: Hyperparameters, _: int, __: Limits) -> Conflict | None:
    return ((PULL.key,), "too strong for one epoch") if full[PULL.key] == 0.9 else None


def pull_inert(full: Hyperparameters) -> str | None:
    return "it acts only while ppo_epochs > 1" if full[PPO_EPOCHS] == 1 else None


PULL = Parameter(
    key="actor_rollout_ref.actor.policy_loss.dro_beta", alias="pull", kind="float", low=0.0, high=1.0,
    default=0.1, doc="Pull of the loss.", group="clipping", check=(refuse_pull,), inert=pull_inert,
)  # fmt: skip


def test_a_new_hyper_parameter_needs_its_row_alone() -> None:
    space = dataclasses.replace(VERL_SPACE, parameters=(*VERL_SPACE.parameters, PULL))
    prompts, request = Prompts.load(), large_requests.proposal_request()
    stable = stable_context("proposer", request.task, prompts.knowledge, space=space)
    call = proposer_context(request, prompts.knowledge)
    assert "- pull = dro_beta (0..1): Pull of the loss." in prompts.render("proposer", stable, call).system

    config = make_config(root={"overrides": {"ppo_epochs": 2, "train_batch_size": 16, "n": 4}})
    root = PhaseRun(node=0, kind="root", on=None, slot=0)
    planner = Planner(
        config=config,
        n_train=64,
        root=root_hyperparameters(config, 64, space),
        runs={0: root},
        space=space,
    )
    root.spec = planner.root_phase()
    assert root.spec.hyperparameters[PULL.key] == 0.1

    def planned(**changes: Any) -> Any:
        child = PhaseRun(node=1, kind="evolve", on=0, slot=0)
        found = planner.proposed_phase(child, make_proposal(**changes), offered=(0,))
        return found.spec.hyperparameters[PULL.key]

    assert planned(pull="0.4") == 0.4
    for changes, refused in (
        ({"pull": 2}, r"pull=2\.0 .*: must be a number in \[0, 1\]"),
        ({"pull": 0.9}, r"pull=0\.9: too strong for one epoch"),
        ({"pull": 0.4, "ppo_epochs": 1}, r"pull has no effect here: it acts only while ppo_epochs > 1"),
    ):
        with pytest.raises(ProposalError, match=refused):
            planned(**changes)


def test_a_phase_is_planned_in_the_space_that_the_planner_has() -> None:
    root = PhaseRun(node=0, kind="root", on=None, slot=0)
    planner = Planner(
        config=make_config(),
        n_train=64,
        root=SGD.defaults(),
        runs={0: root},
        space=SGD,
    )
    root.spec = planner.root_phase()
    child = PhaseRun(node=1, kind="evolve", on=0, slot=0)
    planned = planner.proposed_phase(child, make_proposal(lr=0.2), offered=(0,))
    assert planned.spec.hyperparameters == {"lr": 0.2, "momentum": 0.5}
    with pytest.raises(ProposalError, match="not known to the toy trainer"):
        planner.proposed_phase(child, make_proposal(kl=0.1), offered=(0,))
