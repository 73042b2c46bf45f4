"""Value of early stops and of confirmation in hindsight, from the journals of finished searches.

    python -m benchmarks.hindsight runs/demo runs/first ... [--json]

Each argument is a search, or the directory of a comparison. Prints for every search, and as means:

- Stops. A phase could have been stopped if it did not fail, never exceeded the best score known when it
  began, and is not part of the best strategy: a stop at its first validation (from `stopper.min_steps` on, or
  half of a short phase) would have lost nothing. `could be saved` is the compute of such phases after that
  point, as a share of all compute. `was saved` is the compute of planned steps that actual stops skipped, as
  a share of what the search would have computed without stops.
- Selection. The regret is the best node's test score minus that of the chosen node, chosen by the best
  validation score or by confirmation on fresh items. One half of the test items decides which node is best,
  the other half measures the distance to it, and vice versa, so that no node is measured on the items that
  selected it. This needs searches with `confirm.k` of 2 or more and `final.test: all`, which a comparison
  takes from a task's `set`.

Goal: with confirmation, at most half the regret.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.hyperparameters.compute import amount, token_cost, tokens_of
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.formatting import table
from llmzero_ray.storage.metric_files import load_points


@dataclass(frozen=True, kw_only=True)
class Stops:
    """Possible savings by stops in one search, in the unit of its costs."""

    compute: float
    """Compute of all phases."""
    could_be_saved: float
    """Compute of phases after the point at which a stop would have lost nothing."""
    was_saved: float
    """Compute of planned steps that actual stops skipped."""
    n_stopped: int
    n_hopeless: int
    """Number of phases that a stop could have ended without a loss, including phases that were stopped."""

    @property
    def share_left(self) -> float:
        """`could_be_saved` as a share of all compute."""
        return self.could_be_saved / self.compute if self.compute else 0.0

    @property
    def share_saved(self) -> float:
        """`was_saved` as a share of the compute without stops."""
        return self.was_saved / (self.was_saved + self.compute) if self.compute else 0.0


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Test accuracy that the choice of the winner lost in one search."""

    by_validation: float
    by_confirmation: float


def stops(facts: SearchFacts) -> Stops:
    """Compute of a search's phases, and the part that stops in hindsight would have saved."""
    known = _best_before(facts)
    whole = could = was = 0.0
    n_stopped = n_hopeless = 0
    for node, run in facts.runs.items():
        if run.spec is None or run.outcome is None or node == REFERENCE:
            continue
        spent = _spent(facts, run)
        used = spent[-1][1] if spent else 0.0
        whole += used
        if run.status == "early_stopped" and run.outcome.steps_done:
            n_stopped += 1
            was += used / run.outcome.steps_done * max(0, run.spec.n_steps - run.outcome.steps_done)
        best, score = known.get(node), run.outcome.best_score
        is_better = score is not None and best is not None and score > best
        if best is None or is_better or run.status == "failed" or node in facts.path_nodes:
            continue
        n_hopeless += 1
        least = facts.config.stopper.first_question(run.spec.n_steps)
        judged = [computed for step, computed, scored in spent if scored and step >= least]
        could += used - judged[0] if judged else 0.0
    return Stops(
        compute=whole, could_be_saved=could, was_saved=was, n_stopped=n_stopped, n_hopeless=n_hopeless
    )


def _best_before(facts: SearchFacts) -> dict[int, float]:
    """Node -> best score of the nodes that had ended when its phase began; missing if none had."""
    best: float | None = None
    known: dict[int, float] = {}
    for event in facts.events:
        if isinstance(event, ev.PhaseStarted) and best is not None:
            known.setdefault(event.node, best)
        elif isinstance(event, ev.PhaseFinished) and event.node != REFERENCE:
            score = event.result.best_score
            best = score if best is None or (score is not None and score > best) else best
    return known


def _spent(facts: SearchFacts, run: PhaseRun) -> list[tuple[int, float, bool]]:
    """(step, compute of the phase up to that step, whether that step was validated)."""
    assert run.spec is not None
    cost, used = token_cost(facts.config), 0.0
    found = []
    for point in load_points(facts.storage, run.node):
        used += amount(tokens_of(run.spec.hyperparameters, point.metrics), cost)
        found.append((point.step, used, point.val_score is not None))
    return found


def selection(facts: SearchFacts) -> Selection | None:
    """Regret of both choices. None if the search did not confirm, or did not test every node."""
    final = facts.core.final
    tested = _outcomes(facts)
    scored = [
        (run.score, -node) for node, run in facts.runs.items() if run.score is not None and node in tested
    ]
    if len(final.confirmed) < 2 or final.winner not in tested or len(tested) < 2 or not scored:
        return None
    chosen = -max(scored)[1]
    return Selection(
        by_validation=regret(tested, chosen), by_confirmation=regret(tested, int(final.winner or 0))
    )


