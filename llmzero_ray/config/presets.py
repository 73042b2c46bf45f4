"""The shipped configurations and tasks, by name: `qwen3_4b` is jobs/configs/qwen3_4b.yaml and `gsm_symbolic`
jobs/configs/tasks/gsm_symbolic.yaml; in a wheel they are files inside it."""

from __future__ import annotations

from pathlib import Path

_LIBRARY = Path(__file__).resolve().parent.parent
SCHEMA = _LIBRARY / "search.schema.json"
"""JSON schema of search.yaml, for editors; a test holds it to the settings classes."""


def folder() -> Path:
    """Directory of the shipped configurations."""
    inside = _LIBRARY / "configs"
    return inside if inside.is_dir() else _LIBRARY.parent / "jobs" / "configs"


def names() -> list[str]:
    """Names of the shipped configurations of searches."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def task_names() -> list[str]:
    """Names of the shipped tasks."""
    return sorted(path.stem for path in (folder() / "tasks").glob("*.yaml"))


def path_of(file_or_name: str) -> Path:
    """The file that is meant: one that exists, else a shipped configuration or task of that name."""
    given = Path(file_or_name)
    if given.exists() or given.suffix == ".yaml" or ".." in given.parts or given.is_absolute():
        return given
    shipped = (folder() / f"{file_or_name}.yaml", folder() / "tasks" / f"{file_or_name}.yaml")
    return next((path for path in shipped if path.is_file()), given)
