"""Searches under strikes until enough processes were killed, and the table of what that did.

    python -m jobs.chaos --kills 200 [--seed 1] [--engine fast|verl] [--slots 2]

Exit code 0 when nothing was violated. Not here: one search (trial.py), what must hold (checks.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmzero_ray.config import SearchConfig
from llmzero_ray.tasks.prepare import prepare

from . import checks
from .killer import Blow, Killer, Strike
from .lab import Lab
from .trial import SCRIPT, Story, Trial, scripted_config

_PER_SEARCH = 8
N_VAL = 32


@dataclass(kw_only=True)
class Outcome:
    """What came of all searches."""

    stories: list[Story] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    n_compared: int = 0
    """Phases that were compared with the same ones of a search that nothing happened to."""
    wall_s: float = 0.0

    @property
    def blows(self) -> list[Blow]:
        """Every strike that landed."""
        return [blow for story in self.stories for blow in story.blows]


def scripted_chaos(lab: Lab, root: Path, *, kills: int, seed: int, slots: int) -> Outcome:
    """Searches of the scripted engine in `root` until `kills` strikes have landed."""
    task = root / "task"
    prepare(dir=task, family="echo", n_train=64, n_val=N_VAL, n_test=64, seed=1, make_model=False)

    def config(name: str) -> SearchConfig:
        return scripted_config(name, root / "runs", task, slots=slots)

    undisturbed = Trial(lab, config("undisturbed"), seed=seed).run(iter(()), 0)
    outcome = Outcome(violations=_named("undisturbed", judged(undisturbed, n_val=N_VAL)))

    def compare(story: Story) -> Iterator[str]:
        yield from checks.scripted_curves(story.witness, SCRIPT)
        common, differences = checks.same_curves(story.witness, undisturbed.witness)
        outcome.n_compared += common
        yield from differences

    return chaos(lab, outcome, config, compare, Killer(seed).strikes(), kills=kills, seed=seed)


def chaos(
    lab: Lab,
    outcome: Outcome,
    config: Callable[[str], SearchConfig],
    compare: Callable[[Story], Iterable[str]],
    strikes: Iterator[Strike],
    *,
    kills: int,
    seed: int,
    patience_s: float = 600.0,
) -> Outcome:
    """Searches that `config` gives by name until `kills` strikes have landed, each judged at its end."""
    began = time.monotonic()
    while len(outcome.blows) < kills:
        number = len(outcome.stories)
        trial = Trial(lab, config(f"chaos-{seed}-{number}"), seed=seed * 1000 + number, patience_s=patience_s)
        story = trial.run(strikes, min(_PER_SEARCH, kills - len(outcome.blows)))
        outcome.stories.append(story)
        found = [*judged(story, n_val=N_VAL), *compare(story)]
        outcome.violations += _named(story.witness.storage.name, found)
        say("\n  ".join([f"{story.witness.storage.name}: {summary_line(story)}", *found]))
        if story.wrong or not (story.blows or story.missed):
            break  # what does not end would only disturb the next one, or no strike is left
    outcome.wall_s = time.monotonic() - began
    return outcome


def judged(story: Story, *, n_val: int) -> list[str]:
    """Everything that is wrong with a search that has ended."""
    return [*story.wrong, *checks.broken(story.witness, n_val=n_val)]


def table(outcome: Outcome) -> str:
    """Kills by victim and place with what each cost, and what was violated."""
    groups: dict[tuple[str, str], list[Blow]] = {}
    for blow in outcome.blows:
        place = blow.strike.place or ("SIGSTOP" if blow.strike.paused else "any moment")
        groups.setdefault((blow.victim, place), []).append(blow)
    lines = [f"{'victim':12} {'place':22} {'kills':>5} {'median s':>9} {'worst s':>8}"]
    for (victim, place), blows in sorted(groups.items()):
        took = [blow.recovered_s for blow in blows if blow.recovered_s is not None] or [float("nan")]
        lines.append(f"{victim:12} {place:22} {len(blows):5} {statistics.median(took):9.1f} {max(took):8.1f}")
    lost = [checks.steps_lost(e) for story in outcome.stories for e in checks.losses(story.witness)]
    missed = sum(len(story.missed) for story in outcome.stories)
    lines += [
        f"{len(outcome.blows)} kills in {len(outcome.stories)} searches, {outcome.wall_s:.0f} s; "
        f"{missed} strikes found no process",
        f"phases lost: {len(lost)}, steps repeated: {sum(lost)} (at most {max(lost, default=0)} at once)",
        f"phases that failed because they were lost twice from one point: {_given_up(outcome)}",
        f"phases compared with an undisturbed search: {outcome.n_compared}",
        f"violations: {len(outcome.violations)}",
        *(f"  {violation}" for violation in outcome.violations),
    ]
    return "\n".join(lines)


def summary_line(story: Story) -> str:
    """One search in a line."""
    core = story.witness.core
    struck = ", ".join(
        f"{blow.victim}{f' at {blow.strike.place}' if blow.strike.place else ''}" for blow in story.blows
    )
    return f"{len(core.search.nodes)} runs, {core.stage}; struck: {struck or 'nothing'}"


def say(text: str) -> None:
    """Print one line of progress."""
    print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it from the command line; 1 when something was violated."""
    import tests.conftest  # noqa: F401 - the environment that Ray reads once

    parser = argparse.ArgumentParser(prog="python -m jobs.chaos", description="Kill processes of searches.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("fast", "verl"), default="fast")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument(
        "--keep", metavar="DIR", help="directory for the searches (default: removed at the end)"
    )
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        root = Path(given.keep or temporary).absolute()
        if given.engine == "fast":
            with Lab(machines=given.slots + 1) as lab:
                outcome = scripted_chaos(lab, root, kills=given.kills, seed=given.seed, slots=given.slots)
        else:
            from .real import real_chaos, real_lab

            with real_lab(given.slots) as lab:
                outcome = real_chaos(lab, root, kills=given.kills, seed=given.seed, slots=given.slots)
        say(table(outcome))
    return 1 if outcome.violations else 0


def _given_up(outcome: Outcome) -> int:
    outcomes = [run.outcome for story in outcome.stories for run in story.witness.core.runs.values()]
    return sum(getattr(found, "failure_class", None) == "resource" for found in outcomes)


def _named(name: str, found: Iterable[str]) -> list[str]:
    return [f"{name}: {what}" for what in found]
