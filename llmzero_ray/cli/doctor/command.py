"""The command `doctor`: checks a cluster against a configuration before any budget is spent.

It prints a table and stores it, with the measured seconds, in the search's directory.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.doctor.checks import Context
from llmzero_ray.cli.doctor.examination import examine
from llmzero_ray.cli.doctor.rows import exit_code, ordered, table_of
from llmzero_ray.cli.doctor.scratch import Scratch
from llmzero_ray.cli.gpu_memory import memory_table
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.cli.step_times import DOCTOR_FILE, FORMAT, read_doctor
from llmzero_ray.config import load_config
from llmzero_ray.launch.hub_model import with_model_here
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.files import replace_file

_WIDTH = 120
"""Number of columns without a terminal."""


def doctor(
    config: options.SearchYaml,
    *,
    settings: options.Settings,
    no_step: Annotated[bool, typer.Option("--no-step", help="leave out the training steps")] = False,
) -> int:
    """Run the checks, print and store the table. The exit code is 0 if nothing failed, otherwise that of the
    first kind that did.

    Raises:
        ConfigError: the configuration cannot be read.
        HubError: the model is one of the Hugging Face Hub's and cannot be downloaded.
    """
    console = TerminalConsole()
    console = console if console.is_terminal else TerminalConsole(width=_WIDTH)
    loaded = with_model_here(load_config(config, settings), None, partial(print_line, console))
    context = Context(config=loaded, step=not no_step, scratch=Scratch(loaded))
    try:
        examine(context, console)
    finally:
        context.scratch.remove()
    console.print(table_of(f"{loaded.name}: doctor", ordered(context.rows)))
    if context.estimate is not None:
        console.print(memory_table(context.estimate.gpu_memory[0]))
    if not context.failed("free space"):
        _keep(context)
    return exit_code(context.rows)


def _keep(context: Context) -> None:
    """Write doctor.json. Seconds that this run has not measured are kept from the previous run."""
    config = context.config
    storage = SearchStorage(config.storage, config.name)
    measured: Any = (read_doctor(storage) or {}).get("measured")
    if context.seconds:
        measured = {"config": config.to_json(), "slots": context.seconds}
    body = {
        "format": FORMAT,
        "time": time.time(),
        "exit_code": exit_code(context.rows),
        "rows": [asdict(row) for row in ordered(context.rows)],
        "logs": context.logs,
        "measured": measured,
    }
    replace_file(storage.paths.root / DOCTOR_FILE, json.dumps(body, indent=1) + "\n")
