"""Lessons of the earlier searches in one directory, such as `runs/`.

Only phases of searches on the same rows and the same base model teach something here; of every other search
it is said why it was left out. Read once, when a search starts, and frozen with it. Not here: one lesson
(lessons.py), what a proposer makes of it (local/).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.agents.evidence import outcome
from llmzero_ray.agents.lessons import Lesson
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import CoordinatorCore, replay
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.hyperparameters import MICRO_BATCHES, diff
from llmzero_ray.journal import read_all
from llmzero_ray.metric_files import load_curves
from llmzero_ray.records import PhaseResult
from llmzero_ray.storage import SearchStorage

logger = logging.getLogger("llmzero_ray.agents.archive")
MOST_LESSONS = 60
"""Lessons that a search takes along: those that stand out most from their error."""


def archive_facts(config: SearchConfig, task: Mapping[str, Any]) -> dict[str, Any]:
    """`lessons` (plain data, oldest search first) and `archive` (a line on each search that was left out).

    Empty without `agents.archive`. `task` are the facts of the task of the search that begins.

    Raises:
        ConfigError: `agents.archive` is no directory.
    """
    if config.agents.archive is None:
        return {}
    lessons, notes = [], []
    for root in searches(config.agents.archive):
        if root.name == config.name and root.parent == Path(config.storage):
            continue
        try:
            lessons += list(_lessons(root, config, task))
        except _LeftOutError as reason:
            notes.append(f"{root.name}: {reason}")
        except (LlmzeroError, OSError, KeyError, ValueError) as error:
            notes.append(f"{root.name}: cannot be read ({' '.join(str(error).split())})")
    for note in notes:
        logger.info("archive: %s", note)
    kept = sorted(lessons, key=lambda lesson: -abs(lesson.gain) / lesson.error)[:MOST_LESSONS]
    return {"lessons": [vars(lesson) for lesson in lessons if lesson in kept], "archive": notes}


def searches(directory: str) -> list[Path]:
    """The directories of searches below `directory`, by name.

    Raises:
        ConfigError: it is no directory.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ConfigError(
            f"agents.archive is {directory}, which is no directory; name the one that holds the directories "
            "of earlier searches, such as runs, or leave it out."
        )
    return sorted(path for path in root.iterdir() if (path / "search.yaml").is_file())


class _LeftOutError(Exception):
    """Why a search teaches nothing here."""


def _lessons(root: Path, config: SearchConfig, task: Mapping[str, Any]) -> Iterator[Lesson]:
    storage = SearchStorage.at(root)
    core = replay(read_all(storage.journal_address()), storage.paths.root)
    if core.started is None:
        raise _LeftOutError("it holds no search")
    reason = _why_not(core, config, task)
    if reason:
        raise _LeftOutError(reason)
    n_val = int(core.started.task["n_val"])
    for node, run in sorted(core.runs.items()):
        spec = run.spec
        if node < 0 or spec is None or spec.resume_from is None or not isinstance(run.outcome, PhaseResult):
            continue
        source = core.runs[spec.resume_from.node].spec
        curves = load_curves(storage, node, gains=True)
        gain = outcome(curves, n_val)
        if source is None or gain is None or curves.start_score is None:
            continue
        changed = diff(source.hyperparameters, spec.hyperparameters)
        yield Lesson(
            search=root.name,
            node=node,
            changes={key: pair for key, pair in changed.items() if key not in MICRO_BATCHES},
            start_step=spec.base_step,
            n_steps=spec.n_steps,
            start=curves.start_score,
            gain=gain.value,
            error=gain.error,
        )


def _why_not(core: CoordinatorCore, config: SearchConfig, task: Mapping[str, Any]) -> str:
    """Why a search is none on the same rows and base model; empty: it is one."""
    assert core.started is not None
    theirs = core.started.task
    for split in ("train", "val"):
        if theirs.get("sha256", {}).get(split) != task["sha256"][split]:
            return f"another task: its {split} rows ({theirs.get('name')}) are not those of {task['name']}"
    here, there = (
        one.model.path or Path(str(facts.get("model_path"))).name
        for one, facts in ((config, task), (core.config, theirs))
    )
    if here != there:
        return f"another base model: {there}, here {here}"
    return ""
