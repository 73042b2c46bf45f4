"""Effect of the first proposal of each proposer, from given checkpoints, on real VeRL.

    python -m benchmarks.first_proposals --out FILE [--work DIR] [--tasks chain_sum register]
        [--checkpoints 1 2 3 5] [--seeds 1 2 3 4] [--steps 10] [--arms ARM ...]
    python -m benchmarks.first_proposals --out FILE --table
    python -m benchmarks.first_proposals --out FILE --record REQUESTS

For every task the recipe of jobs/configs/local.yaml is trained in phases of `--steps` steps, each from the
end of the one before; checkpoint K is the end of phase K (1, 2, ...). From each checkpoint every arm proposes
one phase. It is trained for `--steps` steps with every seed, and its test answers are compared item by item
with the checkpoint's:

    unchanged   the same settings
    expert      the rules of llmzero_ray/agents/expert
    random      one to three hyper-parameters by up to two first steps, up or down

Each result is written at once as one JSON line of FILE: an interrupted run continues where it was, and
`--table` prints the results so far. The squared error of a mean is the squared item error plus the squared
run error; the run error is the standard deviation of the unchanged arm between seeds, divided by the square
root of the number of seeds. `--record` writes the requests, with the directions that turned out better, as a
request set for `llmzero prompt-eval`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.slot import local_slot
from llmzero_ray.agents.expert import ExpertProposer
from llmzero_ray.agents.expert.apply_moves import ProposalBase
from llmzero_ray.agents.expert.perturbation import changes_of, live_dimensions, moved_value
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.engines.base import Engine
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl.factory import idle_spec
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import canonical, complete, diff, format_value, short
from llmzero_ray.hyperparameters.root import limits
from llmzero_ray.methods.prompt_eval.cases import RecordedRequest, write_cases
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.records import (
    Hyperparameters,
    ItemOutcome,
    MetricPoint,
    PhaseFailure,
    PhaseSpec,
    ResumeFrom,
)
from llmzero_ray.records.agents import Budget, NodeView, OfferedCheckpoint, ProposalRequest, TaskView
from llmzero_ray.records.significance import paired
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter, compact, load_curves
from llmzero_ray.tasks.prepare import prepare

SHIPPED = Path(__file__).parent.parent / "jobs" / "configs" / "local.yaml"
ARMS = ("unchanged", "expert", "random")
PATH_SEED = 1
DIRECTIONS = tuple(canonical(name) for name in ("lr", "kl", "temperature"))
"""Hyper-parameters whose better direction is recorded."""
LEAST_PHASES = 4
"""With a hyper-parameter changed, for its direction to be known."""


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="file of the results, one JSON line each")
    parser.add_argument(
        "--work", type=Path, help="directory of tasks and checkpoints; default: next to --out"
    )
    parser.add_argument("--tasks", nargs="+", default=["chain_sum", "register"], help="task families")
    parser.add_argument("--checkpoints", nargs="+", type=int, default=[1, 2, 3, 5], help="phases behind each")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=10, help="training steps of every phase")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--table", action="store_true", help="only print what FILE holds")
    parser.add_argument("--record", type=Path, help="only write the requests and what was better there")
    options = parser.parse_args()
    if options.record is not None:
        record(options)
    elif not options.table:
        for family in options.tasks:
            measure(family, options)
    print(table(results(options.out)))


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """One task with its engine."""

    family: str
    config: SearchConfig
    task: PreparedTask
    storage: SearchStorage
    engine: Engine | None = None
    """Engine, or None if nothing is trained."""

    @property
    def trainer(self) -> Engine:
        """The engine; only while something is measured."""
        assert self.engine is not None
        return self.engine

    @property
    def root(self) -> Hyperparameters:
        """The recipe that the checkpoints were trained with."""
        return idle_spec(self.config, self.task.n_train, "").hyperparameters


def measure(family: str, options: argparse.Namespace) -> None:
    """Measure the results of one task that the file does not have yet."""
    known = {(r["task"], r["steps"], r["checkpoint"], r["arm"], r["seed"]) for r in results(options.out)}
    wanted = [
        (k, arm, seed)
        for k in options.checkpoints
        for seed in options.seeds
        for arm in ("unchanged", *(one for one in options.arms if one != "unchanged"))
        if (family, options.steps, k, arm, seed) not in known
    ]
    if not wanted:
        return
    config, task, storage = _bench(family, options)
    with local_slot("first-proposals") as slot:
        engine = make_engine(config, task, slot, str(storage.paths.root / "logs"))
        try:
            bench = Bench(family, config, task, storage, engine)
            for k, arm, seed in wanted:
                train_path(bench, k, options.steps)
                row = one_result(bench, k, arm, seed, options)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
        finally:
            engine.close()


def _bench(family: str, options: argparse.Namespace) -> tuple[SearchConfig, PreparedTask, SearchStorage]:
    """Configuration, task (made if it does not exist) and storage of a family's phases."""
    work = (options.work or options.out.with_suffix(".work")).absolute()
    given = read_yaml(SHIPPED)
    sizes = given["task"]
    directory = work / f"task-{family}"
    if not directory.is_dir():
        prepare(dir=str(directory), family=family, n_val=sizes["n_val"], n_test=sizes["n_test"], seed=1)
    config = parse_config(
        {
            **given,
            "name": f"first-{family}-{options.steps}".replace("_", "-"),
            "storage": str(work),
            "task": {**sizes, "dir": str(directory), "family": family},
            "engine": {**given["engine"], "rollout_calls": "batched"},
        }
    )
    return config, load_task(directory), SearchStorage(config.storage, config.name)


