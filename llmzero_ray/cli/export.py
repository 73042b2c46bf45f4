"""The command `export`: a search and its strategy for other tools."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.optuna_study import mirror
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.cli.trace import chrome_trace, is_trace
from llmzero_ray.errors import ConfigError, StorageError, TaskError
from llmzero_ray.prepared import load_task
from llmzero_ray.report.best_strategy import current_strategy
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.locate import find
from llmzero_ray.strategy.export import export_verl
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import plural


def export(
    search: options.Search,
    *,
    verl: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="new directory for scripts of plain VeRL"),
    ] = None,
    perfetto: Annotated[
        str | None, typer.Option(metavar="FILE", help="the search over time, for ui.perfetto.dev")
    ] = None,
    optuna: Annotated[
        str | None, typer.Option(metavar="URL", help="study that gets a trial per node: sqlite:///study.db")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="DIR", help="the prepared task, where it has been moved")
    ] = None,
    storage: options.Storage = "runs",
) -> int:
    """Write a search for other tools: its strategy as one script of plain VeRL per phase, its course as a
    trace, or its phases as trials of Optuna."""
    if verl is None and perfetto is None and optuna is None:
        raise ConfigError("what to write is missing: --verl DIR, --perfetto FILE or --optuna URL.")
    facts, console = SearchFacts(find(search, storage)), TerminalConsole()
    if perfetto is not None:
        if not _may_replace(Path(perfetto)):
            raise ConfigError(
                f"--perfetto: {perfetto} exists and is no trace of a search, so it is not replaced. Give "
                "another file."
            )
        try:
            replace_file(Path(perfetto).absolute(), json.dumps(chrome_trace(facts)))
        except StorageError as error:
            reason = getattr(error.__cause__, "strerror", None) or error
            raise ConfigError(
                f"--perfetto: {perfetto} cannot be written ({reason}). Give another file."
            ) from error
        print_line(console, f"{perfetto}: open it at https://ui.perfetto.dev")
    if optuna is not None:
        print_line(console, f"{plural(mirror(facts, optuna), 'new trial')} in the study {facts.config.name}")
    if verl is not None:
        _write_scripts(facts, console, verl, task)
    return 0


def _may_replace(path: Path) -> bool:
    """Whether a trace may take this place: there is nothing, an empty file or a trace."""
    return not path.exists() or (path.is_file() and (not path.stat().st_size or is_trace(path)))


def _write_scripts(facts: SearchFacts, console: TerminalConsole, verl: str, task: str | None) -> None:
    strategy = current_strategy(facts)
    if strategy is None:
        raise ConfigError(f"{facts.paths.root} has no strategy: no phase has a validation score.")
    try:
        prepared = load_task(task or facts.storage.relocated(facts.config).task.dir)
    except TaskError as error:
        if task is not None:
            raise
        why = str(error).rstrip(".")
        raise TaskError(f"{why}. If the task has been moved, name its directory with --task DIR.") from error
    made = export_verl(strategy, facts.config, prepared, Path(verl).absolute())
    for script in made:
        print_line(console, str(script))
    print_line(console, f"run all phases: bash {shlex.quote(str(made[0].parent / 'all.sh'))}")
