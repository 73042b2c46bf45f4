"""The tasks of the suite: purpose, construction, search.yaml, and a digest of the whole definition.

Tasks are chosen by kind and kept for their measured headroom (headroom.py), never for the method that does
well on them. The pair `sum` is the negative control: its default recipe is expected to be the best static
one.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suite import noisy_reward
from benchmarks.suite.families.common import plan_of
from benchmarks.suite.families.long_sums import LongSums
from benchmarks.suite.families.operation_codes import OperationCodes
from benchmarks.suite.families.registers import Registers
from llmzero_ray.config import SearchConfig, change_settings, parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.directory import create_once, no_progress
from llmzero_ray.prepared.families import Family
from llmzero_ray.prepared.manifest import ModelEntry, RewardEntry, read_manifest, write_manifest
from llmzero_ray.prepared.splits import CONFIRM, fresh_problems
from llmzero_ray.prepared.task import PreparedTask, load_task
from llmzero_ray.prepared.verl_rows import to_rows, write_split
from llmzero_ray.tasks.families.chain_sum import ChainSum
from llmzero_ray.tasks.prepare import FamilySpec, write_task

HERE = Path(__file__).parent
BASE = HERE / "suite.yaml"
MODELS = HERE / "models"
MADE = "made.json"
"""File next to a model's weights, written after them, with the results of its warm start."""
WEIGHTS = "model.safetensors"
N_CONFIRM = 1024
"""Number of items on which the best strategies of a search are confirmed; they are in no split."""


@dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """One task with its model."""

    name: str
    kind: str
    """Its purpose in the suite."""
    family: Family
    set: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys of search.yaml that belong to the task and are the same for every recipe."""
    is_noisy: bool = False


LATE = Registers(
    name="register_late",
    least=3,
    most=6,
    worked=(0.05, 0.05, 0.90),
    direct=(0.90, 0.02, 0.08),
    worked_starts="01",
    warm_start=plan_of(n_steps=1000, batch_size=96, lr=2e-3),
)
"""The model knows worked chains but seldom shows them: reward grows slowly until sampling finds them
often."""
CAPPED = Registers(
    name="register_capped",
    least=8,
    most=10,
    worked=(0.05, 0.00, 0.95),
    direct=(0.85, 0.00, 0.15),
    worked_starts="0123",
    warm_start=plan_of(n_steps=1000, batch_size=96, lr=2e-3),
    gap=".",
)
"""A whole chain has 3 k + 1 tokens, 25 to 31: the default cap of 24 cuts every one."""

TASKS: tuple[SuiteTask, ...] = (
    SuiteTask(name="sum", kind="saturates fast; negative control", family=ChainSum()),
    SuiteTask(
        name="sum_alpha",
        kind="collapses at the default rate",
        family=ChainSum(),
        set={"model.lora_alpha": 128},
    ),
    SuiteTask(
        name="sum_slow",
        kind="a small LoRA alpha, slow at the default rate",
        family=ChainSum(),
        set={"model.lora_alpha": 2},
    ),
    SuiteTask(
        name="sum_long",
        kind="the default rate is too high, without a crash",
        family=LongSums(),
        set={"model.lora_alpha": 48},
    ),
    SuiteTask(name="sum_noisy", kind="noisy reward", family=ChainSum(), is_noisy=True),
    SuiteTask(name="register_late", kind="late take-off", family=LATE),
    SuiteTask(
        name="register_alpha",
        kind="late take-off, at a rate that is too high",
        family=LATE,
        set={"model.lora_alpha": 128},
    ),
    SuiteTask(name="register_capped", kind="a response cap that must grow", family=CAPPED),
    SuiteTask(name="codes", kind="sparse reward", family=OperationCodes()),
    SuiteTask(
        name="codes_alpha",
        kind="sparse reward, a large LoRA alpha; negative control",
        family=OperationCodes(),
        set={"model.lora_alpha": 128},
    ),
)


def task_named(name: str) -> SuiteTask:
    """The task of that name.

    Raises:
        ConfigError: there is none.
    """
    for task in TASKS:
        if task.name == name:
            return task
    raise ConfigError(f"the suite has no task {name!r}; it has {', '.join(task.name for task in TASKS)}.")


def config(task: SuiteTask, data: Path) -> SearchConfig:
    """The task's search.yaml: the suite's, with a task directory below `data`."""
    found = read_yaml(BASE)
    change_settings(found, settings(task, data))
    return parse_config(found, source=f"suite, {task.name}")


def settings(task: SuiteTask, data: Path) -> dict[str, Any]:
    """The keys that a comparison sets for the task."""
    return {"task.dir": str(_directory(task, data)), **task.set}


def prepare(task: SuiteTask, data: Path) -> PreparedTask:
    """The task below `data` with the model that the suite keeps; made if it does not exist.

    Raises: TaskError: it cannot be made, another one is in its place, or the suite has no model for it.
    """
    target = _directory(task, data)
    create_once(target, lambda directory: write(directory, task, spec_of(task)), no_progress)
    return load_task(target)


def write(directory: Path, task: SuiteTask, wanted: FamilySpec) -> None:
    """Write rows, fresh items to confirm winners on, the kept model, and for a noisy task its reward as a
    separate file."""
    write_task(directory, dataclasses.replace(wanted, make_model=False), no_progress)
    known = read_manifest(directory)
    problems = fresh_problems(task.family, wanted.sizes, wanted.seed, N_CONFIRM)
    confirm = write_split(directory, CONFIRM, to_rows(task.family, CONFIRM, problems))
    reward = known.reward
    if task.is_noisy:
        file = directory / "noisy_reward.py"
        file.write_text(Path(noisy_reward.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        reward = RewardEntry(path=file.name, gold_response=known.reward.gold_response)
    kept = model_of(task)
    made = json.loads((kept / MADE).read_text(encoding="utf-8"))
    shutil.copytree(kept, directory / "model", ignore=shutil.ignore_patterns(MADE))
    update = {
        "splits": known.splits.model_copy(update={"confirm": confirm}),
        "reward": reward,
        "model": ModelEntry(
            path="model", params=made["params"], greedy_val_accuracy=made["greedy_val_accuracy"]
        ),
        "max_prompt_tokens": made["max_prompt_tokens"],
        "max_answer_tokens": made["max_answer_tokens"],
    }
    write_manifest(known.model_copy(update=update), directory)


def spec_of(task: SuiteTask) -> FamilySpec:
    """The values that determine a task's rows and model."""
    wanted = parse_config(read_yaml(BASE), source="suite").task
    sizes = {"train": wanted.n_train, "val": wanted.n_val, "test": wanted.n_test}
    return FamilySpec(family=task.family, sizes=sizes, seed=wanted.seed, make_model=True)


