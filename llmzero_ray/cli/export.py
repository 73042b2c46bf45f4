"""The command `export`: the strategy of a search for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.errors import ConfigError
from llmzero_ray.prepared import load_task
from llmzero_ray.report import load_strategy
from llmzero_ray.report.best_strategy import best_strategy
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.locate import find
from llmzero_ray.strategy.export import export_verl


def export(
    search: options.Search,
    *,
    verl: Annotated[
        str, typer.Option(metavar="DIR", help="new directory for scripts of plain VeRL", show_default=False)
    ],
    task: Annotated[
        str | None, typer.Option(metavar="DIR", help="the prepared task, where it has been moved")
    ] = None,
    storage: options.Storage = "runs",
) -> int:
    """Write the strategy of a search as one script of plain VeRL per phase."""
    facts = SearchFacts(find(search, storage))
    path = facts.paths.strategy
    strategy = load_strategy(path) if path.is_file() else best_strategy(facts, {})
    if strategy is None:
        raise ConfigError(f"{facts.paths.root} has no strategy: no phase has a validation score.")
    made = export_verl(
        strategy, facts.config, load_task(task or facts.config.task.dir), Path(verl).absolute()
    )
    console = TerminalConsole()
    for script in made:
        print_line(console, str(script))
    print_line(console, f"run all phases: bash {made[0].parent / 'all.sh'}")
    return 0
