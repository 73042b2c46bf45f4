"""The command `stop`: end a running or an interrupted search, from any terminal.

Pausing a search is in steering.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.cli.view import outcome_lines
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.launch import actors
from llmzero_ray.launch.start import LOOK_S, end_check
from llmzero_ray.report.finalize import finalize
from llmzero_ray.storage.locate import find
from llmzero_ray.storage.presence import owner, request


def stop(
    search: options.Search,
    *,
    reason: options.Reason = "llmzero stop",
    now: Annotated[bool, typer.Option("--now", help="do not wait for the phases' next step")] = False,
    deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="after which phases that have not ended are killed"),
    ] = None,
    storage: options.Storage = "runs",
) -> int:
    """End a search in good order, even if no process runs it any more."""
    console, place = TerminalConsole(), find(search, storage)
    follower, root = Follower.of(place), place.paths.root
    if follower.finished is None and owner(root) is not None:
        request(root, "stop", reason, deadline_s=0.0 if now else deadline)
        when = "now" if now else "at their next step"
        print_line(console, f"asked {owner(root)} to stop; running phases end {when}")
        ended = end_check(follower)
        while not ended():
            time.sleep(LOOK_S)
    _remove_actors(root)
    if follower.finished is None:
        finalize(place, reason)
        follower.poll()
    print_lines(console, outcome_lines(follower))
    return 0


def _remove_actors(root: Path) -> None:
    """End remaining actors of the search on a cluster that outlives its commands."""
    with actors.head.disconnecting():
        if actors.head.join_if_there():
            actors.app.clean_up(root)
