"""Asking a search at work for something, from any terminal: pause, hint, veto, clone, other settings.

A request is left in the search's directory; the answer is read from its journal. Not here: parsing (cli.py),
what becomes of a request (inbox.py), stopping (inspection.py).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.console import Console

from llmzero_ray.agents.backend import MODEL_BACKENDS
from llmzero_ray.config_changes import read_settings
from llmzero_ray.errors import ConfigError
from llmzero_ray.event_text import event_line
from llmzero_ray.events import RequestRefused
from llmzero_ray.follow import Follower
from llmzero_ray.presence import Request, RequestKind, owner, request

from .finding import find
from .inbox import event_of
from .watch import LOOK_S, gone, print_all

_ANSWER_S = 60.0


def pause(arguments: argparse.Namespace) -> int:
    """End the processes and give the hardware back; `resume` goes on from the last full checkpoints."""
    console, follower = Console(), Follower.of(find(arguments.search, arguments.storage))
    root = follower.storage.paths.root
    if owner(root) is None:
        raise ConfigError(f"nobody is at work on {root}: there is nothing to pause.")
    code = _ask(arguments, "pause", reason=arguments.reason)
    ended = gone(follower)
    while not ended():
        time.sleep(LOOK_S)
    print_all(console, [f"paused; `llmzero resume {root}` goes on with it"])
    return code


def hint(arguments: argparse.Namespace) -> int:
    """Tell the proposer something; it is part of every later question."""
    return _ask(arguments, "hint", text=arguments.text)


def veto(arguments: argparse.Namespace) -> int:
    """Close a node with all below it."""
    return _ask(arguments, "veto", reason=arguments.reason, node=arguments.node)


def clone(arguments: argparse.Namespace) -> int:
    """Continue a node with changes of one's own."""
    asked = {"node": arguments.node, "step": arguments.at_step, "n_steps": arguments.steps}
    return _ask(arguments, "clone", changes=read_settings(arguments.set), **asked)


def budget(arguments: argparse.Namespace) -> int:
    """Change limits of the `budget` block."""
    return _set(
        arguments, [text if text.startswith("budget.") else f"budget.{text}" for text in arguments.set]
    )


def configure(arguments: argparse.Namespace) -> int:
    """Change what may be changed while a search goes on."""
    return _set(arguments, arguments.settings)


def _set(arguments: argparse.Namespace, settings: list[str]) -> int:
    if not settings:
        raise ConfigError("nothing is to be changed; write for example budget.runs=24")
    return _ask(arguments, "set", changes=read_settings(settings))


def _ask(arguments: argparse.Namespace, kind: RequestKind, reason: str = "", **asked: Any) -> int:
    """Leave a request and wait for its answer.

    Raises:
        ConfigError: it cannot be done; the reason is the coordinator's, or known here already.
    """
    console, follower = Console(), Follower.of(find(arguments.search, arguments.storage))
    root, core = follower.storage.paths.root, follower.core
    if kind != "pause":  # what is certain to be refused is refused at once, and nothing is left behind
        _check(follower, Request(id="", kind=kind, reason=reason, asked=asked))
    asked_id = request(root, kind, reason, **asked)
    if kind == "hint" and core.config.agents.backend not in MODEL_BACKENDS:
        said = f"agents.backend is {core.config.agents.backend!r}: only a language model reads hints"
        console.print(said, highlight=False)
    if owner(root) is None:
        console.print("nobody is at work on it; kept for when it is resumed", highlight=False)
        return 0
    answer = _answer(follower, asked_id)
    if answer is None:
        console.print(
            f"not answered within {_ANSWER_S:.0f} s; it stays in {root / 'requests'}", highlight=False
        )
        return 1
    if isinstance(answer, RequestRefused):
        raise ConfigError(answer.message)
    print_all(console, [event_line(core, answer) or "done"])
    return 0


def _check(follower: Follower, asked: Request) -> None:
    event = event_of(follower.core, asked)
    if isinstance(event, RequestRefused):
        raise ConfigError(event.message)


def _answer(follower: Follower, asked_id: str) -> Any:
    """The event that a request became, once it is in the journal; None: not in time."""
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        follower.poll()
        for event in reversed(follower.events):
            if event.source == f"user:{asked_id}":
                return event
        time.sleep(0.1)
    return None
