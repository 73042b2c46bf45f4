"""GRPO, Dr. GRPO, RLOO, REINFORCE++ and GSPO are chosen in `root.overrides`; PPO is refused, with the
reason."""

from __future__ import annotations

from typing import Any

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.verl.config_check import expected_at_start
from llmzero_ray.engines.verl.overrides import all_overrides
from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.verl_space import space_with
from llmzero_ray.records import PhaseSpec
from tests.builders import make_config, verl_settings

ADVANTAGE, MODE = "algorithm.adv_estimator", "actor_rollout_ref.actor.policy_loss.loss_mode"
NORM, AGGREGATE = "algorithm.norm_adv_by_std_in_grpo", "actor_rollout_ref.actor.loss_agg_mode"
LOW, HIGH = "actor_rollout_ref.actor.clip_ratio_low", "actor_rollout_ref.actor.clip_ratio_high"
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GRPO": ({"adv_norm": True}, {ADVANTAGE: "grpo", NORM: True, MODE: "vanilla"}),
    "Dr. GRPO": (
        {"adv_norm": False, "loss_agg_mode": "seq-mean-token-sum-norm"},
        {ADVANTAGE: "grpo", NORM: False, AGGREGATE: "seq-mean-token-sum-norm"},
    ),
    "RLOO": ({"adv_estimator": "rloo"}, {ADVANTAGE: "rloo", MODE: "vanilla"}),
    "REINFORCE++": ({"adv_estimator": "reinforce_plus_plus"}, {ADVANTAGE: "reinforce_plus_plus"}),
    "GSPO": (
        {
            "loss_mode": "gspo",
            "loss_agg_mode": "seq-mean-token-mean",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
        },
        {ADVANTAGE: "grpo", MODE: "gspo", AGGREGATE: "seq-mean-token-mean", LOW: 3e-4, HIGH: 4e-4},
    ),
}
"""Name -> what a user writes, and what VeRL's configuration has then."""


def config_of(overrides: dict[str, Any], **changes: Any) -> SearchConfig:
    batch = {"batch": 8, "mini_batch": 4, "resp": 16, "micro_batch_size": 4}
    return make_config(root={"overrides": {**batch, **overrides}}, **changes)


def phase_of(overrides: dict[str, Any]) -> PhaseSpec:
    root = hp.resolve(root_hyperparameters(config_of(overrides), 64))
    return PhaseSpec(
        search="s",
        node=0,
        kind="root",
        parent=None,
        resume_from=None,
        adapter=None,
        base_step=0,
        n_steps=2,
        hyperparameters=root,
        seed=1,
        save_freq=2,
        test_freq=2,
        checkpoint_dir="/tmp/none",
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_verl_is_asked_for_the_algorithm_and_accepts_it(name: str) -> None:
    pytest.importorskip("verl")
    from omegaconf import OmegaConf

    from llmzero_ray.engines.verl.driver import _check_config
    from llmzero_ray.engines.verl.overrides import compose

    given, wanted = ALGORITHMS[name]
    config = compose(all_overrides(verl_settings(), phase_of(given), 64))
    assert {key: OmegaConf.select(config, key) for key in wanted} == wanted
    _check_config(config)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_was_chosen_is_read_back_where_it_acts(name: str) -> None:
    given, wanted = ALGORITHMS[name]
    expected = expected_at_start(phase_of(given))
    chosen = {hp.canonical(key) for key in given}
    assert {key: expected[key] for key in chosen} == {key: wanted[key] for key in chosen}


@pytest.mark.parametrize(
    "overrides", [{"adv_estimator": "gae"}, {"algorithm.adv_estimator": "gae", "ppo_epochs": 4}], ids=str
)
def test_ppo_is_refused_with_the_reason_and_the_alternatives(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        root_hyperparameters(config_of(overrides), 64)
    assert "adv_estimator=gae: PPO's critic is not supported: phases exchange" in str(refused.value)
    assert "take grpo, rloo or reinforce_plus_plus" in str(refused.value)


def test_an_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="must be grpo or rloo or reinforce_plus_plus"):
        root_hyperparameters(config_of({"adv_estimator": "remax"}), 64)


def test_a_critic_does_not_come_in_by_the_engine() -> None:
    settings = verl_settings(overrides={"critic.enable": True})
    with pytest.raises(
        ConfigError, match=r"engine\.overrides sets critic\.enable; a critic is not supported"
    ):
        all_overrides(settings, phase_of({}), 64)


def test_a_setting_that_the_estimator_does_not_read_is_named() -> None:
    full = root_hyperparameters(config_of({"adv_estimator": "rloo"}), 64)
    assert hp.VERL_SPACE.inert(full)[NORM] == "only adv_estimator grpo reads it, and rloo is chosen"
    assert NORM not in hp.VERL_SPACE.inert(root_hyperparameters(config_of({}), 64))


def test_proposals_may_choose_the_estimator_where_the_user_allows_it() -> None:
    with pytest.raises(HyperparameterError, match=r"it is the user's choice; agents\.allow in search\.yaml"):
        hp.VERL_SPACE.proposed(ADVANTAGE, "rloo")
    allow = config_of(
        {}, agents={"allow": {"adv_estimator": {"kind": "choice", "choices": ["grpo", "rloo"]}}}
    )
    space = space_with(allow.agents.allow)
    assert space.proposed(ADVANTAGE, "rloo") == "rloo" and space.is_hot(ADVANTAGE)
    with pytest.raises(HyperparameterError):
        space.proposed(ADVANTAGE, "reinforce_plus_plus")


def test_a_choice_that_there_is_not_cannot_be_allowed() -> None:
    allow = config_of({}, agents={"allow": {"adv_estimator": {"kind": "choice", "choices": ["grpo", "opo"]}}})
    with pytest.raises(ConfigError, match="got kind choice with choices grpo, opo"):
        space_with(allow.agents.allow)
