"""The command `tables`: the paper's tables and figures for any searches. Not here: their content (tables.py,
figures.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.errors import ConfigError
from llmzero_ray.methods.paper.figures import draw
from llmzero_ray.methods.paper.tables import paper_tables
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.locate import find
from llmzero_ray.utils.files import replace_file


def tables(
    searches: Annotated[
        list[str], typer.Argument(metavar="SEARCH...", help="directories or names of searches")
    ],
    *,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="receives tables.md and the figures")] = None,
    storage: options.Storage = "runs",
) -> int:
    """Print the counterparts of the paper's tables for these searches.

    With --out it draws the figures, too.
    """
    facts = [SearchFacts(find(search, storage)) for search in searches]
    text = paper_tables(facts)
    if out is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise ConfigError("the figures need matplotlib: pip install 'llmzero-ray[report]'.")
        directory = Path(out)
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / "tables.md", text)
        draw(facts, directory)
    print_line(TerminalConsole(), text)
    return 0
