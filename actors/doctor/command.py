"""The command `doctor`: checks a cluster against a configuration before any budget is spent.

Prints a table and keeps it, with the seconds that were measured, in the search's directory. Not here: the
checks (checks.py).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from rich.console import Console

from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.durable import replace_file
from llmzero_ray.storage import SearchStorage

from ..gpu_memory import memory_table
from ..measured import DOCTOR_FILE, FORMAT, read_doctor
from .checks import Examination
from .rows import exit_code, ordered, table_of

_WIDTH = 120
"""Columns where no terminal says how many there are."""


def doctor(arguments: argparse.Namespace) -> int:
    """Check, print, keep; the exit code: 0 when nothing failed, else that of the first kind that did.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    config = load_config(arguments.config, arguments.set)
    console = Console()
    console = console if console.is_terminal else Console(width=_WIDTH)
    examination = Examination(config, console, step=not arguments.no_step)
    try:
        examination.run()
    finally:
        examination.scratch.remove()
    console.print(table_of(f"{config.name}: doctor", ordered(examination.rows)))
    if examination.memory is not None:
        console.print(memory_table(examination.memory))
    if not examination.failed("room"):
        _keep(config, examination)
    return exit_code(examination.rows)


def _keep(config: SearchConfig, examination: Examination) -> None:
    """doctor.json; seconds that this run has not measured are kept from the run before."""
    storage = SearchStorage(config.storage, config.name)
    measured: Any = (read_doctor(storage) or {}).get("measured")
    if examination.seconds:
        measured = {"config": config.to_json(), "slots": examination.seconds}
    body = {
        "format": FORMAT,
        "time": time.time(),
        "exit_code": exit_code(examination.rows),
        "rows": [asdict(row) for row in ordered(examination.rows)],
        "logs": examination.logs,
        "measured": measured,
    }
    replace_file(storage.paths.root / DOCTOR_FILE, json.dumps(body, indent=1) + "\n")
