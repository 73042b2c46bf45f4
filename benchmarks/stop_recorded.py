"""The stop study on recorded phases of real training: what stopping saves, and which winners it loses.

    python -m benchmarks.stop_recorded [--fit]

The recordings are those of stop_record.py (`benchmarks/recorded_phases`, VeRL on the CPU, outcomes of every
item) and the shorter ones of the tests, without outcomes. Every phase of a search is judged step by step, as
the stopper would, against every other one of it that does not descend from it as the incumbent, with that
one's whole resume chain. A winner is a phase whose best validation, had it run on, beats the incumbent's; a
losing phase is any other. Pairs of one search share phases: they are no independent samples.

Thresholds of the expert are fixed on the searches in `DEVELOPMENT` (`--fit`: of a grid, those that lose no
winner there and save within `TOLERANCE` of the most steps; of these the most patient) and reported on the
searches in `HELD_OUT`. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.agents.expert.early_stopper import FITTED, Thresholds
from llmzero_ray.config.stopping import StopperSettings
from llmzero_ray.dynamics.incumbent import scores_along, standings
from llmzero_ray.records import ItemOutcome
from llmzero_ray.records.agents import EarlyStopper, NodeView, StopRequest, TaskView
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.policy import StoppingPolicy

RECORDED = Path(__file__).parent / "recorded_phases"
DEVELOPMENT = ("rare_chain_a", "chain_sum_demo", "register of the tests")
HELD_OUT = (
    "chain_sum_a",
    "chain_sum_first",
    "harder register of the tests",
    "sums of the tests",
    "rare_chain_b",
    "chain_sum_b",
)
"""Those that have been recorded are reported. `chain_sum_demo` and `chain_sum_first` are phases of two runs
of jobs/configs/local.yaml, the first without outcomes."""
KINDS = {"development": DEVELOPMENT, "held out": HELD_OUT}
TASK = TaskView(
    name="recorded", n_train=4096, phase_steps=30, max_phase_steps=60, max_model_len=104, max_prompt_length=40
)
GRID = {
    "earliest": (0.25, 0.33, 0.5, 0.6, 0.75),
    "behind": (1.0, 2.0),
    "slack": (1.0, 2.0, 3.0),
    "take_off": (0.15, 0.3, 0.5),
}
TOLERANCE = 0.05
"""Share of steps: a smaller difference decides nothing on so few phases."""

Outcomes = Mapping[int, Mapping[int, Sequence[ItemOutcome]]]
"""Node -> step -> outcome of each item."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The phases of one search."""

    views: tuple[NodeView, ...]
    chains: tuple[tuple[NodeView, ...], ...]
    """Resume chain of each phase: every phase cut where the next one resumed, the phase itself at its best
    step."""
    outcomes: Outcomes
    n_val: int


