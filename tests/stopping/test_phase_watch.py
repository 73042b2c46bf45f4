"""A phase judged as its points come in: the same as going over its whole curve after every step."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest

from llmzero_ray.agents.base import Curves, NodeView, StopRequest
from llmzero_ray.records import Hyperparameters, StopDecision
from llmzero_ray.series import curves_of
from llmzero_ray.stopping.policy import StoppingPolicy
from llmzero_ray.stopping.settings import StopperSettings
from tests.agents import curves as c
from tests.stopping.reports import logged, polled, published, sound
from tests.stopping.test_policy import INCUMBENT, Recorder

ALL = {"dead_run": True, "entropy_collapse": True, "kl_runaway": True, "truncation_flood": True}
SETTINGS = {
    "default": StopperSettings(),
    "patient": StopperSettings(nonfinite_steps=2, collapse_window=2, kl_spike_factor=5.0, reward_drop=0.4),
    "no_collapse": StopperSettings(collapse=False, **ALL),
    **{name: StopperSettings(collapse=False, nonfinite_steps=60, **{name: True}) for name in ALL},
}
N_SEEDS = 80


def begun(node: int = 1) -> NodeView:
    return c.node(Curves(), node=node, n_steps=60, status="pending")


def judged_whole(policy: StoppingPolicy, seed: int) -> tuple[int, StopDecision] | None:
    """(step, STOP) of the first step at which the rules, asked about the whole curve so far, say so."""
    points = published(seed)
    for n in range(1, len(points) + 1):
        decision = policy.check_rules(curves_of(points[:n]), c.TINY)
        if decision is not None:
            return points[n - 1].step, decision
    return None


def judged_as_it_came(policy: StoppingPolicy, seed: int, one_batch: bool) -> tuple[int, StopDecision] | None:
    points = published(seed)
    watch = policy.watch(begun())
    for batch in [logged(points).since(0)] if one_batch else polled(points, seed):
        ruling = watch.take(batch)
        if ruling is not None:
            assert (ruling.running.node, ruling.running.status) == (1, "running")
            return ruling.running.curves.steps[-1], ruling.decision
    return None


@pytest.mark.parametrize("name", SETTINGS)
def test_judging_what_is_new_is_judging_the_whole_curve_after_each_step(name: str) -> None:
    policy = StoppingPolicy(SETTINGS[name])
    fired: Counter[str] = Counter()
    for seed in range(N_SEEDS):
        expected = judged_whole(policy, seed)
        assert judged_as_it_came(policy, seed, one_batch=False) == expected, seed
        assert judged_as_it_came(policy, seed, one_batch=True) == expected, seed
        fired[expected[1].rule if expected else "none"] += 1
    rules = {rule.name for rule in policy.stopping if name not in ALL or rule.name == name}
    assert rules | {"none"} <= set(fired), fired


class Counting(StoppingPolicy):
    """Notes the length of every curve that the rules had to go over."""

    checked: list[int]

    def check_rules(
        self, curves: Curves, hyperparameters: Hyperparameters | None = None
    ) -> StopDecision | None:
        self.checked.append(len(curves.steps))
        return super().check_rules(curves, hyperparameters)


def test_rules_do_not_go_over_the_curve_of_a_sound_phase_again() -> None:
    policy = Counting(StopperSettings(**ALL))
    policy.checked = []
    watch = policy.watch(begun())
    assert all(watch.take(batch) is None for batch in polled(sound(200), 1))
    assert policy.checked == []
    broken = dataclasses.replace(sound(201)[-1], metrics={"actor/pg_loss": math.nan})
    assert watch.take(logged([broken]).since(0)) is not None
    assert policy.checked == [201]


@pytest.mark.parametrize("settings", [{"interval_steps": 5}, {"interval_s": 100.0}], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_the_agent_is_due_when_it_would_be_for_the_whole_curve(seed: int, settings: dict[str, float]) -> None:
    points = published(seed)
    policy = StoppingPolicy(StopperSettings(min_steps=3, **settings), Recorder())  # type: ignore[arg-type]
    watch, taken, asked = policy.watch(begun()), 0, 0
    for batch in polled(points, seed):
        watch.take(batch)
        taken += len(batch)
        running = watch.running()
        assert repr(running.curves.steps) == repr(curves_of(points[:taken]).steps)
        due = policy.is_due(running, INCUMBENT)
        assert watch.is_due(INCUMBENT) == due
        if due:
            asked += 1
            policy.ask(question(running))
    assert asked > 0 or len(points) < 4 + 8


def question(running: NodeView) -> StopRequest:
    return StopRequest(task=c.TASK, running=running, incumbent=INCUMBENT, incumbent_path=())


def test_switched_off_nothing_is_judged() -> None:
    policy = StoppingPolicy(StopperSettings(enabled=False), Recorder())
    for seed in range(20):
        watch = policy.watch(begun())
        assert watch.take(logged(published(seed)).since(0)) is None
        assert not watch.is_due(INCUMBENT)


def test_a_watch_begins_the_phase_anew_for_the_agent() -> None:
    agent = Recorder()
    policy = StoppingPolicy(StopperSettings(interval_steps=50, min_steps=1), agent)
    points = next(found for seed in range(50) if len(found := published(seed)) > 20)
    for _ in range(2):
        watch = policy.watch(begun())
        watch.take(logged(points).since(0))
        assert watch.is_due(INCUMBENT)
        policy.ask(question(watch.running()))
        assert not watch.is_due(INCUMBENT)