def regret(tested: Mapping[int, Mapping[int, float]], chosen: int) -> float:
    """Distance of a node from the best one, given item -> outcome of each node. One half of the items selects
    the best node, the other half measures the distance; averaged over both assignments of the halves."""
    items = sorted(set.intersection(*(set(outcomes) for outcomes in tested.values())))
    halves = (items[::2], items[1::2])
    found = []
    for named_by, measured_by in (halves, halves[::-1]):
        means = {node: statistics.fmean(own[i] for i in named_by) for node, own in tested.items()}
        best = max(means, key=lambda node: (means[node], node == chosen))
        found.append(statistics.fmean(tested[best][i] - tested[chosen][i] for i in measured_by))
    return statistics.fmean(found)


def _outcomes(facts: SearchFacts) -> dict[int, dict[int, float]]:
    """Node -> test item -> outcome of its best step, for all nodes that were tested."""
    found = {}
    for what, job in facts.core.final.jobs.items():
        if job.node is not None and (what == "best" or what.startswith("node-")):
            outcomes = {item.index: item.acc for item in facts.test_items(what)}
            if outcomes:
                found[job.node] = outcomes
    return found


def searches(places: Sequence[Path]) -> Iterator[SearchFacts]:
    """The named searches, and the finished searches of the named comparisons.

    Raises:
        LlmzeroError: a directory holds no search.
    """
    for place in places:
        inside = sorted(path.parent for path in place.glob("*/journal"))
        if (place / "journal").is_dir() or not inside:
            yield SearchFacts(place)
            continue
        for path in inside:
            facts = SearchFacts(path)
            if facts.core.end_reason is not None and "-pilot-" not in facts.config.name:
                yield facts


def summary(found: Sequence[SearchFacts]) -> dict[str, object]:
    """Per search and together: shares of compute, mean regrets with standard errors, and their ratio."""
    rows = {f"{n}: {facts.config.name}": (stops(facts), selection(facts)) for n, facts in enumerate(found, 1)}
    chosen = [one for _, one in rows.values() if one is not None]
    plain, confirmed = [one.by_validation for one in chosen], [one.by_confirmation for one in chosen]
    base, with_it = _mean(plain), _mean(confirmed)
    return {
        "searches": {
            name: {"stops": asdict(one), "selection": None if two is None else asdict(two)}
            for name, (one, two) in rows.items()
        },
        "could_be_saved": _mean([one.share_left for one, _ in rows.values()]),
        "was_saved": _mean([one.share_saved for one, _ in rows.values()]),
        "n_with_regret": len(chosen),
        "regret_by_validation": (base, _error(plain)),
        "regret_by_confirmation": (with_it, _error(confirmed)),
        "regret_ratio": with_it / base if base > 0 else math.nan,
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def text_of(found: dict[str, object]) -> str:
    """The summary as a table and two sentences."""
    rows = []
    per_search = found["searches"]
    assert isinstance(per_search, dict)
    for name, one in per_search.items():
        own, choice = Stops(**one["stops"]), one["selection"]
        rows.append(
            (
                name,
                f"{own.compute:.4g}",
                f"{own.n_hopeless} / {own.n_stopped}",
                f"{own.share_left:.3f}",
                f"{own.share_saved:.3f}",
                "" if choice is None else f"{choice['by_validation']:+.4f}",
                "" if choice is None else f"{choice['by_confirmation']:+.4f}",
            )
        )
    header = ("search", "compute", "hopeless / stopped phases", "could be saved", "was saved")
    columns = (*header, "regret by validation", "by confirmation")
    text = [
        table(columns, rows, right=range(1, 7)),
        f"Of the compute {found['could_be_saved']:.3f} went into phases after a stop that would have lost "
        f"nothing; stops saved {found['was_saved']:.3f} of what would have been spent without them.",
    ]
    if not found["n_with_regret"]:
        return "\n\n".join([*text, "No search says what its choice lost: set final.test: all, confirm.k: 3."])
    by = {}
    for kind in ("validation", "confirmation"):
        value = found[f"regret_by_{kind}"]
        assert isinstance(value, tuple)
        by[kind] = f"{value[0]:+.4f} ± {value[1]:.4f}"
    ratio = found["regret_ratio"]
    assert isinstance(ratio, float)
    said = (
        "no ratio, as the best validation score lost nothing"
        if math.isnan(ratio)
        else f"{ratio:.2f} times as much (goal: at most 0.5)"
    )
    text.append(
        f"Regret over {found['n_with_regret']} searches: {by['validation']} by the best validation score, "
        f"{by['confirmation']} by confirmation, {said}."
    )
    return "\n\n".join(text)


def main() -> None:
    """Print the tables, or with --json one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="+", type=Path, help="searches, or directories of comparisons")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        found = summary(list(searches(given.places)))
    except LlmzeroError as error:
        sys.exit(str(error))
    print(json.dumps(found, indent=1) if given.json else text_of(found))


if __name__ == "__main__":
    main()
