"""A language model as the early stopper of whole runs: what its stops save, and which winners they lose.

    python -m benchmarks.stop_runs

`recorded_runs` has 125 runs of about 80 steps on three tasks of the suite (docs/suite.md), with metrics and
the outcome of every validation item: the default recipe, a tenth of its rate, cosines, and eight phases of
ten steps that count as one run, because each resumed where the one before ended. `PASSES` times, the runs of
a task are put into random order and grouped into searches of four. Each run is judged against the best
earlier run of its search, at every validation at which it is behind and has a fifth of its steps left. Pairs
whose best scores are within the noise of a run are left out, because chance decides them. A winner is a run
that would have beaten the best earlier run and the base model.

`stop_runs_answers.json` has the chances, in percent, that a Claude model gave. It answered in twelve
conversations, each about searches that share no run. None saw a run as the best earlier run before it had
judged that run. Requests about a run ended once its chance was below 3 %.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import lzma
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.stop_recorded import Recorded, at_validations, curves_of, items_of, unrelated
from benchmarks.stop_requests import RUN_NOISE
from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.agents.expert.early_stopper import LATE
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.dynamics.incumbent import score_to_beat, scores_along
from llmzero_ray.records.agents import NodeView, StopRequest, TaskView
from llmzero_ray.records.metrics import Curves
from llmzero_ray.report.formatting import table
from llmzero_ray.stopping.request import stop_request

RUNS = Path(__file__).parent / "recorded_runs"
ANSWERS = Path(__file__).parent / "stop_runs_answers.json"
RECIPE = Path(__file__).parent / "suite" / "suite.yaml"
PASSES, SIZE, STEPS = 6, 4, 80
LIMITS = (3, 4, 5, 10, 15)
"""Chances, in percent, below which the table stops a run."""
BOUNDS = (0, 3, 6, 11, 21, 41, 101)
"""Lowest chances of the groups of requests whose share of winners is printed."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A run and the best earlier run of its search."""

    name: str
    task: str
    runs: Recorded
    running: NodeView
    incumbent: NodeView
    before: Sequence[NodeView]
    """Earlier runs of the search, without their curves."""
    behind: Sequence[NodeView]
    """The run at each validation at which it is behind and has enough steps left to be stopped."""

    @property
    def margin(self) -> float:
        """Best score of the run minus the score to beat."""
        return (self.running.score or 0.0) - _to_beat(self.incumbent)

    @property
    def wins(self) -> bool:
        """Whether the run, had it not been stopped, would have beaten the best one."""
        return self.margin > 0

    def case(self, now: NodeView) -> str:
        """Name of the request at one of these validations."""
        return f"{self.name} at step {now.curves.steps[-1]}"

    def request(self, now: NodeView) -> StopRequest:
        """The request at one of these validations."""
        config = _config()
        task = TaskView(
            name=self.task,
            n_train=config.task.n_train,
            phase_steps=STEPS,
            max_phase_steps=STEPS,
            max_model_len=config.engine.max_prompt_length + config.engine.max_response_length,
            max_prompt_length=config.engine.max_prompt_length,
            test_freq=config.phase.test_freq,
        )
        outcomes = self.runs.outcomes
        chain = self.runs.chains[self.incumbent.node]
        return stop_request(
            config,
            task,
            now,
            chain,
            (),
            lambda node: outcomes.get(node, {}),
            n_val=self.runs.n_val,
            ended=self.before,
        )


def main() -> None:
    """Print both tables."""
    print(f"{text()}\n\n{calibration()}")


def pairs() -> Iterator[Judged]:
    """All judged runs of the searches."""
    for number in range(PASSES):
        for task in sorted(path.name.partition(".")[0] for path in RUNS.glob("*.json.xz")):
            runs = load(task)
            order = random.Random(f"{task} {number}").sample(runs.views, len(runs.views))
            for start in range(0, len(order) - SIZE + 1, SIZE):
                name = f"{task} {number}.{start // SIZE}"
                yield from _search(name, task, runs, order[start : start + SIZE])


