"""Every import of the project that the tests of this folder need: the one file that changes when code moves.

Nothing is tested here and nothing is decided: each name is what a user or a file format already relies on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from llmzero_ray.cli.explain import node_facts
from llmzero_ray.cli.main import main as llmzero
from llmzero_ray.config import REMOVED, RENAMED, SearchConfig, load_config, stored_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.coordinator import check_decisions, replay
from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.verl.factory import idle_spec, verl_settings
from llmzero_ray.engines.verl.overrides import all_overrides, compose, hydra_literal
from llmzero_ray.estimate import Estimate, with_server_sizes
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.journal import read_all
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.report import load_strategy, write_outcome

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND_MODULE = "llmzero_ray.cli.main"
"""`python -m` of it is `llmzero`."""

__all__ = [
    "CHECKOUT",
    "COMMAND_MODULE",
    "REMOVED",
    "RENAMED",
    "llmzero",
    "load_config",
    "load_strategy",
    "write_outcome",
]


def load_stored(path: Path) -> SearchConfig:
    """The configuration in a search's own directory, without settings that went since it was written."""
    return stored_config(read_yaml(path), source=str(path))


def replayed(root: Path) -> dict[str, Any]:
    """What the journal of a search says happened, and where a replay of its decisions differs."""
    events = read_all(root / "journal")
    core = replay(events, root)
    return {
        "events": len(events),
        "decisions": [
            {
                "number": check.number,
                "action": check.recorded.action,
                "on": check.recorded.on,
                "node": check.recorded.node,
                "again": [check.again.action, check.again.on],
                "differences": list(check.differences),
            }
            for check in check_decisions(events, root)
        ],
        "nodes": {str(node.id): node_facts(node) for node in core.search.nodes.values()},
        "recipe": []
        if core.search.best is None
        else [[cut.node, cut.step] for cut in core.search.cuts(core.search.best.id)],
        "runs": {
            str(run.node): [run.kind, run.status, run.score, run.attempt, run.losses]
            for run in core.runs.values()
        },
    }


# --- configurations -----------------------------------------------------------------------------------------


def preset(path: Path) -> dict[str, Any]:
    """What a search of this configuration would hand to VeRL for its root: the engine's overrides in hydra's
    words, and the root's complete hyper-parameters.

    The task is one of 4,096 rows whose reward ships.
    """
    task = PreparedTask(
        directory="/task",
        name="task",
        family=None,
        train="/task/train.parquet",
        val="/task/val.parquet",
        test="/task/test.parquet",
        n_train=4096,
        n_val=256,
        n_test=1024,
        data_sources=("chain_sum",),
        reward_module="package.reward",
        reward_path="/task/reward.py",
        reward_name="compute_score",
        max_prompt_tokens=None,
        max_answer_tokens=None,
        model_path="/task/model",
        model_params=None,
        greedy_val_accuracy=None,
        licence=None,
        majority_baseline=None,
    )
    config = with_server_sizes(Estimate(load_config(path), task), lambda _: None)
    slot = Slot(
        search=config.name,
        index=0,
        placement_groups=("group",) * config.slots.nodes,
        gpus_per_node=config.slots.gpus_per_node,
        cpus_per_gpu=config.slots.cpus_per_gpu,
    )
    settings = verl_settings(config, task, slot, "/log")
    asked = root_hyperparameters(config, task.n_train)
    spec = replace(
        idle_spec(config, task.n_train, "/log"),
        n_steps=config.phase.n_steps,
        save_freq=config.phase.save_freq,
        test_freq=config.phase.test_freq,
        seed=1,
        hyperparameters=resolve(asked, n_gpus=settings.n_gpus, micro_batch_limit=settings.micro_batch_limit),
    )
    overrides = all_overrides(settings, spec, task.n_train)
    return {
        "overrides": {key: hydra_literal(value) for key, value in overrides.items()},
        "root": dict(asked),
        "composed": compose(overrides),
    }
