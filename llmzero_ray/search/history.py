"""Recorded runs as plain data: strict reading, and playing them through the tree search.

There are two forms, both lists of JSON objects. A history gives each run's kind and the node on which it was
created; these are replayed as given. Outcomes give neither: the rules choose each run, and each row is the
outcome of the next choice. A run with status `running` begins but never finishes, and its score is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import Field

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.config.yaml_text import StrictModel, validated
from llmzero_ray.errors import ConfigError, HistoryError, SearchError
from llmzero_ray.records import NodeKind
from llmzero_ray.search.base import MAX_SCORE, NodeStatus
from llmzero_ray.search.decision import TreeDecision
from llmzero_ray.search.tree_search import TreeSearch


class OutcomeRow(StrictModel):
    """Outcome of one run."""

    id: int
    status: NodeStatus
    score: float | None = Field(None, ge=-MAX_SCORE, le=MAX_SCORE)


class RecordedRun(OutcomeRow):
    """One run with its kind, its parent and its outcome."""

    kind: NodeKind
    on: int | None = None
    """Node on which it was created, before any move. None for the root."""


Row = TypeVar("Row", bound=OutcomeRow)


@dataclass(frozen=True, kw_only=True)
class Played:
    """Result of playing outcomes through the rules."""

    search: TreeSearch
    decisions: tuple[tuple[int, TreeDecision], ...]
    """(row id, decision with which the row's run began) for each row that was used."""
    unused: tuple[int, ...]
    """Ids of the remaining rows, if the rules stopped or waited before them."""


def read_history(data: object) -> list[RecordedRun]:
    """Runs of a history, in order.

    Raises:
        HistoryError: the form is wrong; the message names the entry.
    """
    return _read(RecordedRun, data, "history")


def read_outcomes(data: object) -> list[OutcomeRow]:
    """Rows of a list of outcomes, in order.

    Raises:
        HistoryError: the form is wrong; the message names the row.
    """
    return _read(OutcomeRow, data, "outcomes")


def _read(row: type[Row], data: object, what: str) -> list[Row]:
    keys = ", ".join(row.model_fields)
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise HistoryError(f"{what}: the file must hold a list of objects with {keys}.")
    found = []
    for number, entry in enumerate(data):
        named = f" (id {entry['id']!r})" if "id" in entry else ""
        try:
            found.append(validated(row, entry, f"{what} entry {number}{named}"))
        except ConfigError as error:
            raise HistoryError(str(error).partition("\n")[0]) from error
    return found


def play_history(runs: Sequence[RecordedRun], rules: SearchRules, budget: int | None = None) -> TreeSearch:
    """Search after these runs. Each is created as recorded, then finished unless it is running.

    Raises:
        HistoryError: a run could not have been created there; the message names the entry.
    """
    search = TreeSearch(rules, budget)
    for number, run in enumerate(runs):
        try:
            search.create(run.kind, run.on, run.id)
        except SearchError as error:
            raise HistoryError(f"history entry {number}: {error}") from error
        _finish(search, run)
    return search


def play_outcomes(rows: Sequence[OutcomeRow], rules: SearchRules, budget: int | None = None) -> Played:
    """Play a search in which the rules choose every run and the rows give the outcomes.

    Raises:
        HistoryError: an id is repeated; the message names the row.
    """
    search = TreeSearch(rules, budget)
    decisions: list[tuple[int, TreeDecision]] = []
    for number, row in enumerate(rows):
        if row.id in search.nodes:
            raise HistoryError(f"outcomes entry {number}: node {row.id} exists already; ids must be unique.")
        decision = search.ask()
        if decision.action in ("stop", "wait"):
            return Played(
                search=search, decisions=tuple(decisions), unused=tuple(left.id for left in rows[number:])
            )
        search.begin(decision, row.id)
        decisions.append((row.id, decision))
        _finish(search, row)
    return Played(search=search, decisions=tuple(decisions), unused=())


def _finish(search: TreeSearch, run: OutcomeRow) -> None:
    if run.status != "running":
        search.tell(run.id, run.status, run.score)