def _search(name: str, task: str, runs: Recorded, order: Sequence[NodeView]) -> Iterator[Judged]:
    incumbent = order[0]
    for number, running in enumerate(order[1:], start=1):
        behind = [
            now
            for now in at_validations(runs, running.node)
            if max(now.curves.val_scores) <= _to_beat(incumbent)
            and running.n_steps - now.curves.steps[-1] >= LATE * running.n_steps
        ]
        one = Judged(
            name=f"{name}, run {running.node} against {incumbent.node}",
            task=task,
            runs=runs,
            running=running,
            incumbent=incumbent,
            before=[dataclasses.replace(view, curves=Curves()) for view in order[:number]],
            behind=behind,
        )
        if behind and abs(one.margin) > RUN_NOISE:
            yield one
        if one.wins:
            incumbent = running


@cache
def load(task: str) -> Recorded:
    """The recorded runs of a task, as phases from the base model."""
    found = json.loads(lzma.decompress((RUNS / f"{task}.json.xz").read_bytes()))
    runs, n_val = found["runs"], found["n_val"]
    steps = [range(1, run["steps"] + 1) for run in runs]
    plain = unrelated(
        [curves_of({**run, "steps": own, "base": 0}) for run, own in zip(runs, steps, strict=True)], n_val
    )

    def told(view: NodeView) -> NodeView:
        return dataclasses.replace(view, hyperparameters={**found["root"], **runs[view.node]["changes"]})

    return dataclasses.replace(
        plain,
        views=tuple(map(told, plain.views)),
        chains=tuple((told(view),) for (view,) in plain.chains),
        outcomes={
            node: {int(step): items_of(f"{int(bits, 16):0{n_val}b}") for step, bits in run["items"].items()}
            for node, run in enumerate(runs)
        },
    )


def answers() -> dict[str, int]:
    """Name of a request -> chance in percent."""
    found: dict[str, int] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


def text() -> str:
    """Table of what each judge saves and loses if every run ends at the judge's first STOP."""
    chances, judged = answers(), list(pairs())
    stops = {"rules": {pair.name: _rules_stop(pair) for pair in judged}}
    for limit in LIMITS:
        stops[f"model, chance below {limit} %"] = {
            pair.name: next((now for now in pair.behind if chances.get(pair.case(now), 100) < limit), None)
            for pair in judged
        }
    stops["hindsight"] = {pair.name: None if pair.wins else pair.behind[0] for pair in judged}
    head = ("judge", "losing runs stopped", "their steps saved", "winners stopped")
    return str(table(head, [(judge, *_outcome(judged, at)) for judge, at in stops.items()]))


def calibration() -> str:
    """Table of the number of requests by chance, and the share of them that were about winners."""
    chances = answers()
    given = [
        (chances[name], pair.wins)
        for pair in pairs()
        for now in pair.behind
        if (name := pair.case(now)) in chances
    ]
    rows = []
    for low, high in itertools.pairwise(BOUNDS):
        wins = [won for chance, won in given if low <= chance < high]
        rows.append((f"{low} to {high - 1} %", str(len(wins)), f"{sum(wins) / max(1, len(wins)):.1%}"))
    return str(table(("chance", "requests", "of winners"), rows, right=range(1, 3)))


def _outcome(judged: Sequence[Judged], stops: Mapping[str, NodeView | None]) -> tuple[str, str, str]:
    lost = [pair for pair in judged if not pair.wins]
    won = [pair for pair in judged if pair.wins]
    saved = sum(_left(pair, at) for pair in lost if (at := stops[pair.name]) is not None)
    steps = sum(pair.running.n_steps for pair in lost)
    stopped = [sum(stops[pair.name] is not None for pair in some) for some in (lost, won)]
    return f"{stopped[0]} of {len(lost)}", f"{saved / steps:.0%}", f"{stopped[1]} of {len(won)}"


def _left(pair: Judged, at: NodeView) -> int:
    return pair.running.n_steps - at.curves.steps[-1]


def _rules_stop(pair: Judged) -> NodeView | None:
    judge = ExpertEarlyStopper(n_val=pair.runs.n_val)
    return next((now for now in pair.behind if judge.judge(pair.request(now)).stop), None)


def _to_beat(incumbent: NodeView) -> float:
    return score_to_beat(incumbent.score, scores_along((incumbent,))) or 0.0


@cache
def _config() -> SearchConfig:
    config = read_yaml(RECIPE)
    config["budget"] = {"runs": SIZE}
    config["phase"] |= {"n_steps": STEPS, "max_steps": 320}
    return parse_config(config)


if __name__ == "__main__":
    main()
