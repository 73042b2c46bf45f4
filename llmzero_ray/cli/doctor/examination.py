"""Runs the table of checks, stage by stage. A failing check never loses the rows of others.

A check that raises or times out is a failed row. A check whose precondition failed is a skipped row with the
reason.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console

from llmzero_ray.cli.doctor import training
from llmzero_ray.cli.doctor.checks import CHECKS, Check, Context, Stage
from llmzero_ray.cli.doctor.probes import probe_machine
from llmzero_ray.cli.doctor.rows import CheckFinding, Row, skipped
from llmzero_ray.cli.interrupts import raise_on_termination
from llmzero_ray.cli.output import print_line
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.launch import actors
from llmzero_ray.launch.nodes import nodes_up, run_on_nodes
from llmzero_ray.utils.threads import in_thread

_LOOK_S = 180.0


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
        except Exception as error:  # noqa: BLE001 - what was found so far is shown all the same
            found = f"could not go on: {type(error).__name__}: {error}"
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
    except Exception as error:  # noqa: BLE001 - whatever one check raises, the others go on
        return CheckFinding("FAIL", f"could not be checked: {type(error).__name__}: {error}")


def _row(check: Check, finding: CheckFinding) -> Row:
    status, found, todo = finding
    return Row(name=check.name, kind=check.kind, status=status, found=found, todo=todo)
