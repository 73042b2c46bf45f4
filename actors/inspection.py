"""Looking at searches and ending them, whoever works on them, from any terminal.

Not here: parsing (cli.py), starting (commands.py).
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console

from llmzero_ray.event_text import event_line
from llmzero_ray.follow import Follower
from llmzero_ray.presence import owner, request
from llmzero_ray.view import live_view, outcome_lines

from .conclude import conclude
from .finding import find
from .watch import LOOK_S, gone, print_all


def status(arguments: argparse.Namespace) -> int:
    """Show a search from its journal."""
    console, storage = Console(), find(arguments.search, arguments.storage)
    follower = Follower.of(storage)
    someone = None if arguments.offline else owner(storage.paths.root)
    if arguments.log:
        lines = [(event, event_line(follower.core, event)) for event in follower.events]
        stamp = "%Y-%m-%d %H:%M:%S"
        print_all(
            console, [f"{time.strftime(stamp, time.localtime(e.time))} {line}" for e, line in lines if line]
        )
    console.print(live_view(follower, now=time.time() if someone else None))
    if follower.torn:
        console.print(
            f"the last file of the journal ({follower.torn}) is torn and was left out", highlight=False
        )
    if follower.finished is not None:
        print_all(console, outcome_lines(follower))
    elif someone is not None:
        console.print(f"{someone} is at work on it", highlight=False)
    elif not arguments.offline:
        console.print(
            "nobody is at work on it: `llmzero search` with its configuration goes on with it",
            highlight=False,
        )
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """End a search in good order, also one that nobody works on any more."""
    console, storage = Console(), find(arguments.search, arguments.storage)
    follower, root = Follower.of(storage), storage.paths.root
    if follower.finished is None and owner(root) is not None:
        deadline_s = 0.0 if arguments.now else arguments.deadline
        request(root, "stop", arguments.reason, deadline_s=deadline_s)
        when = "now" if arguments.now else "at its next step"
        console.print(f"asked {owner(root)} to stop; what trains ends {when}", highlight=False)
        ended = gone(follower)
        while not ended():
            time.sleep(LOOK_S)
    _remove_actors(follower)
    if follower.finished is None:
        conclude(storage, arguments.reason)
        follower.poll()
    print_all(console, outcome_lines(follower))
    return 0


def _remove_actors(follower: Follower) -> None:
    """Whatever of the search is still on a cluster that outlives its commands."""
    from .head import disconnecting, join_if_there

    with disconnecting():
        if join_if_there():
            from .app import clean_up

            clean_up(follower.core.config)
