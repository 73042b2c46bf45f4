"""Lessons of the earlier searches in one directory, such as `runs/`.

Only phases of searches on the same rows and the same base model teach something here; of every other search
it is said why it was left out. Journals are read as far as they can be: what stands before a damaged event,
or before one of another version, counts. Read once, when a search starts, and frozen with it. Not here: one
lesson (lessons.py), what a proposer makes of it (expert/, local/, llm/).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmzero_ray import events as ev
from llmzero_ray.agents.evidence import outcome
from llmzero_ray.agents.lessons import Lesson
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.hyperparameters import MICRO_BATCHES, diff
from llmzero_ray.journal import JournalReader
from llmzero_ray.metric_files import load_curves
from llmzero_ray.records import Event, PhaseSpec
from llmzero_ray.storage import SearchStorage
from llmzero_ray.text import one_line

logger = logging.getLogger("llmzero_ray.agents.archive")
MOST_LESSONS = 60
"""Lessons that a search takes along: those that stand out most from their error."""


def archive_facts(config: SearchConfig, task: Mapping[str, Any]) -> dict[str, Any]:
    """`lessons` (plain data, oldest search first) and `archive` (a line on each search that was left out, or
    of which only a part could be read).

    Empty without `agents.archive`. `task` are the facts of the task of the search that begins.

    Raises:
        ConfigError: `agents.archive` is no directory.
    """
    if config.agents.archive is None:
        return {}
    lessons: list[Lesson] = []
    notes: list[str] = []
    for root in searches(config.agents.archive):
        if root.name == config.name and root.parent == Path(config.storage):
            continue
        try:
            found, problem = _lessons(root, config, task)
        except (LlmzeroError, OSError, LookupError, TypeError, ValueError) as error:
            found, problem = [], f"left out: cannot be read ({one_line(str(error), 300)})"
        lessons += found
        if problem:
            notes.append(f"{root.name}: {problem}")
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
    return sorted(path for path in root.iterdir() if _is_search(path))


def _is_search(path: Path) -> bool:
    return (path / "search.yaml").is_file() or (path / "journal").is_dir()


@dataclass(kw_only=True)
class _Phases:
    """What a journal says of the phases of a search, read without the rules of any version."""

    started: ev.SearchStarted | None = None
    specs: dict[int, PhaseSpec] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """Phases whose planned checkpoint was damaged: they may have resumed another one."""

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, ev.SearchStarted):
                self.started = self.started or event
            elif isinstance(event, ev.PhasePlanned):
                self.specs[event.node] = event.spec
            elif isinstance(event, ev.PhaseFinished):
                self.finished.add(event.node)
            elif isinstance(event, ev.CheckpointCorrupt):
                damaged = (event.node, event.step)
                self.unsure |= {
                    node
                    for node, spec in self.specs.items()
                    if spec.resume_from is not None
                    and (spec.resume_from.node, spec.resume_from.step) == damaged
                    and node not in self.finished
                }


def _lessons(root: Path, config: SearchConfig, task: Mapping[str, Any]) -> tuple[list[Lesson], str]:
    """The lessons of a search, and what of it is not used and why; empty: all of it is."""
    storage, phases = SearchStorage.at(root), _Phases()
    reader = JournalReader(storage.journal_to_read())
    entries, damage = reader.poll_whole()
    phases.take(entry.event for entry in entries)
    if phases.started is None:
        return [], f"left out: {'it holds no search' if damage is None else one_line(str(damage), 300)}"
    reason = _why_not(phases.started, config, task)
    if reason:
        return [], f"left out: {reason}"
    notes = (
        [] if damage is None else [f"read up to event {damage.number - 1}: {one_line(damage.problem, 200)}"]
    )
    found, unreadable = [], []
    for node in sorted(phases.finished - phases.unsure):
        try:
            lesson = _lesson(storage, phases, node)
        except (LlmzeroError, OSError, LookupError, TypeError, ValueError) as error:
            unreadable.append(f"{node} ({one_line(str(error), 80)})")
            continue
        if lesson is not None:
            found.append(lesson)
    if unreadable:
        notes.append(f"without nodes whose metrics cannot be read: {', '.join(unreadable)}")
    return found, "; ".join(notes)


def _lesson(storage: SearchStorage, phases: _Phases, node: int) -> Lesson | None:
    """What a finished phase gained; None: it resumed no phase, or its validations were not kept."""
    assert phases.started is not None
    spec = phases.specs.get(node)
    source = None if spec is None or spec.resume_from is None else phases.specs.get(spec.resume_from.node)
    if node < 0 or spec is None or source is None:
        return None
    curves = load_curves(storage, node, gains=True)
    gain = outcome(curves, int(phases.started.task["n_val"]))
    if gain is None or curves.start_score is None:
        return None
    changed = diff(source.hyperparameters, spec.hyperparameters)
    return Lesson(
        search=storage.paths.root.name,
        node=node,
        changes={key: pair for key, pair in changed.items() if key not in MICRO_BATCHES},
        start_step=spec.base_step,
        n_steps=spec.n_steps,
        start=curves.start_score,
        gain=gain.value,
        error=gain.error,
    )


def _why_not(started: ev.SearchStarted, config: SearchConfig, task: Mapping[str, Any]) -> str:
    """Why a search is none on the same rows and base model; empty: it is one."""
    theirs = started.task
    for split in ("train", "val"):
        if theirs.get("sha256", {}).get(split) != task["sha256"][split]:
            return f"another task: its {split} rows ({theirs.get('name')}) are not those of {task['name']}"
    paths = ((config.model.path, task), (started.config.get("model", {}).get("path"), theirs))
    here, there = (path or Path(str(facts.get("model_path"))).name for path, facts in paths)
    if here != there:
        return f"another base model: {there}, here {here}"
    return ""
