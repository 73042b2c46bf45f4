"""One subcommand of `llmzero`, as an entry in a table of commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Group: TypeAlias = Literal["start", "look", "steer", "keep", "data", "research"]
GROUPS: tuple[Group, ...] = get_args(Group)
"""Groups of commands in help, in their order."""


@dataclass(frozen=True)
class Subcommand:
    """One command: its function, its purpose in half a sentence, examples."""

    module: str
    """Full name; it is imported when the command runs."""
    function: str
    """A function that Typer can read; it returns the exit code. Help shows its docstring from the second
    paragraph on, for users."""
    help: str
    examples: tuple[str, ...]
    group: Group | None = None
    """Group of `llmzero --help`; None if it is the group of `after`."""
    slow: bool = False
    """Whether loading it takes long. A terminal then shows a line at once."""
    after: str = ""
    """Command that it follows in help, and whose group it takes if `group` is None. If empty, it comes
    last."""
