"""Record phases of small searches on real VeRL for the study of stopping (stop_recorded.py).

    python -m benchmarks.stop_record NAME [--work DIR] [--phases 8]

Each search of `SEARCHES` has a random proposer: a share of the phases starts from the base model, the others
from one of the two best checkpoints so far, with one to three changed hyper-parameters. No phase is stopped.
After each phase, everything that stoppers read is written to `benchmarks/recorded_phases/NAME.json`: metrics
by step, validation scores, and which items were answered correctly. A second call adds phases to the recorded
ones if their adapters are still in `--work`.

`rare_chain` is a task on which a policy takes off late: the tiny model can run a register machine by writing
down the register, but does so in few of its answers to this task's problems. A search takes minutes on two
cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.slot import local_slot
from benchmarks.stop_recorded import RECORDED
from llmzero_ray import hyperparameters as hp
from llmzero_ray.config import parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl.factory import idle_spec
from llmzero_ray.prepared.directory import create_once, no_progress
from llmzero_ray.prepared.families import Family, Problem, family_named
from llmzero_ray.prepared.task import load_task
from llmzero_ray.records import MetricPoint, PhaseResult, ResumeFrom, metrics
from llmzero_ray.stopping.rules import WATCHED
from llmzero_ray.tasks.families.expressions import partial_results, worked_answer
from llmzero_ray.tasks.families.register import Register
from llmzero_ray.tasks.prepare import FamilySpec, write_task
from llmzero_ray.utils.text import number

SHIPPED = Path(__file__).parent.parent / "jobs" / "configs" / "local.yaml"
KEPT = (
    *WATCHED,
    metrics.CLIPFRAC,
    metrics.LENGTH,
    metrics.LENGTH_MAX,
    metrics.LENGTH_AT_MAX,
    metrics.ADVANTAGE_MAX,
    metrics.ADVANTAGE_MIN,
    metrics.LEARNING_RATE,
    metrics.STEP_TIME,
)
"""Metrics that are recorded: those that stoppers read."""
N_VAL = 256
TEST_FREQ = 5


class RareChain(Register):
    """The register machine, with problems to which the model rarely gives the worked answers that are right.

    Demonstrations show worked answers for start values below 4. The splits have only other start values, for
    which few demonstrations are worked.
    """

    name = "rare_chain"

    _DEMONSTRATION_SEED, _STRIDE = 600_000_000, 1_000_000_000
    """First generator seed of demonstrations, and their distance between seeds of tasks."""

    def __init__(self, share: float) -> None:
        """`share`: share of worked demonstrations for the start values of the splits."""
        self._share = share

    def problems(self, seed: int) -> Iterator[Problem]:
        """All problems for demonstrations; only those with start values of at least 4 for the splits."""
        for problem in super().problems(seed):
            if seed % self._STRIDE >= self._DEMONSTRATION_SEED or problem.prompt[0] not in "0123":
                yield problem

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """The bare answer, or an answer with all values of the register."""
        share = 0.9 if problem.prompt[0] in "0123" else self._share
        return worked_answer(partial_results(problem.prompt, modulus=10), rng, (1 - share, 0.0, share))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """A search to record."""

    family: Family
    task_seed: int
    """Seed of the problems and the base model."""
    seed: int
    """Seed of the training."""
    n_steps: int
    """Steps of a phase."""
    from_scratch: float
    """Share of the phases after the root that start from the base model."""
    n_test: int = 256


SEARCHES = {
    "rare_chain_a": Recording(family=RareChain(0.03), task_seed=11, seed=11, n_steps=30, from_scratch=1),
    "chain_sum_a": Recording(
        family=family_named("chain_sum"), task_seed=1, seed=12, n_steps=20, from_scratch=1 / 3, n_test=1024
    ),
    "rare_chain_b": Recording(family=RareChain(0.02), task_seed=21, seed=21, n_steps=30, from_scratch=1),
    "chain_sum_b": Recording(
        family=family_named("chain_sum"), task_seed=1, seed=22, n_steps=20, from_scratch=1 / 3, n_test=1024
    ),
}
"""Searches by name. Those of chain_sum train the task of jobs/configs/local.yaml with another seed."""

Phase = dict[str, Any]
"""A phase as it is stored."""


def main() -> None:
    """Record one search."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=SEARCHES)
    parser.add_argument("--work", default="build/stop_record", help="tasks and adapters")
    parser.add_argument("--phases", type=int, default=5, help="phases to add")
    options = parser.parse_args()
    plan, work = SEARCHES[options.name], Path(options.work).absolute() / options.name
    sizes = {"train": 4096, "val": N_VAL, "test": plan.n_test}
    spec = FamilySpec(family=plan.family, sizes=sizes, seed=plan.task_seed, make_model=True)
    create_once(work / "task", lambda part: write_task(part, spec, no_progress), no_progress)
    task = load_task(work / "task")
    given = {**read_yaml(SHIPPED), "name": options.name, "storage": str(work)}
    config = parse_config({**given, "task": {"dir": str(work / "task")}})
    phases: list[Phase] = recorded_phases(options.name)
    with local_slot(options.name) as slot:
        engine = make_engine(config, task, slot, str(work))
        root = idle_spec(config, task.n_train, str(work))
        try:
            for node in range(len(phases), len(phases) + options.phases):
                resume, changes, base = draw(
                    random.Random(f"{options.name} {node}"), phases, plan.from_scratch
                )
                source = None if resume is None else work / "checkpoints" / str(resume.node)
                spec = dataclasses.replace(
                    root,
                    node=node,
                    kind="root" if node == 0 else "scratch" if resume is None else "evolve",
                    resume_from=resume,
                    adapter=None
                    if resume is None or source is None
                    else str(source / f"step_{resume.step:06d}"),
                    base_step=base,
                    n_steps=plan.n_steps,
                    hyperparameters=hp.complete(root.hyperparameters, changes),
                    seed=plan.seed * 100 + node,
                    save_freq=TEST_FREQ,
                    test_freq=TEST_FREQ,
                    checkpoint_dir=str(work / "checkpoints" / str(node)),
                )
                points: list[MetricPoint] = []
                began = time.monotonic()
                outcome = engine.run(spec, points.append)
                if not isinstance(outcome, PhaseResult):
                    raise SystemExit(f"node {node} failed: {outcome.cause}")
                phase = stored(spec.kind, resume, base, changes, points)
                phases.append(phase)
                write(options.name, phases)
                print(
                    f"node {node} {spec.kind} {phase['resume_from']} {changes}: start {phase['start']}, "
                    f"{phase['val']}, {time.monotonic() - began:.0f} s",
                    flush=True,
                )
        finally:
            engine.close()


