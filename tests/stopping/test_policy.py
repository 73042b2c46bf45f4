"""The order of questions: rules first, the agent at its intervals, and CONTINUE when in doubt."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.config import StopperSettings
from llmzero_ray.records import StopDecision
from llmzero_ray.records.agents import NodeView, StopRequest, TaskView
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.policy import StoppingPolicy
from tests.agents import curves as c

INCUMBENT = c.node(c.csum_steady(), node=0)
PATH = ((0, 0.416), (10, 0.635), (20, 0.824))
EVERY_FIVE = StopperSettings(interval_steps=5, min_steps=10)


class Recorder:
    """An agent with scripted decisions that records its calls."""

    def __init__(self, stop: bool = False, error: Exception | None = None) -> None:
        self.asked: list[int] = []
        self.requests: list[StopRequest] = []
        self._stop = stop
        self._error = error

    def judge(self, request: StopRequest) -> StopDecision:
        self.asked.append(request.running.curves.steps[-1])
        self.requests.append(request)
        if self._error is not None:
            raise self._error
        return StopDecision(stop=self._stop, reason="told so", rule="early_stopper")


def decide(
    policy: StoppingPolicy,
    task: TaskView,
    running: NodeView,
    incumbent: NodeView | None = None,
    incumbent_path: Sequence[tuple[int, float]] = (),
) -> StopDecision:
    """STOP or CONTINUE for one phase as the stopper decides: the rules, then the agent where it is due."""
    ruled = policy.check_rules(running)
    if ruled is not None:
        return ruled
    if not policy.is_due(running, incumbent):
        return StopDecision(stop=False, reason="not due", rule="policy")
    assert incumbent is not None
    path = tuple(incumbent_path)
    return policy.decide(StopRequest(task=task, running=running, incumbent=incumbent, incumbent_path=path))


def validated_at_every_step() -> Curves:
    return dataclasses.replace(
        c.csum_swinging(), val_steps=tuple(range(1, 41)), val_scores=tuple(c.line(0.5, 0.6, 40, 0.02))
    )


def running(n: int, found: Curves | None = None, node: int = 1) -> NodeView:
    shown = validated_at_every_step() if found is None else found
    return c.node(c.cut(shown, n), node=node, n_steps=40, status="running")


def steps_asked(policy: StoppingPolicy, agent: Recorder, n: int = 30, node: int = 1) -> list[int]:
    for step in range(1, n + 1):
        decide(policy, c.TASK, running(step, node=node), INCUMBENT, PATH)
    return agent.asked


def test_the_agent_is_first_asked_at_min_steps_then_at_every_interval() -> None:
    agent = Recorder()
    assert steps_asked(StoppingPolicy(EVERY_FIVE, agent), agent) == [10, 15, 20, 25, 30]


def test_without_a_new_validation_there_is_nothing_new_to_decide() -> None:
    agent = Recorder()
    policy = StoppingPolicy(StopperSettings(interval_steps=1, min_steps=5), agent)
    for step in range(1, 31):  # validated at 10, 20 and 30
        decide(policy, c.TASK, running(step, c.csum_swinging()), INCUMBENT, PATH)
    assert agent.asked == [10, 20, 30]


def test_what_the_stopper_before_this_one_decided_is_not_asked_again() -> None:
    agent = Recorder()
    policy = StoppingPolicy(EVERY_FIVE, agent)
    policy.resume(1, 15)
    assert steps_asked(policy, agent, 24) == [20]


def test_min_steps_holds_even_for_a_shorter_interval() -> None:
    agent = Recorder()
    policy = StoppingPolicy(StopperSettings(interval_steps=1, min_steps=12), agent)
    assert steps_asked(policy, agent, 14) == [12, 13, 14]


def test_steps_that_were_missed_are_caught_up_with_one_question() -> None:
    agent = Recorder()
    policy = StoppingPolicy(EVERY_FIVE, agent)
    for step in (3, 13, 14, 19, 23):
        decide(policy, c.TASK, running(step), INCUMBENT, PATH)
    assert agent.asked == [13, 19]


def test_without_an_incumbent_there_are_rules_only() -> None:
    agent = Recorder(stop=True)
    policy = StoppingPolicy(EVERY_FIVE, agent)
    unscored = c.node(Curves(), node=0)
    for incumbent in (None, unscored, running(20)):
        assert not decide(policy, c.TASK, running(20), incumbent).stop
    assert agent.asked == []
    assert decide(policy, c.TASK, running(19, c.sort_collapse()), None).rule == "collapse"


def test_without_an_agent_there_are_rules_only() -> None:
    policy = StoppingPolicy(EVERY_FIVE)
    assert not decide(policy, c.TASK, running(20), INCUMBENT, PATH).stop
    assert decide(policy, c.TASK, running(19, c.sort_collapse()), INCUMBENT, PATH).stop


def test_rules_come_before_the_agent_and_before_min_steps() -> None:
    agent = Recorder()
    policy = StoppingPolicy(EVERY_FIVE, agent)
    broken = Curves(steps=(1, 2), metrics={"actor/pg_loss": (0.1, math.nan)})
    decision = decide(policy, c.TASK, running(2, broken), INCUMBENT, PATH)
    assert (decision.stop, decision.hard, decision.rule) == (True, True, "non_finite")
    assert agent.asked == []


def test_the_agent_sees_the_run_the_incumbent_and_its_path() -> None:
    agent = Recorder(stop=True)
    decision = decide(StoppingPolicy(EVERY_FIVE, agent), c.TASK, running(10), INCUMBENT, list(PATH))
    assert decision == StopDecision(stop=True, reason="told so", rule="early_stopper")
    (requests,) = agent.requests
    assert (requests.running.node, requests.incumbent, requests.incumbent_path) == (1, INCUMBENT, PATH)


def test_the_agent_sees_findings_of_the_pre_checks_besides_those_of_the_request() -> None:
    agent = Recorder()
    dead = c.curves(12, reward=[0.4] * 12, lr=[0.0] * 12)
    request = StopRequest(
        task=c.TASK, running=running(12, dead), incumbent=INCUMBENT, incumbent_path=PATH, checks=("known",)
    )
    StoppingPolicy(EVERY_FIVE, agent).decide(request)
    (requests,) = agent.requests
    assert requests.checks == (
        "known",
        "dead: Nothing moves: the policy is still the one the phase started from; "
        "actor/lr is 0 in all 12 steps",
    )


def test_each_phase_has_its_own_interval_and_a_forgotten_one_begins_again() -> None:
    agent = Recorder()
    policy = StoppingPolicy(EVERY_FIVE, agent)
    decide(policy, c.TASK, running(10, node=1), INCUMBENT, PATH)
    decide(policy, c.TASK, running(11, node=2), INCUMBENT, PATH)
    decide(policy, c.TASK, running(12, node=1), INCUMBENT, PATH)
    assert agent.asked == [10, 11]
    policy.forget(1)
    decide(policy, c.TASK, running(12, node=1), INCUMBENT, PATH)
    assert agent.asked == [10, 11, 12]


def test_an_agent_that_fails_means_continue_until_its_next_turn() -> None:
    agent = Recorder(error=RuntimeError("no network"))
    policy = StoppingPolicy(EVERY_FIVE, agent)
    decision = decide(policy, c.TASK, running(10), INCUMBENT, PATH)
    assert not decision.stop
    assert "no network" in decision.reason
    decide(policy, c.TASK, running(11), INCUMBENT, PATH)
    assert agent.asked == [10]


def test_switched_off_nothing_is_ended() -> None:
    agent = Recorder(stop=True)
    policy = StoppingPolicy(StopperSettings(enabled=False), agent)
    broken = Curves(steps=(1, 2), metrics={"actor/pg_loss": (0.1, math.nan)})
    assert not decide(policy, c.TASK, running(2, broken), INCUMBENT, PATH).stop
    assert steps_asked(policy, agent) == []


def test_a_phase_that_has_not_logged_a_step_is_left_alone() -> None:
    agent = Recorder(stop=True)
    assert not decide(StoppingPolicy(EVERY_FIVE, agent), c.TASK, running(0), INCUMBENT, PATH).stop
    assert agent.asked == []


def test_a_hopeless_phase_is_ended_by_the_expert_at_min_steps() -> None:
    policy = StoppingPolicy(StopperSettings(interval_steps=4, min_steps=8), ExpertEarlyStopper(n_val=512))
    dead = c.untrained(15, level=0.42)
    rated = Curves(**{**vars(dead), "metrics": {**dead.metrics, "actor/lr": (0.0,) * 15}})
    stopped_at = next(
        n for n in range(1, 16) if decide(policy, c.TASK, running(n, rated), INCUMBENT, PATH).stop
    )
    assert stopped_at == 8


def test_without_a_number_of_steps_seconds_of_training_decide_when_the_agent_is_asked_again() -> None:
    agent = Recorder()
    policy = StoppingPolicy(StopperSettings(interval_s=100.0, min_steps=10), agent)
    for step in range(1, 20):
        steady = running(step)
        times = {**steady.curves.metrics, "timing_s/step": (30.0,) * len(steady.curves.steps)}
        timed = dataclasses.replace(steady, curves=dataclasses.replace(steady.curves, metrics=times))
        decide(policy, c.TASK, timed, INCUMBENT, PATH)
    assert agent.asked == [10, 14, 18]  # 4 steps of 30 s are the first to make 100 s