def record(options: argparse.Namespace) -> None:
    """Write the requests at all checkpoints whose continuations were measured."""
    rows = [row for row in results(options.out) if "failed" not in row and row["steps"] == options.steps]
    cases = []
    for family in options.tasks:
        config, task, storage = _bench(family, options)
        bench = Bench(family, config, task, storage)
        for k in options.checkpoints:
            own = [row for row in rows if (row["task"], row["checkpoint"]) == (family, k)]
            if own:
                asked = request(bench, k, options.steps, seed=1)
                case = RecordedRequest(
                    name=f"measured/{family} after {k} phases",
                    agent="proposer",
                    request=asked,
                    n_val=task.n_val,
                    n_gpus=1,
                    better=better(own),
                )
                cases.append(case)
                print(f"{case.name}: {case.better or 'no direction is known'}")
    write_cases(cases, options.record)


def better(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Hyper-parameter -> 1 or -1: the direction in which changed phases from a checkpoint beat unchanged
    phases with the same seeds by more than two standard errors."""
    usual = {row["seed"]: row["gain"] for row in rows if row["arm"] == "unchanged"}
    moved: dict[str, dict[tuple[int, str], float]] = defaultdict(dict)
    for row in rows:
        for name, change in row["changes"].items() if row["seed"] in usual else ():
            old, _, new = change.partition(" -> ")
            key = canonical(name)
            if key in DIRECTIONS and not row["from_base"]:
                sign = math.copysign(1, float(new) - float(old))
                # Two arms may have made the same phase.
                moved[key][row["seed"], json.dumps(row["changes"])] = sign * (
                    row["gain"] - usual[row["seed"]]
                )
    found = {}
    for key, by_phase in moved.items():
        gains = list(by_phase.values())
        if len(gains) >= LEAST_PHASES:
            mean, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
            if abs(mean) > 2 * error:
                found[key] = 1 if mean > 0 else -1
    return found


def train_path(bench: Bench, k: int, n_steps: int) -> None:
    """Train those of the path's phases 0 to k - 1 that are not on disk."""
    for node in range(k):
        if (bench.storage.paths.adapter(node, n_steps) / "manifest.json").is_file():
            continue
        source = None if node == 0 else ResumeFrom(node=node - 1, step=n_steps)
        spec = phase(bench, node, source, bench.root, n_steps, PATH_SEED)
        with MetricWriter(bench.storage, node, 0) as writer:
            outcome = bench.trainer.run(spec, partial(_write, writer))
        if isinstance(outcome, PhaseFailure):
            raise SystemExit(f"the path's phase {node} failed: {outcome.cause}")
        compact(bench.storage, node, 0)


def _write(writer: MetricWriter, point: MetricPoint) -> None:
    writer.write(point)


def phase(
    bench: Bench, node: int, source: ResumeFrom | None, full: Hyperparameters, n_steps: int, seed: int
) -> PhaseSpec:
    """One phase of `n_steps` from a checkpoint of the path, or from the base model."""
    idle = idle_spec(bench.config, bench.task.n_train, str(bench.storage.paths.root))
    return dataclasses.replace(
        idle,
        node=node,
        resume_from=source,
        adapter=None if source is None else str(bench.storage.paths.adapter(source.node, source.step)),
        base_step=0 if source is None else (source.node + 1) * n_steps,
        n_steps=n_steps,
        hyperparameters=dict(full),
        seed=seed,
        save_freq=n_steps,
        test_freq=min(bench.config.phase.test_freq, n_steps),
        checkpoint_dir=str(bench.storage.paths.checkpoints(node)),
    )


def one_result(bench: Bench, k: int, arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Change of the test score through one arm's phase."""
    began = time.monotonic()
    at = ResumeFrom(node=k - 1, step=options.steps)
    row: dict[str, Any] = {
        "task": bench.family, "steps": options.steps, "checkpoint": k, "arm": arm, "seed": seed,
    }  # fmt: skip
    start = test_items(bench, str(bench.storage.paths.adapter(at.node, at.step)), f"start-{k}")
    asked = request(bench, k, options.steps, seed)
    try:
        source, full = plan(arm, asked, bench, seed)
    except HyperparameterError as error:
        return {**row, "failed": f"refused: {error}"}
    changed = diff(bench.root, full)
    row["changes"] = {
        short(key): f"{format_value(key, a)} -> {format_value(key, b)}" for key, (a, b) in changed.items()
    }
    row["from_base"] = source is None
    if arm != "unchanged" and not changed and source == at:
        same = next(
            r
            for r in results(options.out)
            if (r["task"], r["steps"], r["checkpoint"], r["arm"], r["seed"])
            == (bench.family, options.steps, k, "unchanged", seed)
        )
        return {**same, **row}
    node = 1000 * k + 10 * seed + ARMS.index(arm)
    outcome = bench.trainer.run(phase(bench, node, source, full, options.steps, 100 + seed), lambda _: None)
    if isinstance(outcome, PhaseFailure):
        return {**row, "failed": outcome.cause}
    end = bench.trainer.evaluate(
        outcome.checkpoints[-1].path, bench.task.test, bench.config.eval.max_response_length
    )
    found = paired(end, start)
    assert found is not None
    return {
        **row,
        "start": round(statistics.fmean(item.acc for item in start), 4),
        "gain": round(found.gain, 5),
        "item_error": round(found.standard_error, 5),
        "seconds": round(time.monotonic() - began, 1),
    }


def test_items(bench: Bench, adapter: str, name: str) -> tuple[ItemOutcome, ...]:
    """Outcomes on the test split; measured once, then read from disk."""
    path = bench.storage.paths.root / f"{name}.json"
    if not path.is_file():
        items = bench.trainer.evaluate(adapter, bench.task.test, bench.config.eval.max_response_length)
        path.write_text(json.dumps([(item.index, item.acc) for item in items]))
    return tuple(
        ItemOutcome(index=index, data_source="", score=acc, acc=acc)
        for index, acc in json.loads(path.read_text())
    )


def request(bench: Bench, k: int, n_steps: int, seed: int) -> ProposalRequest:
    """Request to the proposer at a checkpoint: the phases before it, and this checkpoint as the only possible
    start."""
    path = tuple(view(bench, node, n_steps) for node in range(k))
    on, engine = path[-1], bench.config.engine
    return ProposalRequest(
        task=TaskView(
            name=bench.task.name,
            n_train=bench.task.n_train,
            phase_steps=n_steps,
            max_phase_steps=n_steps,
            max_model_len=engine.max_prompt_length + engine.max_response_length,
            max_prompt_length=engine.max_prompt_length,
        ),
        on=on,
        path=path,
        siblings=(),
        best=max(path, key=lambda one: one.score or 0.0),
        default=bench.root,
        checkpoints=(
            OfferedCheckpoint(
                node=on.node, step=n_steps, global_step=k * n_steps, val_score=on.curves.val_scores[-1]
            ),
        ),
        from_scratch=False,
        node=100 + seed,
        tree=path[:-1],
        budget=Budget(runs=8),
    )


def view(bench: Bench, node: int, n_steps: int) -> NodeView:
    """A phase of the path as agents see it."""
    curves = load_curves(bench.storage, node, gains=True)
    best = max(range(len(curves.val_scores)), key=lambda i: curves.val_scores[i])
    return NodeView(
        node=node,
        kind="root" if node == 0 else "evolve",
        status="completed",
        hyperparameters=bench.root,
        n_steps=n_steps,
        base_step=node * n_steps,
        score=curves.val_scores[best],
        best_step=curves.val_steps[best],
        curves=curves,
        parent=None if node == 0 else node - 1,
        resume_from=None if node == 0 else ResumeFrom(node=node - 1, step=n_steps),
    )


def plan(
    arm: str, asked: ProposalRequest, bench: Bench, seed: int
) -> tuple[ResumeFrom | None, Hyperparameters]:
    """(start, configuration) that an arm proposes.

    Raises:
        HyperparameterError: the proposal is not valid.
    """
    at = ResumeFrom(node=asked.on.node, step=asked.checkpoints[0].step)
    if arm == "unchanged":
        return at, bench.root
    if arm == "random":
        return at, perturbed(bench, seed=f"{asked.on.node}:{seed}")
    proposal = ExpertProposer(n_val=bench.task.n_val).propose(asked)
    changes = {change.key: change.new for change in proposal.changes}
    full = complete(
        asked.base(proposal.resume_from), changes, limits=limits(bench.config, bench.task.n_train)
    )
    return proposal.resume_from, full


def perturbed(bench: Bench, seed: str) -> Hyperparameters:
    """The recipe with one to three hyper-parameters moved by half to two step sizes, up or down."""
    rng = random.Random(seed)
    base = ProposalBase(
        hyperparameters=bench.root, default=bench.root, limits=limits(bench.config, bench.task.n_train)
    )
    while True:
        dimensions = rng.sample(live_dimensions(bench.root), rng.randint(1, 3))
        wanted = {
            dimension.key: (
                moved_value(base, dimension, rng.choice((-1, 1)) * rng.uniform(0.5, 2) * dimension.step),
                "by chance",
            )
            for dimension in dimensions
        }
        made = changes_of(base, wanted)
        if made is not None:
            return made[1]


# --- the table ----------------------------------------------------------------------------------------------


def results(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; empty if it does not exist. An incomplete last line is skipped."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


Cell = tuple[str, int, int]
"""Task, steps of a phase, checkpoint."""


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean change per arm and per checkpoint with errors, from the results alone."""
    gains: dict[str, dict[Cell, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    failed: dict[str, int] = defaultdict(int)
    starts: dict[Cell, float] = {}
    for row in rows:
        cell = (row["task"], row["steps"], row["checkpoint"])
        if "failed" in row:
            failed[row["arm"]] += 1
            continue
        starts[cell] = row["start"]
        gains[row["arm"]][cell].append((row["gain"], row["item_error"]))
    run = run_error(gains.get("unchanged", {}).values())
    lines = [
        f"run error of one phase, from the unchanged arm: {run:.4f}"
        if run is not None
        else "run error: not known (two seeds of the unchanged arm are needed)"
    ]
    lines.append(f"{'checkpoint':28} {'start':>6} " + " ".join(f"{arm:>16}" for arm in gains))
    for cell in sorted(starts):
        said = (
            _said(mean_and_error([found], run)) if (found := gains[arm].get(cell)) else "-" for arm in gains
        )
        name = f"{cell[0]}, {cell[2]} x {cell[1]} steps"
        lines.append(f"{name:28} {starts[cell]:6.3f} " + " ".join(f"{text:>16}" for text in said))
    lines.append(
        f"{'mean':28} {'':6} "
        + " ".join(f"{_said(mean_and_error(gains[arm].values(), run)):>16}" for arm in gains)
    )
    for arm in gains:
        n, lost = sum(map(len, gains[arm].values())), _lost(arm, gains, run)
        lines.append(
            f"{arm}: {n} phases, {failed[arm]} failed or refused, {lost} checkpoints lost more than 2 errors "
            "where unchanged held"
        )
    return "\n".join(lines)


def run_error(cells: Iterable[Sequence[tuple[float, float]]]) -> float | None:
    """Standard deviation between runs of one phase, pooled over checkpoints; None without two of one."""
    squares = [
        (statistics.variance([gain for gain, _ in cell]), len(cell) - 1) for cell in cells if len(cell) >= 2
    ]
    if not squares:
        return None
    return math.sqrt(sum(v * n for v, n in squares) / sum(n for _, n in squares))


def mean_and_error(cells: Iterable[Sequence[tuple[float, float]]], run: float | None) -> tuple[float, float]:
    """Mean over checkpoints of the means over seeds, with its error. Seeds share the test items, so more
    seeds reduce only the run error."""
    means, squares = [], []
    for cell in cells:
        means.append(statistics.fmean(gain for gain, _ in cell))
        item = statistics.fmean(error for _, error in cell)
        squares.append(item**2 + (run or 0.0) ** 2 / len(cell))
    return statistics.fmean(means), math.sqrt(sum(squares)) / len(squares)


def _said(found: tuple[float, float]) -> str:
    return f"{found[0]:+.4f} ± {found[1]:.4f}"


def _lost(
    arm: str, gains: Mapping[str, Mapping[Cell, Sequence[tuple[float, float]]]], run: float | None
) -> int:
    lost = 0
    for cell, found in gains[arm].items():
        mean, error = mean_and_error([found], run)
        usual = gains.get("unchanged", {}).get(cell)
        if usual and mean < -2 * error:
            kept, usual_error = mean_and_error([usual], run)
            lost += kept > -2 * usual_error
    return lost


if __name__ == "__main__":
    main()
