"""The command `status`: the state of a search from its journal, running or not."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.event_text import event_line
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.cli.view import live_view, outcome_lines
from llmzero_ray.coordinator import not_started
from llmzero_ray.coordinator.follow import Follower, run_status
from llmzero_ray.storage.locate import find, renamed
from llmzero_ray.storage.presence import owner
from llmzero_ray.utils.text import short_duration


def status(
    search: options.Search,
    *,
    log: Annotated[bool, typer.Option("--log", help="one line per event as well")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="read the journal alone: do not check whether it is running")
    ] = False,
    as_json: options.AsJson = False,
    storage: options.Storage = "runs",
) -> int:
    """Show a search from its journal."""
    console, place = TerminalConsole(), find(search, storage)
    follower = Follower.of(place, started=False)
    if as_json:
        print_line(console, json.dumps(_facts(follower, offline=offline), indent=2))
        return 0
    if follower.core.started is None and follower.core.initialization is None:
        print_line(console, not_started(follower.core, place.paths.root))
        return 0
    someone = None if offline else owner(place.paths.root)
    now = None if offline else run_status(follower)
    if log:
        lines = [(event.time, event_line(follower.core, event)) for event in follower.events]
        stamp = "%Y-%m-%d %H:%M:%S"
        print_lines(
            console, (f"{time.strftime(stamp, time.localtime(at))} {line}" for at, line in lines if line)
        )
    stage = None if now is None else now.stage
    console.print(live_view(follower, now=time.time() if someone else None, stage=stage))
    if follower.torn:
        print_line(console, f"the last file of the journal ({follower.torn}) is torn and was left out")
    if follower.finished is not None:
        print_lines(console, outcome_lines(follower))
    elif someone is not None:
        print_line(console, f"{someone} is working on it")
    elif follower.core.started is None and not offline:
        print_line(console, not_started(follower.core, place.paths.root))
    elif now is not None and now.last_alive is not None:
        age = short_duration(max(0.0, time.time() - now.last_alive))
        root = place.paths.root
        back = renamed(root, follower.core.config.name)
        resume = back or f"`llmzero resume {shlex.quote(str(root))}` continues it"
        print_line(console, f"it is not running (last sign of life {age} ago): {resume}")
    return 0


def _facts(follower: Follower, *, offline: bool) -> dict[str, Any]:
    """The search as plain data: stage, processes and nodes."""
    # Imported here because a report's rows need more than twice the imports of a status.
    from llmzero_ray.report.facts import SearchFacts
    from llmzero_ray.report.tables import node_rows

    place = follower.storage
    someone = None if offline else owner(place.paths.root)
    now = {**asdict(run_status(follower)), **({"stage": follower.core.stage} if offline else {})}
    nodes = [] if follower.core.started is None else node_rows(SearchFacts(place))
    for node in nodes:
        node["hyperparameters"] = json.loads(node["hyperparameters"] or "null")
        if now["stage"] == "interrupted" and node["status"] == "running":
            node["status"] = "interrupted"
    return {
        "name": place.name,
        "directory": str(place.paths.root),
        "at_work": None if someone is None else str(someone),
        **now,
        "nodes": nodes,
    }