def recorded_phases(name: str) -> list[Phase]:
    """The phases of a search that were recorded before."""
    path = RECORDED / f"{name}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["phases"]) if path.is_file() else []


def draw(
    rng: random.Random, phases: list[Phase], from_scratch: float
) -> tuple[ResumeFrom | None, dict[str, Any], int]:
    """Start of the next phase, its changes against the root, and its first global step."""
    if not phases:
        return None, {}, 0
    scratch = rng.random() < from_scratch
    moves: dict[str, Any] = {
        "lr": 1e-3 * math.exp(rng.uniform(math.log(0.3), math.log(4))),
        "kl_loss_coef": 1e-3 * math.exp(rng.uniform(math.log(0.3), math.log(10))),
        "temperature": rng.choice((0.7, 0.85, 1.2)),
        "max_response_length": rng.choice((8, 12, 18)),
    }
    names = rng.sample(sorted(moves), k=rng.randint(1, 3))
    changes = {name: round(moves[name], 6) for name in names}
    if scratch:
        return None, changes, 0
    scored = sorted(
        ((score, node, int(step)) for node, p in enumerate(phases) for step, score in p["val"].items()),
        reverse=True,
    )
    _, node, step = scored[rng.choice((0, 1))]
    return ResumeFrom(node=node, step=step), changes, phases[node]["base"] + step


def stored(
    kind: str, resume: ResumeFrom | None, base: int, changes: dict[str, Any], points: list[MetricPoint]
) -> Phase:
    """A phase with everything that stoppers read; each item's outcome is 0 or 1, in item order."""
    trained = [point for point in points if point.step > 0]
    logged = [name for name in KEPT if any(name in point.metrics for point in trained)]
    scored = [point for point in points if point.val_score is not None]
    return {
        "kind": kind,
        "resume_from": None if resume is None else [resume.node, resume.step],
        "base": base,
        "changes": changes,
        "steps": [point.step for point in trained],
        "start": next((point.val_score for point in scored if point.step == 0), None),
        "val": {point.step: point.val_score for point in scored if point.step > 0},
        "items": {
            point.step: "".join(
                str(round(item.acc)) for item in sorted(point.items, key=lambda item: item.index)
            )
            for point in scored
        },
        "metrics": {name: [shortened(point.metrics.get(name)) for point in trained] for name in logged},
    }


def shortened(value: float | None) -> float | None:
    """The value with four significant digits: enough for a stopper, and small in a repository."""
    return None if value is None else float(f"{value:.4g}")


def write(name: str, phases: list[Phase]) -> None:
    """Write the recording so far, one phase per line."""
    lines = [json.dumps(phase, separators=(",", ":")) for phase in phases]
    plan = SEARCHES[name]
    head = f'{{"task":"{plan.family.name}","n_steps":{plan.n_steps},"n_val":{number(N_VAL)},"phases":[\n'
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
