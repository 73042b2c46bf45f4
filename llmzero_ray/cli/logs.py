"""The command `logs`: the end of a search's logs, or of a node's. Not here: events (status.py)."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.coordinator import run_of
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, JournalError
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find

_LOOK_S = 0.5


def logs(
    search: options.Search,
    node: Annotated[
        str | None,
        typer.Argument(metavar="NODE", help="number of a node, or best; without it the coordinator"),
    ] = None,
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="last lines of each log")
    ] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="print what is added, until Ctrl-C")] = False,
    storage: options.Storage = "runs",
) -> int:
    """Print the logs of the coordinator, or of a node: its runner's and its engine's."""
    console = TerminalConsole()
    if node is None:
        place = find(search, storage)
        with contextlib.suppress(JournalError):  # a damaged search's log is needed most
            Follower.of(place, started=False)  # raises if there is no such search
        paths = [place.paths.logs / "coordinator.log"]
    else:
        place, number = options.find_node(search, node, storage)
        paths = _of_node(place, number)
    there = [path for path in paths if path.is_file()]
    if not there:
        kept = sorted(str(path.relative_to(place.paths.root)) for path in place.paths.logs.rglob("*.log"))
        have = f"there are {', '.join(kept)}" if kept else "the directory has no logs"
        raise ConfigError(f"{paths[0]}: there is no such log; {have}.")
    ends: dict[Path, int] = {}
    for path in there:
        with path.open("rb") as file:
            last = deque(file, maxlen=lines)
            ends[path] = file.tell()
        print_line(console, f"==> {path} <==")
        print_lines(console, (line.decode("utf-8", errors="replace").rstrip("\n") for line in last))
    while follow:
        for path, end in ends.items():
            with path.open("rb") as file:
                file.seek(end)
                added = file.read()
                ends[path] = file.tell()
            if added:
                print_line(console, added.decode("utf-8", errors="replace").rstrip("\n"))
        time.sleep(_LOOK_S)
    return 0


def _of_node(place: SearchStorage, node: int) -> list[Path]:
    run = run_of(Follower.of(place).core.runs, node, place.name)
    return [place.paths.log(node), place.paths.logs / f"slot-{run.slot}" / "engine.log"]
