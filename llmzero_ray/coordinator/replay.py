"""Replay of a journal: the state of the search, and a check of every decision against the current rules."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.coordinator.core import CoordinatorCore
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import ConfigError, JournalError, LlmzeroError
from llmzero_ray.records import Event
from llmzero_ray.records.events import Decided
from llmzero_ray.search import Decision, SearchNode
from llmzero_ray.storage import SearchPaths
from llmzero_ray.storage.locate import missing
from llmzero_ray.storage.presence import owner, start_of
from llmzero_ray.utils.text import one_line, short_duration


@dataclass(frozen=True, kw_only=True)
class DecisionCheck:
    """A recorded decision, and the decision that this version's rules make on the same history."""

    number: int
    """Position of the event in the journal, from 1."""
    recorded: Decided
    again: Decision
    reason: str
    """The search method's explanation of the recorded decision, or that a person asked for it."""
    differences: tuple[str, ...]
    """Differences between the two, as text."""


def replay(events: Iterable[Event], root: Path) -> CoordinatorCore:
    """Core of the search in directory `root`, after `events`.

    Raises:
        JournalError: an event cannot follow the earlier events.
    """
    core = CoordinatorCore(SearchPaths(root=root))
    for number, event in enumerate(events, start=1):
        apply_recorded(core, event, number)
    return core


def apply_recorded(core: CoordinatorCore, event: Event, number: int) -> None:
    """Apply event `number` (from 1) of a journal, whose content is not trusted.

    Raises:
        JournalError: it cannot follow the earlier events.
    """
    try:
        core.apply(event)
    except LlmzeroError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise JournalError(
            f"{core.paths.root}: event {number} of the journal, {type(event).__name__}, cannot follow the "
            f"earlier ones ({type(error).__name__}: {one_line(str(error))}). Restore it from a backup."
        ) from error


def started_core(events: Iterable[Event], root: Path) -> CoordinatorCore:
    """`replay` for a search that must have started.

    Raises:
        ConfigError: there is no search, or its task is still being initialized.
        JournalError: an event cannot follow the earlier events.
    """
    core = replay(events, root)
    if core.started is None:
        raise ConfigError(not_started(core, root))
    return core


def not_started(core: CoordinatorCore, root: Path) -> str:
    """Error message for a command that needs a started search."""
    if core.initialization is None and (start := start_of(root)) is not None:
        return f"{root}: the search has not begun: {start}."
    if core.initialization is None and (root / "search.yaml").is_file():
        age = short_duration(max(0.0, time.time() - (root / "search.yaml").stat().st_mtime))
        if (someone := owner(root)) is not None:
            return f"{root}: the search has not begun: {someone} starts it."
        return (
            f"{root}: the search never began: its configuration was written {age} ago and nothing after it. "
            f"`llmzero resume {shlex.quote(str(root))}` starts it."
        )
    if core.initialization is None:
        return str(missing(root))
    return (
        f"{root}: the search has not started; it begins with the folder "
        f"{core.initialization.folder}. Go on with it as it was begun: `llmzero search FOLDER SENTENCE`."
    )


def run_of(runs: Mapping[int, PhaseRun], node: int, search: str) -> PhaseRun:
    """Run of the node that a user named, among the `runs` of a search.

    Raises:
        ConfigError: there is no such node.
    """
    if node not in runs:
        raise ConfigError(f"{search} has no node {node!r}; it has {', '.join(map(str, runs)) or 'none'}.")
    return runs[node]


class DecisionChecks:
    """Checks of the decisions of a growing journal, each made again on the history before it."""

    def __init__(self, root: Path) -> None:
        self._core, self._n_events = CoordinatorCore(SearchPaths(root=root)), 0
        self._found: list[DecisionCheck] = []

    def of(self, events: Sequence[Event]) -> list[DecisionCheck]:
        """Checks of all decisions in `events`. These must begin with the events of earlier calls; only the
        new ones are replayed.

        Raises:
            JournalError: an event cannot follow the earlier events.
        """
        core = self._core
        for number, event in enumerate(events[self._n_events :], start=self._n_events + 1):
            if isinstance(event, Decided):
                again = core.search.ask()
                # A clone is the user's decision, which the rules can neither repeat nor explain.
                reason, differences = "asked for by a person", tuple[str, ...]()
                if not event.clone:
                    facts = {name: getattr(event, name) for name in ("action", "on", "stop_reason", "seen")}
                    reason = core.search.explain(facts)
                    differences = tuple(_differences(event, again, core.ending))
                self._found.append(
                    DecisionCheck(
                        number=number,
                        recorded=event,
                        again=again,
                        reason=reason,
                        differences=differences,
                    )
                )
            apply_recorded(core, event, number)
            self._n_events = number
        return [check for check in self._found if check.number <= len(events)]


def check_decisions(events: Sequence[Event], root: Path) -> list[DecisionCheck]:
    """Checks of all decisions of a journal.

    Raises:
        JournalError: an event cannot follow the earlier events.
    """
    return DecisionChecks(root).of(events)


def _differences(recorded: Decided, again: Decision, ending: str | None) -> Iterator[str]:
    action, on, reason = again.action, again.on, again.stop_reason
    if ending is not None:  # a limit, a target or the user ended the search, not the rules
        action, on, reason = "stop", None, None
    expected_reason = ending or reason
    for name, old, new in (
        ("action", recorded.action, action),
        ("on", recorded.on, on),
        ("stop reason", recorded.stop_reason, expected_reason),
    ):
        if old != new:
            yield f"{name}: recorded {old!r}, now {new!r}"
    seen, seen_now = _plain(recorded.seen), _plain(again.seen.to_dict())
    for key in [*seen, *(k for k in seen_now if k not in seen)]:
        if seen.get(key) != seen_now.get(key):
            yield f"seen {key}: recorded {seen.get(key)!r}, now {seen_now.get(key)!r}"


def _plain(data: Any) -> Any:
    """The value with tuples as lists and text keys, so that journal and rules compare equal."""
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    return [_plain(value) for value in data] if isinstance(data, list | tuple) else data


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    """One decision as text."""

    node: int | None
    """Run that it began. None for the end of the search."""
    action: str
    on: int | None
    reason: str
    """Reason for the decision, with its numbers."""
    outcome: str = ""
    """Outcome of the run. Empty for the end of the search."""
    differences: tuple[str, ...] = ()
    """Differences between replay and record."""


def decision_row(check: DecisionCheck, nodes: Mapping[int, SearchNode]) -> DecisionRow:
    """A checked decision as text. `nodes` are the search's nodes at the end of the journal."""
    recorded = check.recorded
    return DecisionRow(
        node=recorded.node,
        action=recorded.action,
        on=recorded.on,
        reason=check.reason,
        outcome="" if recorded.node is None else _outcome_in_words(nodes[recorded.node]),
        differences=check.differences,
    )


def _outcome_in_words(node: SearchNode) -> str:
    if node.is_running:
        return "no result"
    scored = "" if node.score is None else f" {node.score:.4f}"
    moved = "" if node.parent == node.created_on else f", moved to {node.parent}"
    return f"{node.status.replace('_', ' ')}{scored}{moved}{', pruned' if node.pruned else ''}"
