"""Commands that steer a running search from any terminal: pause, hint, veto, clone, approve, set.

A command writes a request into the search's directory, and reads the response from its journal.
"""

from __future__ import annotations

import shlex
import time
from functools import partial
from typing import Annotated, Any

import typer

from llmzero_ray.agents.backend import PROPOSERS
from llmzero_ray.cli import options
from llmzero_ray.cli.event_text import event_line
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config.changes import differing_keys, read_settings, settings_text, with_changes
from llmzero_ray.coordinator import extension_problem
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError
from llmzero_ray.launch import actors
from llmzero_ray.launch.start import LOOK_S, Say, end_check
from llmzero_ray.records.events import RequestRefused
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find
from llmzero_ray.storage.presence import Request, RequestKind, owner, request

_ANSWER_S = 60.0


def pause(search: options.Search, *, reason: options.Reason = "", storage: options.Storage = "runs") -> int:
    """End the processes and release the hardware.

    `resume` continues from the last full checkpoints.
    """
    place = find(search, storage)
    console, follower = TerminalConsole(), Follower.of(place)
    root = place.paths.root
    if owner(root) is None:
        raise ConfigError(f"{root} is not running: there is nothing to pause.")
    code = send(place, "pause", reason)
    ended = end_check(follower)
    while not ended():
        time.sleep(LOOK_S)
    print_line(console, f"paused; `llmzero resume {shlex.quote(str(root))}` continues it")
    return code


def hint(
    search: options.Search,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="what it should know")],
    *,
    storage: options.Storage = "runs",
) -> int:
    """Give the proposer a hint, which is part of every later request."""
    return send(find(search, storage), "hint", text=text)


def veto(
    search: options.Search,
    node: options.Node,
    *,
    reason: options.Reason = "",
    storage: options.Storage = "runs",
) -> int:
    """Close a node and its subtree."""
    place, number = options.find_node(search, node, storage)
    return send(place, "veto", reason, node=number)


def clone(
    search: options.Search,
    node: options.Node,
    *,
    settings: Annotated[list[str], options.settings_option("hyper-parameter, such as lr=5e-4")],
    at_step: Annotated[
        int | None, typer.Option(metavar="STEP", help="saved step to continue from (default: the best one)")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="training steps (default: phase.n_steps)")
    ] = None,
    storage: options.Storage = "runs",
) -> int:
    """Continue a node with your own changes."""
    changes = read_settings(settings)
    place, number = options.find_node(search, node, storage)
    return send(place, "clone", changes=changes, node=number, step=at_step, n_steps=steps)


def approve(
    search: options.Search,
    node: options.Node,
    *,
    settings: Annotated[
        list[str], options.settings_option("change a hyper-parameter of it, such as lr=5e-4")
    ],
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="training steps (default: as proposed)")
    ] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="send it back to its author instead")] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="kept in the journal, told to the agents", show_default=False)
    ] = "",
    storage: options.Storage = "runs",
) -> int:
    """Answer a proposal that waits for approval (`agents.approve`).

    Without settings it is accepted as it is. An edit keeps the bounds of a proposal. A refused one goes back
    to its author with your reason, and the next one waits again. After three refusals the parent's
    configuration is continued; `veto` closes the node instead.
    """
    changes = read_settings(settings)
    place, number = options.find_node(search, node, storage)
    return send(place, "approve", reason, node=number, changes=changes, n_steps=steps, refuse=refuse)


def configure(
    search: options.Search,
    *,
    settings: Annotated[
        list[str],
        options.settings_option("setting, such as runs=24 or slots.count=3", of_search=True),
    ],
    storage: options.Storage = "runs",
) -> int:
    """Change settings that may change during a search."""
    if not settings:
        raise ConfigError("no setting is given; write for example budget.runs=24")
    return send(find(search, storage), "set", changes=read_settings(settings))


def send(
    place: SearchStorage, kind: RequestKind, reason: str = "", *, say: Say | None = None, **fields: Any
) -> int:
    """Send a request, wait for its response, pass that to `say` (default: print it), and return the exit
    code.

    Raises:
        ConfigError: the request was rejected, by the coordinator or before sending it.
    """
    say = say or partial(print_line, TerminalConsole())
    follower = Follower.of(place)
    root, core = place.paths.root, follower.core
    if kind == "set" and follower.finished is not None:
        changes = fields["changes"]
        if problem := extension_problem(core, changes):
            raise ConfigError(f"the search has ended, and {problem}")
        if not differing_keys(core.config, with_changes(core.config, changes)):
            raise ConfigError("the search has ended with these settings; nothing would change.")
        command = f"llmzero resume {shlex.quote(str(root))} {settings_text(changes)}"
        raise ConfigError(f"the search has ended; this continues it: `{command}`.")
    if kind != "pause":  # a request that is certain to be refused is not sent
        _check(follower, Request(id="", kind=kind, reason=reason, fields=fields))
    request_id = request(root, kind, reason, **fields)
    agents = core.config.agents
    if kind == "hint" and agents.backend == "expert" and agents.proposer in PROPOSERS:
        say(f"agents.backend is {agents.backend!r}: only a language model reads hints")
    if owner(root) is None:
        say("it is not running; kept for when it is resumed")
        return 0
    answer = _answer(follower, request_id)
    if answer is None and kind == "set" and follower.finished is not None:
        say(f"the search ended first; `llmzero resume {shlex.quote(str(root))}` continues with the settings")
        return 0
    if answer is None:
        say(f"not answered within {_ANSWER_S:.0f} s; it stays in {root / 'requests'}")
        return 1
    if isinstance(answer, RequestRefused):
        raise ConfigError(answer.message)
    say(event_line(core, answer) or "done")
    return 0


def _check(follower: Follower, candidate: Request) -> None:
    event = actors.control_requests.event_of(follower.core, candidate)
    if isinstance(event, RequestRefused):
        raise ConfigError(event.message)


def _answer(follower: Follower, request_id: str) -> Any:
    """Wait for a request's event in the journal. None if it does not arrive in time, or if the search ends
    first."""
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        follower.poll()
        for event in reversed(follower.events):
            if event.source == f"user:{request_id}":
                return event
        if follower.finished is not None and owner(follower.storage.paths.root) is None:
            return None
        time.sleep(0.1)
    return None
