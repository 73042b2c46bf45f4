"""Say why a search decided as it did: for a bare history, for outcomes alone, or for a search directory.

The first two answer in JSON, for programs; a directory is replayed and answered with a table, for people.
Only the core is imported, and the parts that a journal needs only when there is one, so that it starts at
once. Not here: the rules (search/), reading and replaying a journal (journal.py, coordinator/), the report
(report/).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from llmzero_ray.errors import ConfigError, HistoryError, LlmzeroError
from llmzero_ray.search import Decision, Level, Node, SearchRules, TreeSearch
from llmzero_ray.search.history import play_history, play_outcomes, read_history, read_outcomes

if TYPE_CHECKING:
    from rich.table import Table

    from llmzero_ray.coordinator import DecisionCheck

SHOWN_LEVELS = 4
"""Levels of a descent that are put into words; of a deeper one the last ones."""


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
    """Every decision of the rules when the runs go as the outcomes (parsed JSON) say, JSON values only.

    `unused_rows` is there only when the rules stop or wait before the last row; `next` says which.

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


def node_facts(node: Node) -> dict[str, Any]:
    """Everything that the rules have counted at a node."""
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
    """`next`, and beside it the stop reason when there is one."""
    following: dict[str, Any] = {"next": {"action": decision.action, "on": decision.on}}
    if decision.stop_reason is not None:
        following["stop_reason"] = decision.stop_reason
    return following


# --- for people ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    """One decision, in words."""

    node: int | None
    """The run it began; None for the end of the search."""
    action: str
    on: int | None
    reason: str
    """What the choice rests on, with its numbers."""
    outcome: str = ""
    """How the run went; empty when there is none."""
    differences: tuple[str, ...] = ()
    """Where a replay disagrees with the record; empty when it agrees in everything."""


def reason_in_words(decision: Decision) -> str:
    """Why this was decided, with the numbers that decided it."""
    seen = decision.seen
    if decision.action == "root":
        return "first run of the search"
    if decision.action == "scratch":
        share = (
            f"{seen.n_scratch} of {seen.n_evolve} runs from scratch = {seen.n_scratch / seen.n_evolve:.3f}"
        )
        return f"{share} < {seen.rho_min:g}; node {decision.on} is the best so far"
    if decision.action == "wait":
        return f"nothing can be created before one of the {seen.running} running runs ends"
    if decision.action == "stop":
        return _stop_in_words(decision)
    levels = seen.descent
    told = [_level_in_words(level, below) for level, below in zip(levels, [*levels[1:], None], strict=True)]
    hidden = len(told) - SHOWN_LEVELS
    return "; ".join([f"({hidden} levels above)", *told[hidden:]] if hidden > 0 else told)


def _stop_in_words(decision: Decision) -> str:
    if decision.stop_reason == "budget":
        return f"budget: {decision.seen.created} of {decision.seen.budget} runs begun"
    if decision.stop_reason == "exhausted":
        return "exhausted: no node can get another child"
    if decision.stop_reason == "user":
        return "user: a person ended the search"
    return f"{decision.stop_reason}: a limit of the search was reached"


def _level_in_words(level: Level, below: Level | None) -> str:
    """`2: new child 1.520 > node 4 1.310`; `below` is the level descended to, if any."""
    new = f"new child {level.uct_new:.3f}"
    if below is None:
        rival = max(level.children, key=lambda child: child.uct, default=None)
        lost = "without a rival" if rival is None else f"> node {rival.id} {rival.uct:.3f}"
        return f"{level.at}: {new} {lost}"
    won = next(f"node {child.id} {child.uct:.3f}" for child in level.children if child.id == below.at)
    return f"{level.at}: full, {won}" if level.full else f"{level.at}: {won} >= {new}"


