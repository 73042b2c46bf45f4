"""The command `retrain`: train a found strategy again, and report it next to the original."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.cli.search import start_and_follow
from llmzero_ray.config.changes import read_settings
from llmzero_ray.errors import ConfigError
from llmzero_ray.strategy.retrain import (
    compare,
    find_strategy,
    plan_retraining,
    task_of_strategy,
    write_comparison,
)


def retrain(
    strategy: Annotated[
        str, typer.Argument(metavar="STRATEGY", help="strategy.yaml, or directory or name of a search")
    ],
    *,
    task: Annotated[
        str | None, typer.Option(metavar="DIR", help="another prepared task; steps are rescaled to its rows")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="DIR", help="another base model")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="how often, each time with another seed")] = 1,
    keep_steps: Annotated[bool, typer.Option("--keep-steps", help="as many steps as the strategy")] = False,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="of the new searches (default: the strategy's-retrained)"),
    ] = None,
    settings: options.Settings,
    storage: options.Storage = "runs",
) -> int:
    """Train the phases of a strategy again: with other seeds, on another task, on another model."""
    console = TerminalConsole()
    say = partial(print_line, console)
    given = find_strategy(strategy, storage)
    plan = plan_retraining(
        given,
        task_of_strategy(given, task),
        name=name,
        storage=storage,
        model=model,
        seeds=seeds,
        keep_steps=keep_steps,
        settings=read_settings(settings),
    )
    for note in plan.unsaid:
        say(f"note: {note}")
    roots = []
    for config in plan.configs:
        code = start_and_follow(config, [])
        if code:
            return code
        roots.append(Path(config.storage) / config.name)
    found = compare(plan, roots)
    path = write_comparison(found, Path(storage).absolute())
    print_lines(console, found.to_markdown().splitlines())
    say(f"written to {path}")
    if found.deviations:
        raise ConfigError(f"not trained as the strategy says: {'; '.join(found.deviations)}.")
    return 0
