"""The command `push`: the best adapter to the Hugging Face Hub. Not here: sending (strategy/push.py)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.storage.locate import find
from llmzero_ray.strategy.push import plan_facts, plan_push, send
from llmzero_ray.utils.hub import endpoint
from llmzero_ray.utils.text import plural


def push(
    search: options.Search,
    repo_id: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="repository on the Hub; made if there is none")
    ],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="really send; without it, only say what would go")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="for everybody to see (default: a private repository)")
    ] = False,
    base_model: Annotated[
        str | None, typer.Option(metavar="ID", help="the base model's id on the Hub (default: model.hub_id)")
    ] = None,
    storage: options.Storage = "runs",
) -> int:
    """Send the best adapter and its card to the Hugging Face Hub.

    Without --yes nothing is sent: files and sizes are listed after the same checks for keys, paths of this
    machine and states of training.

    The token is read from HF_TOKEN or from the file of `hf auth login`.
    """
    say = partial(print_line, TerminalConsole())
    facts = plan_facts(find(search, storage), base_model)
    plan = plan_push(facts, repo_id)
    kind = "public" if public else "private"
    say(f"to {endpoint()}/{plan.repo_id}, {kind}:")
    for file in plan.files:
        say(f"  {file.size:>12,} bytes  {file.name}")
    for name in plan.left:
        say(f"  stays here:         {name}")
    if plan.base_model is None:
        say("note: the base model's id is not known, so the Hub cannot link it; give --base-model OWNER/NAME")
    if facts.core.finished is None:
        say("note: the search has not ended; this is its best adapter so far")
    if not yes:
        say(f"nothing was sent; add --yes to send {plural(len(plan.files), 'file')}")
        return 0
    sent = send(plan, public=public)
    say(f"sent: {sent.address}" if sent.changed else f"nothing to send, all of it is there: {sent.address}")
    return 0
