"""One subcommand of `llmzero` as tables of commands hold it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Subcommand:
    """One command: its function, its purpose in half a sentence, examples."""

    module: str
    """Full name; it is imported when the command runs."""
    function: str
    """A function that Typer can read; it returns the exit code."""
    help: str
    examples: tuple[str, ...]
    after: str = ""
    """Command that it follows in help; empty: it stands last."""
    slow: bool = False
    """Whether it loads for more than a moment: on a terminal it says so at once."""