def load(name: str) -> Recorded:
    """A recording."""
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    phases: list[dict[str, Any]] = found["phases"]
    views = [_view(node, _curves(phase), phase["kind"]) for node, phase in enumerate(phases)]
    sources = [phase["resume_from"] for phase in phases]
    return Recorded(
        views=tuple(views),
        chains=tuple(_chain(views, sources, node) for node in range(len(views))),
        outcomes={
            node: {int(step): _items(bits) for step, bits in phase["items"].items()}
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
    """Whether validation doubles, and had less than a quarter of its gain at half of the phase."""
    c, start = view.curves, view.curves.start_score
    early = c.until(view.n_steps // 2).val_scores
    if start is None or not early:
        return False
    gain = max(c.val_scores) - start
    return gain >= start and max(early) - start < gain / 4


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A phase that was judged against an incumbent."""

    name: str
    winner: bool
    late_take_off: bool
    n_steps: int
    stopped_at: int | None
    margin: float
    """Best score of the phase, had it run on, minus the incumbent's."""


def pairs(name: str, search: Recorded, thresholds: Thresholds = FITTED) -> Iterable[Pair]:
    """Every phase of a search against every other one that does not descend from it."""
    agent = ExpertEarlyStopper(n_val=search.n_val, thresholds=thresholds)
    for running, incumbent in itertools.permutations(search.views, 2):
        chain = search.chains[incumbent.node]
        if running.node not in [view.node for view in chain]:
            yield _judged(name, search, agent, running, chain)


def _judged(
    name: str,
    search: Recorded,
    agent: EarlyStopper,
    running: NodeView,
    chain: tuple[NodeView, ...],
) -> Pair:
    incumbent = chain[-1]
    policy = StoppingPolicy(StopperSettings(interval_steps=1, min_steps=5), agent)
    stopped = None
    for now in at_validations(search, running.node):
        if not policy.is_due(now, incumbent):
            continue
        request = StopRequest(
            task=TASK,
            running=now,
            incumbent=incumbent,
            incumbent_path=scores_along(chain),
            incumbent_chain=chain,
            standings=_standings(search, now, chain),
        )
        if policy.decide(request).stop:
            stopped = now.curves.steps[-1]
            break
    margin = (running.score or 0.0) - (incumbent.score or 0.0)
    return Pair(
        name=f"{name} {running.node} against {incumbent.node}",
        winner=margin > 0,
        late_take_off=is_late_take_off(running),
        n_steps=running.n_steps,
        stopped_at=stopped,
        margin=margin,
    )


def at_validations(search: Recorded, node: int) -> list[NodeView]:
    """The phase at each of its validations before the last step: nothing else makes a decision due."""
    view = search.views[node]
    return [
        dataclasses.replace(view, status="running", score=None, curves=view.curves.until(step))
        for step in view.curves.val_steps
        if step < view.n_steps
    ]


_KNOWN: dict[tuple[int, int, int, int], Any] = {}


def _standings(search: Recorded, now: NodeView, chain: tuple[NodeView, ...]) -> Any:
    """The same for all thresholds of a grid: taken once."""
    key = (id(search), now.node, now.curves.steps[-1], chain[-1].node)
    if key not in _KNOWN:
        _KNOWN[key] = standings(now, chain, lambda n: search.outcomes.get(n, {}), n_val=search.n_val)
    return _KNOWN[key]


def figures(judged: Iterable[Pair]) -> dict[str, Any]:
    """What stopping did over some pairs."""
    found = list(judged)
    losing = [pair for pair in found if not pair.winner]
    winners = [pair for pair in found if pair.winner]
    lost = [pair for pair in winners if pair.stopped_at is not None]
    late = [pair for pair in winners if pair.late_take_off]
    total = sum(pair.n_steps for pair in losing)
    left = sum(pair.n_steps - pair.stopped_at for pair in losing if pair.stopped_at is not None)
    return {
        "pairs": len(found),
        "losing": len(losing),
        "losing_stopped": sum(pair.stopped_at is not None for pair in losing),
        "steps_of_losing_saved": round(left / total, 3) if total else None,
        "winners": len(winners),
        "winners_lost": {pair.name: [pair.stopped_at, round(pair.margin, 3)] for pair in lost},
        "late_take_offs_that_win": len(late),
        "late_take_offs_lost": sum(pair.stopped_at is not None for pair in late),
    }


def report(thresholds: Thresholds = FITTED) -> dict[str, Any]:
    """Figures of every search."""
    return {
        f"{kind}: {name}": _arms(name, search, thresholds)
        for kind, names in KINDS.items()
        for name in names
        if (search := known(name)) is not None
    }


def together(thresholds: Thresholds = FITTED) -> dict[str, Any]:
    """Figures of the expert over all searches of a kind."""
    return {
        kind: figures(
            pair
            for name in names
            if (search := known(name)) is not None
            for pair in pairs(name, search, thresholds)
        )
        for kind, names in KINDS.items()
    }


def _arms(name: str, search: Recorded, thresholds: Thresholds) -> dict[str, Any]:
    late = sum(map(is_late_take_off, search.views))
    return {
        "phases": len(search.views),
        "late_take_offs": late,
        "expert": figures(pairs(name, search, thresholds)),
    }


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
    return load(name) if (RECORDED / f"{name}.json").is_file() else None


def fit() -> list[dict[str, Any]]:
    """Every point of the grid on the development searches, the chosen one first."""
    searches = {name: search for name in DEVELOPMENT if (search := known(name)) is not None}
    rows = []
    for values in itertools.product(*GRID.values()):
        thresholds = Thresholds(**dict(zip(GRID, values, strict=True)))
        found = figures(pair for name, search in searches.items() for pair in pairs(name, search, thresholds))
        rows.append(
            {**vars(thresholds), "lost": len(found["winners_lost"]), "saved": found["steps_of_losing_saved"]}
        )
    most = max((row["saved"] for row in rows if not row["lost"]), default=0.0)
    # The most patient: judged later, behind by more, more slack, a smaller rise announces a take-off.
    return sorted(
        rows,
        key=lambda r: (
            r["lost"] > 0 or r["saved"] < most - TOLERANCE,
            -r["earliest"],
            -r["slack"],
            -r["behind"],
            r["take_off"],
        ),
    )


def main(argv: list[str] | None = None) -> int:
    """Print the report, or the best points of the grid."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="search the grid on the development recordings")
    options = parser.parse_args(argv)
    found: Any = {"grid": GRID, "best": fit()[:10]} if options.fit else {**report(), "together": together()}
    sys.stdout.write(json.dumps({"thresholds": vars(FITTED), "found": found}, indent=1) + "\n")
    return 0


def _curves(phase: Mapping[str, Any]) -> Curves:
    return Curves(
        steps=tuple(phase["steps"]),
        base_step=phase["base"],
        metrics={name: tuple(values) for name, values in phase["metrics"].items()},
        val_steps=tuple(int(step) for step in phase["val"]),
        val_scores=tuple(phase["val"].values()),
        start_score=phase["start"],
    )


def _items(bits: str) -> tuple[ItemOutcome, ...]:
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
