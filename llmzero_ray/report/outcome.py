"""Write the outcome of a search: strategy.yaml, best/, report.md and plots/.

It depends on the journal and the search's directory alone and can be repeated at any time: the same journal
gives the same files. Not here: the content of the files (strategy.py, best.py, render.py, pictures.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmzero_ray.errors import StorageError
from llmzero_ray.files import replace_file
from llmzero_ray.report.best import adapter_checksums, check_inside, remove, write_best
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.front_matter import missing
from llmzero_ray.report.pictures import draw_pictures
from llmzero_ray.report.recipe import best_strategy
from llmzero_ray.report.render import card_text, report_text
from llmzero_ray.storage import SearchStorage


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of writing an outcome."""

    root: Path
    best: int | None
    """Node of the best strategy; None without one."""
    files: tuple[Path, ...]
    problems: tuple[str, ...] = ()
    """Errors, one sentence each; everything else was written."""

    @property
    def problem(self) -> str:
        """All problems in one line; empty when there are none."""
        return "; ".join(self.problems)


def write_outcome(search: SearchStorage | str | Path) -> Outcome:
    """Write or renew the outcome of a search, finished or not, given its storage or its directory.

    Raises:
        ConfigError: there is no search in this directory.
        JournalError: its journal is damaged.
        StorageError: the directory cannot be written.
    """
    facts = SearchFacts(search)
    paths = facts.paths
    checksums, problem = _checked_adapter(facts)
    files = _write_strategy(facts, checksums)
    drawn, undrawn = draw_pictures(facts)
    problems = tuple(text for text in (problem, missing() if checksums else "", undrawn) if text)
    replace_file(paths.report, report_text(facts, drawn, problems))
    files += [paths.report, *(paths.root / picture.file for picture in drawn)]
    return Outcome(
        root=paths.root,
        best=facts.path[-1].node if facts.path else None,
        files=tuple(files),
        problems=problems,
    )


def _write_strategy(facts: SearchFacts, checksums: dict[str, str]) -> list[Path]:
    """Write strategy.yaml and best/; without a best strategy, remove those of an earlier call."""
    paths, strategy = facts.paths, best_strategy(facts, checksums)
    if strategy is None:
        remove(paths.strategy)
    if strategy is None or not checksums:
        remove(paths.best)
    if strategy is None:
        return []
    written = []
    if checksums:
        last = facts.path[-1]
        write_best(paths.best, last.run.adapter(paths, last.cut), checksums, card_text(facts))
        written.append(paths.best)
    replace_file(paths.strategy, strategy.to_yaml())
    return [paths.strategy, *written]


def _checked_adapter(facts: SearchFacts) -> tuple[dict[str, str], str]:
    """Checksums of the best adapter, and why there are none."""
    best = facts.best
    if not facts.path:
        if best is None:
            return {}, ""
        return (
            {},
            f"strategy.yaml and best/: node {best.node} has a score, but the step of it was not recorded",
        )
    last = facts.path[-1]
    adapter = last.run.adapter(facts.paths, last.cut)
    try:
        check_inside(adapter, facts.paths.root)
        return adapter_checksums(adapter), ""
    except StorageError as error:
        return {}, f"best/: {error}"
