"""Print lines verbatim: no markup, no highlighting, no wrapping."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from llmzero_ray.utils.text import clean


class TerminalConsole(Console):
    """Console that removes control characters of untrusted text (agents, servers, rewards, files) from all
    output. Colours and redrawing are rich's own and stay."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Segments of a renderable with cleaned texts."""
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                yield Segment(clean(segment.text), segment.style)


def print_line(console: Console, line: str) -> None:
    """Print one line, or a text with its own line ends."""
    console.print(Text(line), soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print each line."""
    for line in lines:
        print_line(console, line)
