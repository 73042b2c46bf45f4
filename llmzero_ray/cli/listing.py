"""The command `list`: the searches of a storage, one line each."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.coordinator.follow import Follower, run_status
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import owner
from llmzero_ray.utils.text import one_line, short_duration

_NONE = "–"


def list_searches(*, storage: options.Storage = "runs", as_json: options.AsJson = False) -> int:
    """List the searches of a storage."""
    console, root = TerminalConsole(), Path(storage).absolute()
    rows = [summary(path, Follower(SearchStorage.at(path))) for path in searches_in(root)]
    if as_json:
        print_line(console, json.dumps(rows, indent=2))
        return 0
    if not rows:
        print_line(console, f"no search in {root}")
        return 0
    table = Table("search", "stage", "runs", "best", "GPU hours", "at work", box=None)
    for row in rows:
        score = _NONE if row["best_score"] is None else f"{row['best_score']:.4f} (node {row['best']})"
        runs = f"{row['runs']} of {row['max_runs']}" if row["max_runs"] else str(row["runs"] or _NONE)
        left = row["stage"] in ("interrupted", "never begun") and row["last_alive"] is not None
        alive = f"last {short_duration(max(0.0, time.time() - row['last_alive']))} ago" if left else _NONE
        cells = (row["name"], row["stage"], runs, score, f"{row['gpu_hours']:.2f}", row["at_work"] or alive)
        table.add_row(*(Text(str(cell), overflow="fold") for cell in cells))
    console.print(table)
    return 0


def searches_in(storage: Path) -> list[Path]:
    """Directories of the searches of a storage.

    Raises:
        ConfigError: there is no such directory.
    """
    if not storage.is_dir():
        raise ConfigError(f"{storage}: no such directory. Name the searches' storage with --storage DIR.")
    files = ("search.yaml", "starting")
    return [path for path in sorted(storage.iterdir()) if any((path / f).is_file() for f in files)]


def summary(root: Path, follower: Follower) -> dict[str, Any]:
    """Summary of one search. An unreadable one has the reason instead of its stage."""
    someone = owner(root)
    known = {"name": root.name, "at_work": None if someone is None else str(someone)}
    try:
        follower.poll()
        return {**known, **asdict(run_status(follower))}
    except Exception as error:  # noqa: BLE001  the others are listed all the same
        why = str(error) if isinstance(error, LlmzeroError) else f"{type(error).__name__}: {error}"
        nothing = {"runs": 0, "max_runs": None, "best": None, "best_score": None, "gpu_hours": 0.0}
        return {**known, "stage": f"unreadable: {one_line(why, None)}", **nothing}
