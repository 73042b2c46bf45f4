"""Searches with real VeRL under strikes: a tiny task and model on the CPU.

Not here: the loop (run.py), the scripted engine (trial.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.tasks.prepare import prepare

from . import checks
from .killer import Killer, Strike
from .lab import Lab
from .run import N_VAL, Outcome, chaos
from .trial import Story

_PATIENCE_S = 900.0
"""A start of VeRL takes half a minute, and minutes on a machine that others load."""


def real_lab(slots: int) -> Lab:
    """A cluster with a machine for each slot and one to spare, each with room for VeRL's processes."""
    return Lab(machines=slots + 1, cpus=16)


def real_config(name: str, storage: Path, task_dir: Path, *, slots: int, runs: int) -> SearchConfig:
    """A search with phases of a few steps, full checkpoints and verdicts."""
    return parse_config(
        {
            "name": name,
            "storage": str(storage),
            "task": {"dir": str(task_dir)},
            "model": {"lora_rank": 8, "lora_alpha": 16},
            "budget": {"runs": runs},
            "phase": {"n_steps": 8, "max_steps": 16, "test_freq": 4, "save_freq": 4},
            "root": {"overrides": {"lr": 2e-3, "batch": 8, "n": 4, "resp": 8}},
            "eval": {"max_response_length": 8},
            "stopper": {"interval_steps": 2, "min_steps": 4},
            "slots": {"count": slots, "gpus_per_node": 1, "timeout_s": 240.0},
            "checkpoints": {"rolling_freq": 2},
            "engine": {"platform": "cpu", "max_prompt_length": 32, "max_response_length": 16},
            "final": {"test": False, "default_recipe": False},
        }
    )


def real_chaos(
    lab: Lab,
    root: Path,
    *,
    kills: int,
    seed: int,
    slots: int,
    runs: int = 4,
    strikes: Iterator[Strike] | None = None,
) -> Outcome:
    """Searches on real VeRL in `root` until `kills` strikes have landed; `strikes` instead of the seed's."""
    task = root / "task"
    prepare(dir=task, family="echo", n_train=256, n_val=N_VAL, n_test=64, seed=1)

    def config(name: str) -> SearchConfig:
        return real_config(name, root / "runs", task, slots=slots, runs=runs)

    def compare(story: Story) -> Iterable[str]:
        """A phase that two searches have in common gives the same curve, whichever of them was struck."""
        first = outcome.stories[0]
        if first is not story:
            common, differences = checks.same_curves(story.witness, first.witness)
            outcome.n_compared += common
            yield from differences

    outcome = Outcome()
    planned = strikes or Killer(seed, real=True).strikes()
    return chaos(lab, outcome, config, compare, planned, kills=kills, seed=seed, patience_s=_PATIENCE_S)