def explain_directory(path: Path) -> list[DecisionRow]:
    """Every decision of the search in a directory, replayed through the rules and compared with its journal.

    Raises:
        ConfigError: the directory holds no search.
        JournalError: its journal is damaged.
    """
    from llmzero_ray.coordinator import check_decisions, replay
    from llmzero_ray.journal import read_all
    from llmzero_ray.storage import SearchStorage

    events = read_all(SearchStorage.at(path).journal_address())
    if not events:
        raise ConfigError(
            f"{path} holds no search: journal/ is missing or empty. Name the folder <storage>/<name>."
        )
    outcomes = replay(events, path).tree.nodes
    return [decision_row(check, outcomes) for check in check_decisions(events, path)]


def decision_row(check: DecisionCheck, nodes: Mapping[int, Node]) -> DecisionRow:
    """A checked decision of a journal in words; `nodes` as they are at its end."""
    recorded = check.recorded
    decision = Decision.from_dict(
        {
            "action": recorded.action,
            "on": recorded.on,
            "stop_reason": recorded.stop_reason,
            "seen": recorded.seen,
        }
    )
    return DecisionRow(
        node=recorded.node,
        action=recorded.action,
        on=recorded.on,
        reason=reason_in_words(decision),
        outcome="" if recorded.node is None else _outcome_in_words(nodes[recorded.node]),
        differences=check.differences,
    )


def _outcome_in_words(node: Node) -> str:
    if node.is_running:
        return "no result"
    scored = "" if node.score is None else f" {node.score:.4f}"
    moved = "" if node.parent == node.created_on else f", moved to {node.parent}"
    return f"{node.status.replace('_', ' ')}{scored}{moved}{', pruned' if node.pruned else ''}"


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("directory", nargs="?", type=Path, help="directory of a search, <storage>/<name>")
    parser.add_argument(
        "--history", type=Path, metavar="H.json", help="recorded runs: state and next decision"
    )
    parser.add_argument(
        "--closed-loop", type=Path, metavar="R.json", help="outcomes only: the rules decide every run"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a search rule for the two, such as C=1.0",
    )
    parser.add_argument(
        "--budget", type=int, metavar="N", help="runs that the two may begin; without it no limit"
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Carry the command out; its exit code: 0, or 1 when a replay differs from the journal.

    Raises:
        LlmzeroError: the input is wrong; the message says how.
    """
    sources = [options.directory, options.history, options.closed_loop]
    if sum(source is not None for source in sources) != 1:
        raise ConfigError(
            "explain needs one thing to explain: a search directory, --history or --closed-loop."
        )
    if options.directory is not None:
        return _run_directory(options, out)
    if options.budget is not None and options.budget < 1:
        raise ConfigError(f"--budget is {options.budget} runs; must be >= 1.")
    rules = SearchRules().with_settings(options.set)
    if options.history is not None:
        answer = explain_history(read_json(options.history), rules, options.budget)
    else:
        answer = explain_outcomes(read_json(options.closed_loop), rules, options.budget)
        _note_unused(answer)
    out.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")
    return 0


def _note_unused(answer: Mapping[str, Any]) -> None:
    if "unused_rows" in answer:
        rows = ", ".join(map(str, answer["unused_rows"]))
        sys.stderr.write(
            f"note: rows {rows} were not used: the rules say {answer['next']['action']} before them.\n"
        )


def _run_directory(options: argparse.Namespace, out: TextIO) -> int:
    from rich.console import Console

    if options.set or options.budget is not None:
        raise ConfigError(
            "--set and --budget go with --history or --closed-loop; a directory has its own rules."
        )
    rows = explain_directory(options.directory)
    console = Console(file=out, width=None if out.isatty() else 140)
    console.print(render_decisions(rows))
    changed = sum(bool(row.differences) for row in rows)
    verdict = f"{changed} differ from the journal." if changed else "all the same as in the journal."
    console.print(f"{len(rows)} decisions replayed, {verdict}")
    return 1 if changed else 0


def read_json(path: Path) -> object:
    """The parsed file.

    Raises:
        HistoryError: it cannot be read, is no JSON, or repeats a key within an object.
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on the process's streams; its exit code."""
    parser = argparse.ArgumentParser(prog="explain", description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv), sys.stdout)
    except LlmzeroError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
