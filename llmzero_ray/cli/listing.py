"""The command `list`: the searches of a storage, one line each."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config import hub_model
from llmzero_ray.config.yaml_text import local_path
from llmzero_ray.coordinator.follow import Follower, run_status
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import is_search, searches_in
from llmzero_ray.storage.presence import owner
from llmzero_ray.utils.text import one_line, short_duration

_NONE = "–"
_WIDTH = 160
"""Columns without a terminal."""
_DISPENSABLE = ("model", "task", "begun", "GPU h")
"""Columns that a narrow terminal drops, in this order."""


def list_searches(
    place: Annotated[
        str | None, typer.Argument(metavar="STORAGE", help="the same as --storage STORAGE")
    ] = None,
    *,
    storage: options.Storage = "runs",
    as_json: options.AsJson = False,
) -> int:
    """List the searches of a storage."""
    console = TerminalConsole(width=None if sys.stdout.isatty() else _WIDTH)
    root = Path(local_path(place or storage)).absolute()
    if not root.is_dir():
        raise ConfigError(f"{root}: no such directory. Name the searches' storage with --storage DIR.")
    found = searches_in(root, unreadable=True)
    rows = [summary(path, Follower(SearchStorage.at(path))) for path in found]
    if not rows and is_search(root):
        raise ConfigError(f"{root} is one search; `llmzero status {shlex.quote(str(root))}` shows it.")
    if as_json:
        print_line(console, json.dumps(rows, indent=2))
        return 0
    if not rows:
        print_line(console, f"no search in {root}")
        return 0
    lines = [_cells(row) for row in rows]
    widths = {title: max(len(title), *(len(line[title]) for line in lines)) for title in lines[0]}
    shown = [title for title in widths if any(line[title] != _NONE for line in lines)]
    for title in _DISPENSABLE:
        if sum(widths[name] + 2 for name in shown) > console.width and title in shown:
            shown.remove(title)
    table = Table(*shown, box=None)
    for line in lines:
        table.add_row(*(Text(line[title], overflow="fold") for title in shown))
    console.print(table)
    return 0


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Column -> its text, `_NONE` for an empty one."""
    alive = None
    if row["stage"] in ("interrupted", "never begun") and row["last_alive"] is not None:
        alive = f"last {short_duration(max(0.0, time.time() - row['last_alive']))} ago"
    begun = row["begun"] and time.strftime("%Y-%m-%d", time.localtime(row["begun"]))
    cells = {
        "search": row["name"],
        "stage": row["stage"],
        "runs": f"{row['runs']} of {row['max_runs']}" if row["max_runs"] else row["runs"],
        "best": None if row["best_score"] is None else f"{row['best_score']:.4f} (node {row['best']})",
        "begun": begun,
        "task": row["task"],
        "model": row["model"],
        "GPU h": f"{row['gpu_hours']:.2f}" if row["gpu_hours"] else None,
        "at work": row["at_work"] or alive,
    }
    return {title: str(cell or _NONE) for title, cell in cells.items()}


def summary(root: Path, follower: Follower) -> dict[str, Any]:
    """Summary of one search. An unreadable one has the reason instead of its stage."""
    someone = owner(root)
    known: dict[str, Any] = {"name": root.name, "at_work": None if someone is None else str(someone)}
    known |= {"begun": None, "task": None, "model": None}
    try:
        follower.poll()
        if follower.core.started is not None:
            config = follower.core.config
            model = config.model.path or "the task's"
            known |= {
                "begun": follower.events[0].time,
                "task": config.task.family or Path(config.task.dir).name,
                "model": config.model.hub_id or (hub_model(model)[0] or Path(model).name),
            }
        return {**known, **asdict(run_status(follower))}
    except Exception as error:  # noqa: BLE001  still list the others
        why = str(error) if isinstance(error, LlmzeroError) else f"{type(error).__name__}: {error}"
        nothing = {"runs": 0, "max_runs": None, "best": None, "best_score": None, "gpu_hours": 0.0}
        return {**known, "stage": f"unreadable: {one_line(why, None)}", **nothing}
