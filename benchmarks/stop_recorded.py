"""The stop study on recorded phases of real training: what stopping saves, and which winners it loses.

    python -m benchmarks.stop_recorded [--json]

There are three kinds of recordings: whole runs of static recipes on the suite's tasks (`suite/headroom_runs`,
validated every ten steps, without training metrics), those of stop_record.py (`recorded_phases`, with the
outcome of every item), and the shorter ones of the tests. As the early stopper would, the study judges every
phase at each of its validations, against every other phase of its task as the incumbent, except its
descendants. A winner is a phase whose best validation, had it not been stopped, beats the incumbent's and the
base model's; any other phase is a losing one. The hindsight bound ends each losing phase at its first
validation.

The runs of one suite task also make up searches: `ORDERS` random orders of `PHASES` runs, each judged against
the best one so far. At equal steps these searches are compared with and without stops, and with searches of
phases that are planned short.

The rule's form was chosen on `DEVELOPMENT`; its three standard errors were chosen after two had lost 5 % of
the winners of `HELD_OUT`. Pairs and searches of one task share phases, so they are not independent samples.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.config import StopperSettings
from llmzero_ray.dynamics.incumbent import score_to_beat, scores_along
from llmzero_ray.records import ItemOutcome
from llmzero_ray.records.agents import NodeView, StopRequest, TaskView
from llmzero_ray.records.metrics import Curves
from llmzero_ray.report.formatting import table
from llmzero_ray.stopping.policy import StoppingPolicy

RECORDED = Path(__file__).parent / "recorded_phases"
HEADROOM_RUNS = Path(__file__).parent / "suite" / "headroom_runs"
DEVELOPMENT = (
    "sum",
    "sum_alpha",
    "register_late",
    "register_capped",
    "rare_chain_a",
    "chain_sum_demo",
    "register of the tests",
)
HELD_OUT = (
    "sum_long",
    "sum_noisy",
    "register_alpha",
    "codes_alpha",
    "chain_sum_a",
    "chain_sum_first",
    "harder register of the tests",
    "sums of the tests",
    "rare_chain_b",
    "chain_sum_b",
)
"""`chain_sum_demo` and `chain_sum_first` are phases of two runs of jobs/configs/local.yaml, the first without
outcomes."""
KINDS = {"development": DEVELOPMENT, "held out": HELD_OUT}
N_VAL = 1024
"""Validation items of the suite's tasks."""
ORDERS, PHASES = 200, 8
BUDGET, SHORT = 320, 20
"""Steps of a search in the comparison of planned lengths (four whole runs), and steps of a phase planned
short."""
TASK = TaskView(
    name="recorded", n_train=4096, phase_steps=30, max_phase_steps=60, max_model_len=104, max_prompt_length=40
)

Outcomes = Mapping[int, Mapping[int, Sequence[ItemOutcome]]]
"""Node -> step -> outcome of each item."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The phases of one search."""

    views: tuple[NodeView, ...]
    chains: tuple[tuple[NodeView, ...], ...]
    """Resume chain of each phase: every earlier phase is cut where the next one resumed, the phase itself at
    its best step."""
    outcomes: Outcomes
    n_val: int


def load(name: str) -> Recorded:
    """A recording."""
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    phases: list[dict[str, Any]] = found["phases"]
    views = [_view(node, curves_of(phase), phase["kind"]) for node, phase in enumerate(phases)]
    sources = [phase["resume_from"] for phase in phases]
    return Recorded(
        views=tuple(views),
        chains=tuple(_chain(views, sources, node) for node in range(len(views))),
        outcomes={
            node: {int(step): items_of(bits) for step, bits in phase["items"].items()}
            for node, phase in enumerate(phases)
        },
        n_val=int(found["n_val"]),
    )


def unrelated(runs: Sequence[Curves], n_val: int) -> Recorded:
    """Runs of one base model as phases from scratch, without outcomes."""
    views = tuple(_view(node, run, "root") for node, run in enumerate(runs))
    cut = tuple((dataclasses.replace(view, curves=view.curves.until(view.best_step or 0)),) for view in views)
    return Recorded(views=views, chains=cut, outcomes={}, n_val=n_val)