def model_of(task: SuiteTask) -> Path:
    """Directory of the kept model, which tasks of one family share."""
    return MODELS / task.family.name


def _directory(task: SuiteTask, data: Path) -> Path:
    """Directory named after the content, so that a changed family never uses rows and model of its old
    definition. Tasks with the same rows and reward share a directory, and so the model."""
    name = f"{task.family.name}_noisy" if task.is_noisy else task.family.name
    return (data / f"{name}-{_hash(_content(task))[:8]}").absolute()


def digest(task: SuiteTask) -> str:
    """A hash of what defines the task: its rows, reward and model, its settings, and the suite's default."""
    named = {"name": task.name, "set": dict(task.set), "base": read_yaml(BASE), "content": _content(task)}
    return _hash(named)


def _content(task: SuiteTask) -> dict[str, Any]:
    """Everything that determines the task's rows, reward and model: its own values, the family's parameters
    and code, and the model itself.

    Raises:
        TaskError: the suite keeps no model of this family.
    """
    kept = model_of(task)
    if not (kept / MADE).is_file():
        raise TaskError(
            f"{task.name}: there is no whole model in {kept}. Make it once: "
            f"python -m benchmarks.suite.freeze {task.name}"
        )
    found: dict[str, Any] = {
        "recipe": spec_of(task).as_dict(),  # names a shipped family's version
        "model": hashlib.sha256((kept / WEIGHTS).read_bytes()).hexdigest(),
    }
    if dataclasses.is_dataclass(task.family):
        found["family"] = dataclasses.asdict(task.family)
        found["code"] = _code(Path(inspect.getfile(type(task.family))))
    if task.is_noisy:
        found["reward"] = _code(Path(noisy_reward.__file__))
    return found


def _code(path: Path) -> str:
    """A module's code without imports and docstrings, whose changes do not affect any row."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _says_nothing(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _says_nothing(node: ast.stmt) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
