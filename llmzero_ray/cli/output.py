"""Print lines verbatim: no markup, no highlighting, no wrapping.

Not here: following a search (terminal.py), its tree (view.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text


def print_line(console: Console, line: str) -> None:
    """Print one line, or several that hold their own line ends."""
    console.print(Text(line), soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print each line."""
    for line in lines:
        print_line(console, line)


def printable(text: str, *, keep: str = "") -> str:
    """Untrusted text for a terminal: control characters become U+FFFD, except those in `keep`."""
    return "".join(each if each.isprintable() or each in keep else "\ufffd" for each in text)
