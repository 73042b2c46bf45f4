"""Writes the outcome of a search: strategy.yaml, best/, report.md and report.html.

It depends only on the journal and the search's directory, and is idempotent: equal journals give equal files.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmzero_ray.errors import LlmzeroError, StorageError
from llmzero_ray.report.best import adapter_checksums, check_inside, checked_best, write_best
from llmzero_ray.report.best_strategy import best_strategy, is_current
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.front_matter import missing
from llmzero_ray.report.render import card_text, report_text
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.strategy import load_strategy
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.plugins import extension
from llmzero_ray.utils.text import one_line


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of writing an outcome."""

    root: Path
    best: int | None
    """Node of the best strategy, or None if there is none."""
    files: tuple[Path, ...]
    problems: tuple[str, ...] = ()
    """Errors, one sentence each. Everything else was written."""

    @property
    def problem(self) -> str:
        """All problems in one line. Empty if there are none."""
        return "; ".join(self.problems)


def write_outcome(search: SearchStorage | str | Path) -> Outcome:
    """Write or update the outcome of a search, which need not have ended.

    A file that cannot be rewritten stays as an earlier call wrote it, and `problems` says so.

    Raises:
        ConfigError: there is no search in this directory.
        JournalError: its journal is damaged.
        StorageError: the directory cannot be written.
    """
    facts = SearchFacts(search)
    paths = facts.paths
    adapter = best_adapter(facts)
    files = _write_strategy(facts, adapter)
    problems = [text for text in (adapter.problem, adapter.checksums and missing()) if text]
    try:
        content = extension("llmzero_ray.pages", "report")(facts)
    except Exception as error:  # noqa: BLE001 - the rest of the outcome is written even without the page
        problems.append(
            f"{paths.page.name}: not written ({one_line(f'{type(error).__name__}: {error}', 200)})"
        )
    else:
        replace_file(paths.page, content)
        files.append(paths.page)
    replace_file(paths.report, report_text(facts, problems, has_adapter=bool(adapter.checksums)))
    files.append(paths.report)
    return Outcome(
        root=paths.root,
        best=facts.path[-1].node if facts.path else None,
        files=tuple(files),
        problems=tuple(problems),
    )


@dataclass(frozen=True, kw_only=True)
class _Adapter:
    """Adapter at the end of the best strategy."""

    place: Path = Path()
    """Its directory; of a search in Ray Tune the file that names Tune's checkpoint."""
    checksums: dict[str, str] = field(default_factory=dict)
    """File -> SHA-256. Empty if there is no adapter to copy."""
    problem: str = ""


def adapter_in_best(facts: SearchFacts) -> dict[str, str]:
    """`checked_best` for a search. If a report cannot write the adapter, errors say why.

    Raises:
        ConfigError: there is no adapter.
        StorageError: a file is missing, cannot be read, or is not the one that was written.
    """
    best = facts.paths.best
    try:
        return checked_best(best)
    except LlmzeroError:
        if facts.best is None:
            return checked_best(best, "No phase has a validation score.")
        found = best_adapter(facts)
        if found.place.is_file():
            return checked_best(best, "Ray Tune keeps the checkpoints of this search.")
        problem = found.problem.removeprefix("best/: ")
        if not problem:
            raise
        root = shlex.quote(str(facts.paths.root))
        again = f" `llmzero retrain {root}` trains the strategy again." if facts.path else ""
        return checked_best(best, f"It cannot be written from the checkpoint: {problem}{again}")


def is_of_best_strategy(facts: SearchFacts, adapter: Mapping[str, str]) -> bool:
    """Whether the adapter in best/ (`adapter_in_best`) is that of the best strategy. A running search, or one
    that continued and was interrupted, may have a better one.

    Raises:
        ConfigError: strategy.yaml cannot be read.
    """
    strategy = load_strategy(facts.paths.strategy)
    return strategy.adapter == adapter and is_current(strategy, facts)


def _write_strategy(facts: SearchFacts, adapter: _Adapter) -> list[Path]:
    """Write strategy.yaml if there is a best strategy, and best/ if its adapter exists."""
    paths, strategy = facts.paths, best_strategy(facts, adapter.checksums)
    if strategy is None:
        return []
    written = []
    if adapter.checksums:
        write_best(paths.best, adapter.place, adapter.checksums, card_text(facts))
        written.append(paths.best)
    replace_file(paths.strategy, strategy.to_yaml())
    return [paths.strategy, *written]


def best_adapter(facts: SearchFacts) -> _Adapter:
    """Best adapter: its checkpoint, or else the copy that an earlier call put into best/. None of a search in
    Ray Tune, which keeps its trials' checkpoints itself."""
    paths, best = facts.paths, facts.best
    if not facts.path:
        if best is None:
            return _Adapter()
        return _Adapter(
            problem=f"strategy.yaml and best/: node {best.node} has a score, but the step of it was not "
            "recorded"
        )
    last = facts.path[-1]
    place = last.run.adapter(paths, last.cut)
    if place.is_file():  # it names a checkpoint of Ray Tune
        return _Adapter(place=place)
    try:
        check_inside(place, paths.root)
        return _Adapter(place=place, checksums=adapter_checksums(place))
    except StorageError as error:
        copy = _checksums_of(paths.best)
        if not copy:
            return _Adapter(problem=f"best/: {error}")
        try:
            written = load_strategy(paths.strategy)
            end = written.phases[-1]
            if written.adapter == copy and (end.node, end.cut_step) == (last.node, last.cut):
                return _Adapter(place=paths.best, checksums=copy)
        except LlmzeroError:
            pass
        return _Adapter(problem=f"best/: {error} The adapter there is an earlier one and was kept.")


def _checksums_of(best: Path) -> dict[str, str]:
    """File -> SHA-256 of the adapter in best/. Empty if there is none or it is damaged."""
    try:
        return checked_best(best)
    except LlmzeroError:
        return {}
