"""How searches used their training steps, from their journals.

    python -m benchmarks.step_use runs/demo runs/last_codes_alpha ...

Each argument is a search, or the directory of a comparison. Prints for every search, and for all searches
together whose names differ only in the seed:

- `steps`: steps of all phases, including failed and stopped ones.
- `in strategy`: steps of the best strategy, each phase counted up to its cut. The other steps trained
  adapters that were dropped.
- `scratch`: phases except the root that started from the base model, their steps, and how many of them are
  part of the strategy.
- `raised`: phases with a higher learning rate than the phase whose checkpoint they resume, and how many of
  them lost, that is failed or ended below the validation score they started from. `raised again`: those that
  resume a phase which had itself raised the rate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.hindsight import searches
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.dynamics.diagnosis import direction
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.records import PhaseFailure
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.formatting import table


@dataclass(frozen=True, kw_only=True)
class StepUse:
    """Training steps and phases of one search, or of several together."""

    steps: int
    """Steps of all phases."""
    in_strategy: int
    """Steps of the best strategy."""
    scratch: int
    """Phases except the root that started from the base model."""
    scratch_steps: int
    scratch_won: int
    """Those that are part of the strategy."""
    raised: int
    """Phases with a higher learning rate than the phase that they continue."""
    raised_lost: int
    raised_again: int
    """Those that continue a phase which had itself raised the rate."""
    raised_again_lost: int


def count_steps(facts: SearchFacts) -> StepUse:
    """Step use of a search. A phase that has not ended counts no steps and is not a loss."""
    runs = facts.runs
    scratch = [run for run in runs.values() if run.kind == "scratch"]
    raised = [run for run in runs.values() if _is_raised(facts, run)]
    again = [run for run in raised if (source := facts.source(run)) is not None and _is_raised(facts, source)]
    return StepUse(
        steps=sum(_steps(run) for run in runs.values()),
        in_strategy=sum(phase.cut for phase in facts.path),
        scratch=len(scratch),
        scratch_steps=sum(_steps(run) for run in scratch),
        scratch_won=sum(run.node in facts.path_nodes for run in scratch),
        raised=len(raised),
        raised_lost=sum(_has_lost(run) for run in raised),
        raised_again=len(again),
        raised_again_lost=sum(_has_lost(run) for run in again),
    )


def together(found: Sequence[StepUse]) -> StepUse:
    """The sum over several searches."""
    return StepUse(
        **{one.name: sum(getattr(search, one.name) for search in found) for one in fields(StepUse)}
    )


def _steps(run: PhaseRun) -> int:
    return 0 if run.outcome is None else run.outcome.steps_done


def _is_raised(facts: SearchFacts, run: PhaseRun) -> bool:
    source = facts.source(run)
    if source is None or source.spec is None or run.spec is None:
        return False
    return direction(source.spec.hyperparameters, run.spec.hyperparameters, LR) > 0


def _has_lost(run: PhaseRun) -> bool:
    if run.outcome is None:
        return False
    if isinstance(run.outcome, PhaseFailure):
        return True
    start, end = run.outcome.start_score, run.outcome.final_score
    return start is not None and end is not None and end < start


def text_of(found: Sequence[tuple[str, StepUse]]) -> str:
    """A table of the searches, then one with sums over seeds."""
    groups: dict[str, list[StepUse]] = {}
    for name, one in found:
        groups.setdefault(name.rpartition("-")[0] or name, []).append(one)
    numbers = (
        "steps",
        "in strategy",
        "share",
        "scratch: steps, in strategy",
        "raised: lost",
        "raised again: lost",
    )
    text = [table(("search", *numbers), [(name, *_cells(one)) for name, one in found], right=range(1, 7))]
    several = {name: own for name, own in groups.items() if len(own) > 1}
    if several:
        rows = [
            (
                name,
                str(len(own)),
                *_cells(together(own)),
                f"{min(one.in_strategy for one in own)} to {max(one.in_strategy for one in own)}",
                f"{statistics.mean(one.steps for one in own):.0f}",
            )
            for name, own in several.items()
        ]
        columns = ("searches", "n", *numbers, "in strategy, each", "steps, mean")
        text.append(table(columns, rows, right=range(1, 10)))
    return "\n\n".join(text)


def _cells(one: StepUse) -> tuple[str, ...]:
    return (
        str(one.steps),
        str(one.in_strategy),
        f"{one.in_strategy / one.steps:.2f}" if one.steps else "",
        f"{one.scratch}: {one.scratch_steps}, {one.scratch_won}",
        f"{one.raised}: {one.raised_lost}",
        f"{one.raised_again}: {one.raised_again_lost}",
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="+", type=Path, help="searches, or directories of comparisons")
    given = parser.parse_args()
    try:
        found = [(facts.config.name, count_steps(facts)) for facts in searches(given.places)]
    except LlmzeroError as error:
        sys.exit(str(error))
    print(text_of(found))


if __name__ == "__main__":
    main()
