"""Validation scores of an exported strategy trained by plain VeRL, against the same strategy trained here.

    python -m benchmarks.export_score runs/demo --phases 2 --seeds 3 --out build/export_score

Trains the first `--phases` phases of a search's strategy once per seed, both by the exported scripts (`python
-m verl.trainer.main_ppo`, Ray started by VeRL) and by `llmzero_ray.retrain`. Prints the mean validation score
of both at the last cut, with standard errors over the seeds, and the difference; then the same for the mean
over all validations after a phase's start, which varies less than a single validation.
Seeds differ in row order, fresh adapter and rollouts. Each exported run is also checked against the strategy:
VeRL's printed configuration key by key, and the validation at step 0 of a phase against the one at the cut
before, digit by digit. A difference ends the command with exit code 1. Runs that are already in `--out` are
read, not repeated.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llmzero_ray
from llmzero_ray.config import load_config
from llmzero_ray.config.strategy_file import StrategyPhase
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.prepared import load_task
from llmzero_ray.report import Strategy, load_strategy
from llmzero_ray.strategy.export import export_verl

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ACTOR = re.compile(r"^\([^()]*pid=\d+[^()]*\) ?")
"""Prefix that Ray puts before a line of an actor."""
_SCORE = re.compile(r"val-core/[^:]*/(?:acc|reward)/mean@1:(?:np\.float64\()?([0-9.eE+-]+)")
_STEP = re.compile(r"\bstep:(\d+) - ")


def main() -> int:
    """Measure, print and compare. Returns 1 if a script did not train what the strategy says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("search", type=Path, help="directory of a search on VeRL that has a strategy.yaml")
    parser.add_argument("--phases", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    strategy = first_phases(load_strategy(given.search / "strategy.yaml"), given.phases)
    given.out.mkdir(parents=True, exist_ok=True)
    config = load_config(given.search / "search.yaml")
    task = load_task(str(strategy.task["directory"]))
    problems: list[str] = []
    scores: list[float] = []
    means: dict[str, list[float]] = {"plain VeRL": [], "llmzero retrain": []}
    for number in range(given.seeds):
        folder = (given.out / f"verl-{number + 1}").absolute()
        if not folder.exists():
            export_verl(strategy, config, task, folder)
        before: float | None = None
        every: list[float] = []
        for phase in strategy.phases:
            text = run_script(folder, phase, number)
            found = validations(text)
            problems += [f"seed {number + 1}, phase {phase.phase}: {p}" for p in differences(text, phase)]
            if before is not None and found[0] != before:
                problems.append(f"seed {number + 1}: phase {phase.phase} starts at {found[0]}, not {before}")
            before = found[phase.cut_step]
            every += [score for step, score in found.items() if step > 0]
            print(f"plain VeRL, seed {number + 1}, phase {phase.phase}: {found}", flush=True)
        assert before is not None
        scores.append(before)
        means["plain VeRL"].append(statistics.fmean(every))
        again = llmzero_ray.retrain(  # the searches of earlier seeds have ended and are read
            strategy, storage=given.out, name="again", seeds=number + 1, final={"test": False}
        )
        means["llmzero retrain"].append(mean_validation(given.out / f"again-{number + 1}", strategy))
        cuts = {phase.number: phase.scores[-1] for phase in again.phases}
        print(f"llmzero retrain, seed {number + 1}, cuts of the phases: {cuts}", flush=True)
    here = [score for score in again.phases[-1].scores if score is not None]
    compare("at the last cut", {"plain VeRL": scores, "llmzero retrain": here})
    compare("mean of the validations", means)
    print(f"the search: {strategy.phases[-1].validation_at_cut:.4f}, one run")
    for problem in (*problems, *again.deviations):
        print(problem)
    return 1 if problems or again.deviations else 0


def compare(what: str, found: Mapping[str, Sequence[float]]) -> None:
    """Print means and standard errors of two lists of scores, and their difference."""
    for name, values in found.items():
        listed = ", ".join(f"{value:.4f}" for value in values)
        print(f"{what}, {name}: {statistics.fmean(values):.4f} ± {standard_error(values):.4f}  ({listed})")
    one, other = found.values()
    gap = statistics.fmean(one) - statistics.fmean(other)
    print(f"{what}, difference: {gap:+.4f} ± {math.hypot(standard_error(one), standard_error(other)):.4f}")


def mean_validation(root: Path, strategy: Strategy) -> float:
    """Mean validation score of a retrained strategy over the steps up to each phase's cut."""
    search = llmzero_ray.open(root)
    found = [
        row["val_score"]
        for phase in strategy.phases
        for row in search.metrics(phase.phase - 1).to_pylist()
        if row.get("val_score") is not None and 0 < row["step"] <= phase.cut_step
    ]
    return statistics.fmean(found)


def first_phases(strategy: Strategy, n: int) -> Strategy:
    """The strategy cut after `n` phases."""
    kept = strategy.phases[:n]
    changed = strategy.model_copy(update={"phases": kept, "total_steps": kept[-1].end_step})
    return Strategy.model_validate(changed.model_dump())


def run_script(folder: Path, phase: StrategyPhase, number: int) -> str:
    """VeRL's output for a phase. With `number` 0 the rows are in the strategy's own order."""
    log = folder / f"phase_{phase.phase}.log"
    if not log.exists():
        words = [
            f"data.seed={(phase.seed + number) % 2**31}",
            f"actor_rollout_ref.rollout.seed={42 + number}",
        ]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        script = folder / f"phase_{phase.phase}.sh"
        done = subprocess.run(
            ["bash", str(script), *words],
            env=environment | {"PATH": path, "RAY_DEDUP_LOGS": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{script} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        log.write_text(done.stdout)
    return "\n".join(_ACTOR.sub("", _COLOUR.sub("", line)) for line in log.read_text().splitlines())


def validations(text: str) -> dict[int, float]:
    """Step -> validation score, from VeRL's console logger."""
    found = {}
    for line in text.splitlines():
        step, score = _STEP.search(line), _SCORE.search(line)
        if step and score:
            found[int(step[1])] = float(score[1])
    return found


def differences(text: str, phase: StrategyPhase) -> list[str]:
    """Differences between VeRL's printed configuration and the strategy's."""
    config = printed_config(text)
    wanted = resolve(phase.hyperparameters, n_gpus=1, micro_batch_limit=128)
    wrong = []
    for key, value in wanted.items():
        found = lookup(config, key)
        if not same(found, value):
            wrong.append(f"{key} is {found!r}, the strategy's is {value!r}")
    return wrong


def printed_config(text: str) -> Mapping[str, Any]:
    """The dictionary that VeRL prints at its start."""
    begin = text.index("{'actor_rollout_ref'")
    lines: list[str] = []
    for line in text[begin:].splitlines():
        lines.append(line)
        if line.endswith("}"):
            try:
                found: Mapping[str, Any] = ast.literal_eval("\n".join(lines))
            except SyntaxError:
                continue
            return found
    raise SystemExit("VeRL printed no whole configuration")


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key."""
    found: Any = config
    for part in key.split("."):
        found = found[part]
    return found


def same(found: Any, value: Any) -> bool:
    """Whether two values of a configuration are equal, floats to their last digits."""
    if isinstance(value, float) and isinstance(found, (int, float)):
        return math.isclose(found, value)
    if isinstance(value, (list, tuple)):
        return list(found) == list(value)
    return bool(found == value)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean over the seeds."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


if __name__ == "__main__":
    sys.exit(main())
