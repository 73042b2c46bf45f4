"""Searches that tests of the coordinator's core begin with."""

from __future__ import annotations

from llmzero_ray.records import PhaseResult, StopDecision
from llmzero_ray.records import events as ev
from llmzero_ray.records.metrics import Curves
from tests.builders import Driver, make_config, make_proposal


def no_curves(_: int) -> Curves:
    return Curves()


def verdict(
    node: int, *, stop: bool = True, attempt: int = 0, source: str = "stopper:v1"
) -> ev.VerdictPosted:
    decision = StopDecision(stop=stop, reason="cannot win", rule="early_stopper")
    return ev.VerdictPosted(
        node=node,
        phase_attempt=attempt,
        step=10,
        decision=decision,
        source=source,
    )


def after_root(**config: object) -> Driver:
    """A search whose root has finished with .5 at step 20, adapters saved at 10 and 20."""
    search = Driver(make_config(**config))
    search.ready()
    search.train(0, score=0.5)
    return search


def finished() -> PhaseResult:
    search = Driver()
    search.ready()
    search.train(0)
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseResult)
    return outcome


def two_slots(runs: int = 6) -> Driver:
    search = Driver(make_config(budget={"runs": runs}, slots={"count": 2}))
    search.ready(0, 1)
    return search


def ended(**config: object) -> Driver:
    """A search of 4 runs that has just ended; node 1, resumed from step 10 of the root, is the best at step
    20."""
    search = Driver(make_config(**config))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.7)
    for node in (2, 3):
        search.propose(node)
        search.train(node, score=0.4)
    return search
