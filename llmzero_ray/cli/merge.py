"""The command `merge`: base model and best adapter as one model. Not here: merging (strategy/merge.py)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.outcome import adapter_in_best, is_of_best_strategy
from llmzero_ray.storage.locate import find
from llmzero_ray.strategy.merge import merge_best


def merge(
    search: options.Search,
    *,
    out: Annotated[str, typer.Option(metavar="DIR", help="new directory for the model", show_default=False)],
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="the base model, where it has been moved")
    ] = None,
    storage: options.Storage = "runs",
) -> int:
    """Write the base model with the best adapter merged into it, and its tokenizer.

    The merged model needs no PEFT. Its weights keep the base model's precision.
    """
    facts, console = SearchFacts(find(search, storage)), TerminalConsole()
    adapter = adapter_in_best(facts)
    if facts.paths.strategy.is_file() and not is_of_best_strategy(facts, adapter):
        print_line(
            console,
            f"note: {facts.paths.best} is not the adapter of the best strategy any more; if its checkpoint "
            f"is there, `llmzero report {shlex.quote(str(facts.paths.root))}` writes it",
        )
    made = merge_best(facts, Path(out).absolute(), model)
    print_line(console, f"merged model: {made}")
    return 0
