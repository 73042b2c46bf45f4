"""A phase judged as its points come in: the same as going over its whole curve after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from llmzero_ray.config import StopperSettings
from llmzero_ray.records import MetricPoint, StopDecision
from llmzero_ray.records.agents import NodeView, StopRequest
from llmzero_ray.records.metrics import CurveBuilder, Curves, curves_of
from llmzero_ray.stopping.phase_monitor import PhaseMonitor
from llmzero_ray.stopping.policy import StoppingPolicy
from tests.agents import curves as c
from tests.stopping.reports import polled, published
from tests.stopping.test_policy import INCUMBENT, Recorder

SETTINGS = {
    "default": StopperSettings(),
    "one_rule": StopperSettings(collapse=False, unmoved=False),
}
N_SEEDS = 80
N_STEPS = 60


def begun(node: int = 1) -> NodeView:
    return c.node(Curves(), node=node, n_steps=N_STEPS, status="pending")


def judged_whole(policy: StoppingPolicy, seed: int) -> tuple[int, StopDecision] | None:
    """(step, STOP) of the first step at which the rules, asked about the whole curve so far, say so."""
    points = published(seed)
    for n in range(1, len(points) + 1):
        decision = policy.check_rules(c.node(curves_of(points[:n]), n_steps=N_STEPS))
        if decision is not None:
            return points[n - 1].step, decision
    return None


def judged_as_it_came(policy: StoppingPolicy, seed: int, one_batch: bool) -> tuple[int, StopDecision] | None:
    points = published(seed)
    monitor = PhaseMonitor(policy, begun())
    for batch in [tuple(points)] if one_batch else polled(points, seed):
        verdict = monitor.add(batch)
        if verdict is not None:
            assert (verdict.running.node, verdict.running.status) == (1, "running")
            return verdict.running.curves.steps[-1], verdict.decision
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
    assert {*policy.rules, "none"} <= set(fired), fired


@pytest.mark.parametrize("settings", [{"interval_steps": 5}, {"interval_s": 100.0}], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_the_agent_is_due_when_it_would_be_for_the_whole_curve(seed: int, settings: dict[str, float]) -> None:
    points = published(seed)
    policy = StoppingPolicy(StopperSettings(min_steps=3, **settings), Recorder())  # type: ignore[arg-type]
    monitor, taken, asked = PhaseMonitor(policy, begun()), 0, 0
    for batch in polled(points, seed):
        monitor.add(batch)
        taken += len(batch)
        running = monitor.running()
        assert repr(running.curves.steps) == repr(curves_of(points[:taken]).steps)
        due = policy.is_due(running, INCUMBENT)
        assert monitor.is_due(INCUMBENT) == due
        if due:
            asked += 1
            policy.decide(question(running))
    assert asked > 0 or len(points) < 4 + 8


def question(running: NodeView) -> StopRequest:
    return StopRequest(task=c.TASK, running=running, incumbent=INCUMBENT, incumbent_path=())


def test_switched_off_nothing_is_judged() -> None:
    policy = StoppingPolicy(StopperSettings(enabled=False), Recorder())
    for seed in range(20):
        monitor = PhaseMonitor(policy, begun())
        assert monitor.add(published(seed)) is None
        assert not monitor.is_due(INCUMBENT)


def test_a_new_monitor_starts_the_agents_intervals_anew() -> None:
    agent = Recorder()
    policy = StoppingPolicy(StopperSettings(interval_steps=50, min_steps=1), agent)
    points = next(found for seed in range(50) if len(found := published(seed)) > 20)
    for _ in range(2):
        monitor = PhaseMonitor(policy, begun())
        monitor.add(points)
        assert monitor.is_due(INCUMBENT)
        policy.decide(question(monitor.running()))
        assert not monitor.is_due(INCUMBENT)


def naive(points: Sequence[MetricPoint]) -> Curves:
    """Curves by going over all points for each part."""
    steps = [point for point in points if point.step > 0]
    names = dict.fromkeys(name for point in steps for name in point.metrics)
    validated = [(point.step, point.val_score) for point in steps if point.val_score is not None]
    return Curves(
        steps=tuple(point.step for point in steps),
        base_step=points[0].global_step - points[0].step,
        metrics={name: tuple(point.metrics.get(name) for point in steps) for name in names},
        val_steps=tuple(step for step, _ in validated),
        val_scores=tuple(score for _, score in validated),
        start_score=next((point.val_score for point in points if point.step == 0), None),
    )


@pytest.mark.parametrize("seed", range(30))
def test_curves_that_grow_point_by_point_are_those_of_all_points_so_far(seed: int) -> None:
    points = published(seed)
    builder = CurveBuilder()
    for n, point in enumerate(points, start=1):
        builder.add(point)
        grown, whole = builder.build(), naive(points[:n])
        assert builder.n_points == n
        assert repr(grown) == repr(whole)  # NaN is itself, and the order of metrics counts


def test_only_the_named_metrics_are_in_curves_for_rules() -> None:
    builder = CurveBuilder()
    for point in published(5):
        builder.add(point)
    assert set(builder.build(("actor/kl_loss", "unknown")).metrics) <= {"actor/kl_loss"}