def is_late_take_off(view: NodeView) -> bool:
    """Whether validation doubles, with less than a quarter of the gain in the first half of the phase."""
    c, start = view.curves, view.curves.start_score
    early = c.until(view.n_steps // 2).val_scores
    if start is None or not early:
        return False
    gain = max(c.val_scores) - start
    return gain >= start and max(early) - start < gain / 4


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A phase judged against an incumbent."""

    name: str
    winner: bool
    late_take_off: bool
    n_steps: int
    first: int
    """Step of its first validation."""
    stopped_at: int | None
    margin: float
    """Best score of the phase, had it not been stopped, minus the score to beat."""

    @property
    def steps(self) -> int:
        """Steps that the phase trained."""
        return self.n_steps if self.stopped_at is None else self.stopped_at


def pairs(name: str, search: Recorded) -> dict[tuple[int, int], Pair]:
    """Each phase of a search paired with each other phase that does not descend from it, in order of their
    numbers."""
    return {
        (running.node, incumbent.node): _judged(name, search, running, search.chains[incumbent.node])
        for running, incumbent in itertools.permutations(search.views, 2)
        if running.node not in [view.node for view in search.chains[incumbent.node]]
    }


def _judged(name: str, search: Recorded, running: NodeView, chain: tuple[NodeView, ...]) -> Pair:
    incumbent = chain[-1]
    settings = StopperSettings(interval_steps=1, min_steps=1)
    policy = StoppingPolicy(settings, ExpertEarlyStopper(n_val=search.n_val))
    stopped, path = None, scores_along(chain)
    for now in at_validations(search, running.node):
        request = StopRequest(task=TASK, running=now, incumbent=incumbent, incumbent_path=path)
        if policy.is_due(now, incumbent) and policy.decide(request).stop:
            stopped = now.curves.steps[-1]
            break
    margin = (running.score or 0.0) - (score_to_beat(incumbent.score, path) or 0.0)
    return Pair(
        name=f"{name} {running.node} against {incumbent.node}",
        winner=margin > 0,
        late_take_off=is_late_take_off(running),
        n_steps=running.n_steps,
        first=running.curves.val_steps[0],
        stopped_at=stopped,
        margin=margin,
    )


def at_validations(search: Recorded, node: int) -> list[NodeView]:
    """The phase at each of its validations before the last step, the only times of a decision."""
    view = search.views[node]
    return [
        dataclasses.replace(view, status="running", score=None, curves=view.curves.until(step))
        for step in view.curves.val_steps
        if step < view.n_steps
    ]


def figures(judged: Iterable[Pair]) -> dict[str, Any]:
    """Effect of stopping on some pairs. Saved steps and their hindsight bound are shares of the losing
    phases' steps."""
    found = list(judged)
    losing = [pair for pair in found if not pair.winner]
    winners = [pair for pair in found if pair.winner]
    lost = [pair for pair in winners if pair.stopped_at is not None]
    late = [pair for pair in winners if pair.late_take_off]
    total = sum(pair.n_steps for pair in losing)
    return {
        "judged": len(found),
        "stopped": sum(pair.stopped_at is not None for pair in found),
        "losing": len(losing),
        "saved": sum(pair.n_steps - pair.steps for pair in losing) / total if total else None,
        "bound": sum(pair.n_steps - pair.first for pair in losing) / total if total else None,
        "winners": len(winners),
        "winners_lost": {
            pair.name: [pair.stopped_at, round(pair.margin, 3)] for pair in sorted(lost, key=lambda p: p.name)
        },
        "lost": len(lost),
        "late_take_offs_that_win": len(late),
        "late_take_offs_lost": sum(pair.stopped_at is not None for pair in late),
    }


def searched(search: Recorded, known_pairs: Mapping[tuple[int, int], Pair]) -> dict[str, Any]:
    """Effect of stops in searches over the phases of a task in random order, and the best validation at equal
    steps: with stops, without stops, and with phases planned short."""
    rng, judged = random.Random(0), list[Pair]()
    best: dict[str, list[float]] = {"cut": [], "whole": [], "short": []}
    for _ in range(ORDERS):
        order = rng.sample(range(len(search.views)), len(search.views))
        judged += _judgements(order[:PHASES], known_pairs)
        for arm, found in best.items():
            found.append(_best_at_budget(arm, order, search, known_pairs))
    return {**figures(judged), "best": {arm: fmean(found) for arm, found in best.items()}}


def _judgements(order: Sequence[int], known_pairs: Mapping[tuple[int, int], Pair]) -> list[Pair]:
    """Judge each phase after the first against the best one so far; a stopped winner does not become the
    best."""
    found, incumbent = [], order[0]
    for node in order[1:]:
        pair = known_pairs[node, incumbent]
        found.append(pair)
        if pair.winner and pair.stopped_at is None:
            incumbent = node
    return found


def _best_at_budget(
    arm: str, order: Sequence[int], search: Recorded, known_pairs: Mapping[tuple[int, int], Pair]
) -> float:
    """Best validation within `BUDGET` steps; the last phase is cut there."""
    left, best, incumbent = BUDGET, -1.0, None
    for node in order:
        view = search.views[node]
        steps = min(SHORT, view.n_steps) if arm == "short" else view.n_steps
        if arm == "cut" and incumbent is not None:
            steps = known_pairs[node, incumbent].steps
        reached = max(view.curves.until(min(steps, left)).val_scores, default=-1.0)
        if reached > best:
            best, incumbent = reached, node
        left -= steps
        if left <= 0:
            break
    return best


@cache
def report() -> dict[str, dict[str, Any]]:
    """Task -> its kind and its figures: over pairs, and for the suite's tasks also over searches."""
    found = {}
    for kind, names in KINDS.items():
        for name in names:
            if (search := known(name)) is None:
                continue
            judged = pairs(name, search)
            of_pairs = figures(judged.values())
            in_searches = searched(search, judged) if is_of_suite(name) else None
            found[name] = {"kind": kind, "pairs": of_pairs, "searches": in_searches}
    return found


def is_of_suite(name: str) -> bool:
    """Whether these are whole runs of the suite."""
    return (HEADROOM_RUNS / f"{name}.jsonl").is_file()


@cache
def known(name: str) -> Recorded | None:
    """Search by its name, or None if it has not been recorded."""
    from tests.agents import curves as c

    if name == "register of the tests":
        return unrelated([c.recorded(number) for number in range(6)], 256)
    if name == "sums of the tests":
        return unrelated([c.csum_steady(), c.csum_swinging()], 512)
    if name == "harder register of the tests":
        return unrelated([c.regh_late(), c.regh_capped()], 512)
    if is_of_suite(name):
        return unrelated(static_runs(name), N_VAL)
    return load(name) if (RECORDED / f"{name}.json").is_file() else None


def static_runs(name: str) -> list[Curves]:
    """Runs of the suite's headroom measurement, one for each recipe and seed. Runs of three times the length
    are left out, because they repeat others."""
    rows = [
        json.loads(line)
        for line in (HEADROOM_RUNS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    runs = {json.dumps(row["curve"]): row for row in rows if row["times"] == 1}
    return [
        Curves(
            steps=tuple(range(1, row["steps"] + 1)),
            val_steps=tuple(step for step, _ in row["curve"][1:]),
            val_scores=tuple(score for _, score in row["curve"][1:]),
            start_score=row["curve"][0][1],
        )
        for row in runs.values()
    ]


def text_of(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The report as tables."""
    header = ("task", "kind", "judged", "stopped", "of losing phases saved", "bound", "winners lost")
    parts = []
    for what in ("searches", "pairs"):
        rows = [(name, one["kind"], *_row(one[what])) for name, one in found.items() if one[what] is not None]
        parts += [what, table(header, rows, right=range(2, 7))]
    lengths = ("task", "kind", "long, cut", "long, to the end", f"{SHORT} steps")
    best = [
        (name, one["kind"], *(f"{score:.3f}" for score in one["searches"]["best"].values()))
        for name, one in found.items()
        if one["searches"] is not None
    ]
    parts += [f"best validation after {BUDGET} steps", table(lengths, best, right=range(2, 5))]
    return "\n\n".join(parts)


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    shares = ("" if one[name] is None else f"{one[name]:.0%}" for name in ("saved", "bound"))
    stopped = f"{one['stopped'] / one['judged']:.0%}" if one["judged"] else ""
    return (str(one["judged"]), stopped, *shares, f"{one['lost']} of {one['winners']}")


def main(argv: list[str] | None = None) -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    found = report()
    sys.stdout.write((json.dumps(found, indent=1) if parser.parse_args(argv).json else text_of(found)) + "\n")
    return 0


def curves_of(phase: Mapping[str, Any]) -> Curves:
    """Curves of a recorded phase."""
    return Curves(
        steps=tuple(phase["steps"]),
        base_step=phase["base"],
        metrics={name: tuple(values) for name, values in phase["metrics"].items()},
        val_steps=tuple(int(step) for step in phase["val"]),
        val_scores=tuple(phase["val"].values()),
        start_score=phase["start"],
    )


def items_of(bits: str) -> tuple[ItemOutcome, ...]:
    """Outcomes of the items; `bits` has a 0 or 1 for each."""
    return tuple(
        ItemOutcome(index=i, data_source="recorded", score=float(bit), acc=float(bit))
        for i, bit in enumerate(bits)
    )


def _chain(
    views: Sequence[NodeView], sources: Sequence[Sequence[int] | None], node: int
) -> tuple[NodeView, ...]:
    chain = [_until(views[node], views[node].best_step or 0)]
    while (source := sources[chain[0].node]) is not None:
        chain.insert(0, _until(views[source[0]], source[1]))
    return tuple(chain)


def _until(view: NodeView, step: int) -> NodeView:
    return dataclasses.replace(view, curves=view.curves.until(step))


def _view(node: int, run: Curves, kind: str) -> NodeView:
    return NodeView(
        node=node,
        kind=kind,
        status="completed",
        hyperparameters={},
        n_steps=len(run.steps),
        base_step=run.base_step,
        score=max(run.val_scores),
        best_step=run.val_steps[run.val_scores.index(max(run.val_scores))],
        curves=run,
    )


if __name__ == "__main__":
    sys.exit(main())
