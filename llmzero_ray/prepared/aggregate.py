"""One score from many rows, as the paper reports it: rows on validation, a task's macro average on test.

Validation is the mean over rows. Test is the mean over the task's parts: ChemCoTBench's understanding,
editing and reaction categories (each the mean of its subtasks), SSMR-Bench's four subtasks, WildSci's nine
disciplines; other tasks keep the mean over rows. A part without rows is reported as missing and left out of
the mean. Standard errors only cover the choice of rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.chem_subtasks import PREFIX as CHEMCOT
from llmzero_ray.prepared.chem_subtasks import SUBTASKS, subtask_named
from llmzero_ray.records.metrics import Score, macro_mean, mean_score

logger = logging.getLogger(__name__)

SSMR = "ssmr_"
WILDSCI = "wildsci_"
SSMR_PARTS = tuple(f"{SSMR}{part}" for part in ("scale", "beat", "chord", "interval"))
N_DISCIPLINES = 9
"""Number of disciplines of WildSci; their names are the data's own."""
CHEMCOT_CATEGORIES = {
    "und": ("fg_count", "ring_count", "ring_system_scaffold", "equivalence", "Murcko_scaffold"),
    "edit": ("add", "delete", "sub"),
    "rxn": ("rcr", "fs_by_product", "retro", "nepp", "mechsel"),
}
"""Categories of the headline and their subtasks, without optimisation and major products."""
CHEMCOT_19 = tuple(subtask.name for subtask in SUBTASKS if subtask.name != "fs_major_product")


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """Score of a task on its test split, with its parts."""

    headline: Score | None
    """The macro average that the paper's tables compare; None when none of its parts has a row."""
    micro: Score
    """Mean over all rows."""
    sources: Mapping[str, Score]
    """data_source -> its score, sorted."""
    parts: Mapping[str, Score]
    """Further averages: `acc_und`, `acc_edit`, `acc_rxn`, `macro_19` of ChemCoTBench, otherwise empty."""
    missing: tuple[str, ...]
    """Parts of the task without a row; no average covers them."""

    @property
    def macro(self) -> Score | None:
        """The headline if it is an average over parts, which only the paper's tasks have."""
        return None if self.headline is self.micro else self.headline


def validation_score(accs: Sequence[float]) -> Score:
    """Mean over rows.

    Raises:
        TaskError: there is no row, or a value is not a finite number.
    """
    if not accs:
        raise TaskError("a score over no rows was asked for; give at least one row")
    wrong = next((acc for acc in accs if not math.isfinite(acc)), None)
    if wrong is not None:
        raise TaskError(f"acc {wrong} is not a finite number; correct the reward that gave it")
    return mean_score(accs)


def task_score(rows: Iterable[tuple[str, float]]) -> TaskScore:
    """Test score of (data_source, acc) pairs of one task.

    Raises:
        TaskError: no rows, a value that is not a number, an unknown part of a task, or rows of the paper's
            tasks mixed with others.
    """
    by_source: dict[str, list[float]] = {}
    for source, acc in rows:
        by_source.setdefault(source, []).append(acc)
    micro = validation_score([acc for accs in by_source.values() for acc in accs])
    sources = {source: validation_score(accs) for source, accs in sorted(by_source.items())}
    headline, parts, missing = _averages(sources, micro)
    return TaskScore(headline=headline, micro=micro, sources=sources, parts=parts, missing=missing)


def macro_average(rows: Iterable[tuple[str, float]]) -> Score | None:
    """`TaskScore.macro` of (data_source, acc) pairs. Unknown parts give None and a warning instead of an
    error, so that a measured score is not lost."""
    try:
        return task_score(rows).macro
    except TaskError as error:
        logger.warning("there is no average over the task's parts: %s", error)
        return None


_Averages: TypeAlias = tuple[Score | None, dict[str, Score], tuple[str, ...]]


def _averages(sources: Mapping[str, Score], micro: Score) -> _Averages:
    prefixes = {next((p for p in (CHEMCOT, SSMR, WILDSCI) if s.startswith(p)), "") for s in sources}
    if len(prefixes) > 1:
        raise TaskError(
            f"rows of several tasks cannot share one test score: {', '.join(sources)}; score each task alone"
        )
    prefix = prefixes.pop()
    if prefix == CHEMCOT:
        return _chemcot(sources)
    if prefix == SSMR:
        _refuse_unknown([source for source in sources if source not in SSMR_PARTS], SSMR_PARTS)
        return macro_mean(list(sources.values())), {}, tuple(s for s in SSMR_PARTS if s not in sources)
    if prefix == WILDSCI:
        absent = N_DISCIPLINES - len(sources)
        missing = (f"{absent} of {N_DISCIPLINES} disciplines",) if absent > 0 else ()
        return macro_mean(list(sources.values())), {}, missing
    return micro, {}, ()


def _chemcot(sources: Mapping[str, Score]) -> _Averages:
    named = {source: subtask_named(source) for source in sources}
    _refuse_unknown([s for s, subtask in named.items() if subtask is None], [s.data_source for s in SUBTASKS])
    scores = {subtask.name: sources[source] for source, subtask in named.items() if subtask is not None}
    missing = tuple(name for name in CHEMCOT_19 if name not in scores)
    averages = {
        f"acc_{category}": macro_mean([scores[name] for name in names if name in scores])
        for category, names in CHEMCOT_CATEGORIES.items()
    }
    headline = macro_mean([average for average in averages.values() if average is not None])
    averages["macro_19"] = macro_mean([scores[name] for name in CHEMCOT_19 if name in scores])
    return headline, {name: score for name, score in averages.items() if score is not None}, missing


def _refuse_unknown(unknown: Sequence[str], known: Sequence[str]) -> None:
    if unknown:
        raise TaskError(
            f"no part of the task is called {', '.join(unknown)}; known: {', '.join(known)}. Correct the "
            "data_source of these rows"
        )
