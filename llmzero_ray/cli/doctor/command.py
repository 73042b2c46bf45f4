"""The command `doctor`: checks a cluster against a configuration before any budget is spent.

It prints a table and stores it, with the measured seconds, in the search's directory. A failing check never
loses the rows of others. A check that raises or times out is a failed row. A check whose precondition failed
is a skipped row with the reason.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from llmzero_ray.cli import options
from llmzero_ray.cli.doctor import training
from llmzero_ray.cli.doctor.checks import CHECKS, Check, Context, Stage
from llmzero_ray.cli.doctor.probes import probe_machine
from llmzero_ray.cli.doctor.rows import CheckFinding, Row, exit_code, ordered, skipped, table_of
from llmzero_ray.cli.doctor.scratch import Scratch
from llmzero_ray.cli.gpu_memory import memory_table
from llmzero_ray.cli.interrupts import raise_on_termination
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.cli.step_times import DOCTOR_FILE, FORMAT, read_doctor
from llmzero_ray.config import load_config
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.launch import actors
from llmzero_ray.launch.hub_model import with_model_here
from llmzero_ray.launch.nodes import nodes_up, run_on_nodes
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.threads import in_thread

_WIDTH = 120
"""Number of columns without a terminal."""
_LOOK_S = 180.0


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
        HubError: the model is on the Hugging Face Hub and cannot be downloaded.
    """
    console = TerminalConsole()
    console = console if console.is_terminal else TerminalConsole(width=_WIDTH)
    loaded = with_model_here(
        load_config(config, settings, VERL_SPACE.names), None, partial(print_line, console)
    )
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


def examine(context: Context, console: Console) -> None:
    """Run all checks. `context` holds their rows afterwards."""
    with _doing("checking the configuration and the storage", console):
        _run_stage("files", context)
    with actors.head.disconnecting():
        with _doing(actors.head.start_text(), console):
            _run_stage("cluster", context)
        if context.failed("cluster"):
            pointless = [check for check in CHECKS if check.stage not in ("files", "cluster")]
            context.rows += [
                _row(check, skipped("no cluster")) for check in pointless if check.listed_without_cluster
            ]
            return
        raise_on_termination(console)
        engine, slots = context.config.engine, context.config.slots
        try:
            with _doing(f"reserving the slots, for at most {slots.timeout_s:g} s", console):
                _run_stage("slots", context)
            with _doing("asking every machine", console):
                context.nodes = nodes_up()
                context.probed = run_on_nodes(
                    context.nodes,
                    probe_machine,
                    engine.backend,
                    engine.platform,
                    engine.overrides,
                    limit_s=_LOOK_S,
                )
                _run_stage("machines", context)
            with _doing(f"training {training.STEPS} steps on {slots.count} slot(s)", console):
                _run_stage("training", context)
        except Exception as error:  # noqa: BLE001 - show the findings so far in any case
            found = f"could not continue: {type(error).__name__}: {error}"
            context.rows.append(Row(name="checks", kind="capacity", status="FAIL", found=found))
        finally:
            if context.reserved:
                training.give_back(context.config)


def _doing(what: str, console: Console) -> AbstractContextManager[Any]:
    """Show the current action: in a transient line on a terminal, otherwise in a permanent one."""
    if console.is_terminal:
        return console.status(what)
    print_line(console, what)
    return nullcontext()


def rows_of_check(check: Check, context: Context) -> list[Row]:
    """Run one check and return its rows.

    Raises:
        Exception: any exception of a check without a time limit.
    """
    if not check.applies(context):
        return []
    if why := check.skip(context):
        return [_row(check, skipped(why))]
    found = check.run(context) if check.limit_s is None else _limited(check, context, check.limit_s)
    return [_row(check, found)] if isinstance(found, CheckFinding) else found


def _run_stage(stage: Stage, context: Context) -> None:
    for check in CHECKS:
        if check.stage == stage:
            context.rows += rows_of_check(check, context)


def _limited(check: Check, context: Context, limit_s: float) -> CheckFinding | list[Row]:
    limit_s += check.limit_per_node_s * len(context.nodes)
    try:
        return in_thread(lambda: check.run(context)).result(limit_s)
    except LlmzeroError as error:
        return CheckFinding("FAIL", str(error))
    except TimeoutError:
        return CheckFinding("FAIL", f"no answer within {limit_s:g} s")
    except Exception as error:  # noqa: BLE001 - the other checks continue
        return CheckFinding("FAIL", f"could not be checked: {type(error).__name__}: {error}")


def _row(check: Check, finding: CheckFinding) -> Row:
    status, found, todo = finding
    return Row(name=check.name, kind=check.kind, status=status, found=found, todo=todo)
