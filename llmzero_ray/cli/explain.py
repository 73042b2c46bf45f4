"""The command `explain`: why a search decided as it did, from a history, from outcomes or from its directory.

A history or outcomes give JSON, for programs. A directory is replayed and gives a table, for people. Only the
core is imported, plus the journal's modules if there is one, so the command starts fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.grammar import ONLY
from llmzero_ray.coordinator.replay import DecisionRow, decision_row
from llmzero_ray.errors import ConfigError, HistoryError, LlmzeroError
from llmzero_ray.search import Decision, SearchRules, TreeNode, TreeSearch
from llmzero_ray.search.history import play_history, play_outcomes, read_history, read_outcomes
from llmzero_ray.storage.locate import find
from llmzero_ray.utils.text import clean

if TYPE_CHECKING:
    from rich.table import Table

# --- for programs -------------------------------------------------------------------------------------------


def explain_history(data: object, rules: SearchRules, budget: int | None = None) -> dict[str, Any]:
    """State and next decision after a recorded history (parsed JSON), JSON values only.

    Raises:
        HistoryError: an entry is malformed or impossible; the message names it.
    """
    search = play_history(read_history(data), rules, budget)
    decision = search.ask()
    return {
        "s_min": decision.seen.s_min,
        "s_max": decision.seen.s_max,
        "best": _best_id(search),
        "nodes": {str(node.id): node_facts(node) for node in search.nodes.values()},
        "descent": [level.to_dict() for level in decision.seen.descent],
        **_next(decision),
    }


def explain_outcomes(data: object, rules: SearchRules, budget: int | None = None) -> dict[str, Any]:
    """All decisions of the rules if the runs have these outcomes (parsed JSON), as JSON values.

    `unused_rows` is only there if the rules stop or wait before the last row; `next` says which.

    Raises:
        HistoryError: a row is malformed; the message names it.
    """
    played = play_outcomes(read_outcomes(data), rules, budget)
    search = played.search
    decisions = [{"id": row, "action": made.action, "on": made.on} for row, made in played.decisions]
    return {
        "decisions": decisions,
        "final_parents": {str(node.id): node.parent for node in search.nodes.values()},
        "best": _best_id(search),
        **_next(search.ask()),
        **({"unused_rows": list(played.unused)} if played.unused else {}),
    }


def _best_id(search: TreeSearch) -> int | None:
    return None if search.best is None else search.best.id


def node_facts(node: TreeNode) -> dict[str, Any]:
    """All counters of a node that the rules use."""
    return {
        "parent": node.parent,
        "N": node.visits,
        "v_val": node.v_val,
        "v_fail": node.v_fail,
        "v_early": node.v_early,
        "v_unval": node.v_unval,
        "debug_depth": node.debug_depth,
        "pruned": node.pruned,
        "terminal": node.terminal,
        "in_flight": node.in_flight,
    }


def _next(decision: Decision) -> dict[str, Any]:
    """`next`, and the stop reason if there is one."""
    following: dict[str, Any] = {"next": {"action": decision.action, "on": decision.on}}
    if decision.stop_reason is not None:
        following["stop_reason"] = decision.stop_reason
    return following


BOUNDS = "Numbers are upper confidence bounds: a node's new child against its best open child."
"""Meaning of the numbers in the reasons of a tree search."""

# --- for people ---------------------------------------------------------------------------------------------


def explain_directory(path: Path) -> list[DecisionRow]:
    """Every decision of the search in a directory, replayed through the rules and compared with its journal.

    Raises:
        ConfigError: the directory holds no search.
        JournalError: its journal is damaged.
    """
    from llmzero_ray.coordinator import check_decisions, started_core
    from llmzero_ray.journal import read_all
    from llmzero_ray.storage import SearchStorage

    events = read_all(SearchStorage.at(path).journal_to_read())
    outcomes = started_core(events, path).search.nodes
    return [decision_row(check, outcomes) for check in check_decisions(events, path)]


def render_decisions(rows: Iterable[DecisionRow]) -> Table:
    """The decisions as a table, one row each, in the order they were taken."""
    from rich.table import Table

    table = Table(title="Decisions", title_justify="left", show_lines=False)
    for name, justify in (("node", "right"), ("action", "left"), ("on", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in ("why", "outcome", "replay"):
        table.add_column(name, overflow="fold")
    for row in rows:
        node, on = ("–" if number is None else str(number) for number in (row.node, row.on))
        replayed = "; ".join(row.differences) if row.differences else "the same"
        table.add_row(node, row.action, on, row.reason, row.outcome, replayed)
    return table


# --- the command --------------------------------------------------------------------------------------------


def explain(
    search: options.Search = ONLY,
    *,
    settings: Annotated[list[str], options.settings_option("a rule for a recorded history, such as C=1.0")],
    history: Annotated[
        Path | None, typer.Option(metavar="H.json", help="recorded runs: state and next decision")
    ] = None,
    closed_loop: Annotated[
        Path | None, typer.Option(metavar="R.json", help="outcomes only: the rules decide every run")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(metavar="N", help="runs that the two may begin; without it no limit")
    ] = None,
    storage: options.Storage = "runs",
) -> int:
    """Print the explanation on standard output. Exits with 1 if a replay differs from the journal.

    The decisions of a search as a table; those on a recorded history as JSON.
    """
    if history is None and closed_loop is None:
        if settings or budget is not None:
            raise ConfigError(
                "--set and --budget go with --history or --closed-loop; a directory has its own rules."
            )
        return _print_directory(find(search, storage).paths.root)
    try:
        if search != ONLY or None not in (history, closed_loop):
            raise ConfigError(
                "explain needs one thing to explain: a search directory, --history or --closed-loop."
            )
        if budget is not None and budget < 1:
            raise ConfigError(f"--budget is {budget} runs; must be >= 1.")
        rules = SearchRules().with_settings(settings)
        if history is not None:
            answer = explain_history(read_json(history), rules, budget)
        else:
            assert closed_loop is not None
            answer = explain_outcomes(read_json(closed_loop), rules, budget)
            _note_unused(answer)
    except LlmzeroError as error:  # programs parse these, so they begin with the error's class
        typer.echo(clean(f"{type(error).__name__}: {error}"), err=True)
        return error.exit_code
    typer.echo(json.dumps(answer, indent=2, allow_nan=False))
    return 0


def _note_unused(answer: Mapping[str, Any]) -> None:
    if "unused_rows" in answer:
        rows = ", ".join(map(str, answer["unused_rows"]))
        following = answer["next"]["action"]
        typer.echo(f"note: rows {rows} were not used: the rules say {following} before them.", err=True)


def _print_directory(directory: Path) -> int:
    from llmzero_ray.cli.output import TerminalConsole

    rows = explain_directory(directory)
    console = TerminalConsole(width=None if sys.stdout.isatty() else 140)
    console.print(render_decisions(rows))
    if any("new child" in row.reason for row in rows):
        console.print(BOUNDS)
    changed = sum(bool(row.differences) for row in rows)
    agreement = f"{changed} differ from the journal." if changed else "all the same as in the journal."
    console.print(f"{len(rows)} decisions replayed, {agreement}")
    return 1 if changed else 0


def read_json(path: Path) -> object:
    """Content of a JSON file.

    Raises:
        HistoryError: it cannot be read, is not JSON, or repeats a key within an object.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique_keys)
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"{path} is not valid JSON: {error}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"an object repeats a key among {', '.join(key for key, _ in pairs)}.")
    return found
