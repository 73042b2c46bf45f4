"""The command `completion`, and the completions of other commands' arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer._completion_shared import get_completion_script

from llmzero_ray.cli.main import COMPLETE


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish")
    ],
) -> int:
    """Print the completion script of a shell.

    Put the line of the example into ~/.bashrc, or write the script to where your shell reads completions:
    `llmzero completion fish > ~/.config/fish/completions/llmzero.fish`.
    """
    print(get_completion_script(prog_name="llmzero", complete_var=COMPLETE, shell=shell))  # noqa: T201
    return 0


def searches(incomplete: str) -> list[str]:
    """Names of searches in runs/ that begin with `incomplete`."""
    found = sorted(path.parent.name for path in Path("runs").glob("*/search.yaml"))
    return [name for name in found if name.startswith(incomplete)]
