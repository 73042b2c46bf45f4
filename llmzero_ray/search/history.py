"""Recorded runs as plain data, which are read strictly and played through the search.

Two forms, both lists of JSON objects. A history has each run's kind and the node it was created on, which are
replayed as given. Outcomes have neither: the rules choose, and each row is the outcome of their choice. A run
with status `running` is begun but never finished, and its score is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.errors import HistoryError, SearchError
from llmzero_ray.records import NodeKind, PhaseStatus
from llmzero_ray.search.decision import TreeDecision
from llmzero_ray.search.tree import NodeStatus
from llmzero_ray.search.tree_search import TreeSearch, check_score
from llmzero_ray.utils.text import nearest


@dataclass(frozen=True, kw_only=True)
class OutcomeRow:
    """Outcome of one run."""

    id: int
    status: NodeStatus
    score: float | None


@dataclass(frozen=True, kw_only=True)
class RecordedRun(OutcomeRow):
    """One run with its kind, its parent and its outcome."""

    kind: NodeKind
    on: int | None
    """Node it was created on, before any move; None for the root."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """Result of playing outcomes through the rules."""

    search: TreeSearch
    decisions: tuple[tuple[int, TreeDecision], ...]
    """Decision with which each row's run began, with the row's id."""
    unused: tuple[int, ...]
    """Ids of rows without a run, because the rules stopped or waited before them."""


def read_history(data: object) -> list[RecordedRun]:
    """The runs of a history, in order.

    Raises:
        HistoryError: the form is wrong; the message names the entry.
    """
    return [
        RecordedRun(
            id=_whole(entry, "id", where),
            kind=_word(entry, "kind", get_args(NodeKind), where),
            on=None if entry.get("on") is None else _whole(entry, "on", where),
            status=_status(entry, where),
            score=_score(entry, where),
        )
        for where, entry in _entries(data, "history", ("id", "kind", "on", "status", "score"))
    ]


def read_outcomes(data: object) -> list[OutcomeRow]:
    """The rows of a list of outcomes, in order.

    Raises:
        HistoryError: the form is wrong; the message names the row.
    """
    return [
        OutcomeRow(id=_whole(entry, "id", where), status=_status(entry, where), score=_score(entry, where))
        for where, entry in _entries(data, "outcomes", ("id", "status", "score"))
    ]


def play_history(runs: Sequence[RecordedRun], rules: SearchRules, budget: int | None = None) -> TreeSearch:
    """The search after these runs: each is created as recorded, then finished unless it is running.

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
    """The search in which the rules choose every run and the rows give its outcome.

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


def _entries(data: object, what: str, keys: tuple[str, ...]) -> list[tuple[str, Mapping[str, Any]]]:
    """Each entry with its name for messages, checked for unknown keys."""
    if not isinstance(data, list):
        raise HistoryError(
            f"{what}: the file holds {_kind_of(data)}; must be a list of objects with {', '.join(keys)}."
        )
    found: list[tuple[str, Mapping[str, Any]]] = []
    for number, entry in enumerate(data):
        where = f"{what} entry {number}"
        if not isinstance(entry, dict):
            raise HistoryError(f"{where} is {_kind_of(entry)}; must be an object with {', '.join(keys)}.")
        where += f" (id {entry['id']!r})" if "id" in entry else ""
        for key in entry:
            if key not in keys:
                near = nearest(key, keys)
                hint = f"; did you mean {near}?" if near else "."
                raise HistoryError(f"{where}: key {key!r} is unknown{hint} Known keys: {', '.join(keys)}.")
        found.append((where, entry))
    return found


def _whole(entry: Mapping[str, Any], key: str, where: str) -> int:
    value = _required(entry, key, where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HistoryError(f"{where}: {key} is {value!r}; must be a whole number.")
    return value


def _word(entry: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> Any:
    value = _required(entry, key, where)
    if value not in allowed:
        raise HistoryError(f"{where}: {key} is {value!r}; must be one of {', '.join(allowed)}.")
    return value


def _status(entry: Mapping[str, Any], where: str) -> NodeStatus:
    status: NodeStatus = _word(entry, "status", (*get_args(PhaseStatus), "running"), where)
    return status


def _score(entry: Mapping[str, Any], where: str) -> float | None:
    try:
        return check_score(entry.get("score"))
    except SearchError as error:
        raise HistoryError(f"{where}: {error}") from error


def _required(entry: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in entry:
        raise HistoryError(f"{where}: {key} is missing.")
    return entry[key]


def _kind_of(value: object) -> str:
    """Type of a JSON value for messages: `a number`, `an object`, ..."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
