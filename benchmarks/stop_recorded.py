"""The stop study on curves of real small runs (those of the tests), for stop_calls.py.

Within a family of runs from one base model each run is judged against each other one as the incumbent, with
all others in the bank, every 5 steps from step 10 (phases of 12 steps at most: from step 5). Ten short runs:
an example of what the bank does with real curves, and no estimate of anything.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from llmzero_ray.agents.base import NodeView, StopRequest, TaskView
from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.metrics import Curves
from llmzero_ray.stopping.curve_bank import CurveBank
from llmzero_ray.stopping.policy import CURVE_BANK, StoppingPolicy
from llmzero_ray.stopping.settings import StopperSettings

RECORDED = Path(__file__).parent / "recorded_phases"
TASK = TaskView(
    name="recorded", n_train=4096, phase_steps=30, max_phase_steps=60, max_model_len=104, max_prompt_length=40
)


def replay() -> dict[str, object]:
    """Calls and stops over all pairs; winners are runs whose best validation beats the incumbent's."""
    from tests.agents import curves as c

    families: dict[str, list[Curves]] = {
        "register, recorded": [c.recorded(number) for number in range(6)],
        "sums": [c.csum_steady(), c.csum_swinging()],
        "register, harder": [c.regh_late(), c.regh_capped()],
    }
    arms = {"ask": False, "bank": True}
    return {
        name: {arm: _family(runs, banked) for arm, banked in arms.items()} for name, runs in families.items()
    }


def _family(runs: Sequence[Curves], banked: bool) -> dict[str, object]:
    first = 5 if max(len(run.steps) for run in runs) <= 12 else 10
    settings = StopperSettings(interval_steps=5, min_steps=first)
    views = [_view(node, run) for node, run in enumerate(runs)]
    found: Counter[str] = Counter()
    for running in views:
        for incumbent in views:
            if incumbent is not running:
                others = [view for view in views if view is not running]
                found += _pair(running, incumbent, settings, others if banked else None)
    return {key: found[key] for key in ("due", "calls", "stopped", "winners", "winners_stopped")}


def _pair(
    running: NodeView, incumbent: NodeView, settings: StopperSettings, others: Sequence[NodeView] | None
) -> Counter[str]:
    bank = None if others is None else CurveBank(n_val=256)
    for other in others or ():
        assert bank is not None
        bank.add(other)
    policy = StoppingPolicy(settings, ExpertEarlyStopper(n_val=256), bank)
    scores = zip(incumbent.curves.val_steps, incumbent.curves.val_scores, strict=True)
    path = tuple((incumbent.base_step + step, score) for step, score in scores)
    found: Counter[str] = Counter()
    found["winners"] = won = int((running.score or 0.0) > (incumbent.score or 0.0))
    for n in range(1, running.n_steps):
        now = dataclasses.replace(running, status="running", curves=_cut(running.curves, n))
        if policy.is_due(now, incumbent):
            decision = policy.decide(
                StopRequest(task=TASK, running=now, incumbent=incumbent, incumbent_path=path)
            )
            found += Counter(due=1, calls=int(decision.rule != CURVE_BANK))
            if decision.stop:
                return found + Counter(stopped=1, winners_stopped=won)
    return found


def _view(node: int, run: Curves) -> NodeView:
    return NodeView(
        node=node,
        kind="root",
        status="completed",
        hyperparameters={},
        n_steps=len(run.steps),
        base_step=run.base_step,
        score=max(run.val_scores),
        best_step=run.val_steps[run.val_scores.index(max(run.val_scores))],
        curves=run,
    )


def _cut(run: Curves, n: int) -> Curves:
    from tests.agents.curves import cut

    return cut(run, n)
