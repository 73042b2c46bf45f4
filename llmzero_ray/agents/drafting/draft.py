"""From a folder and a sentence to the files of a draft: `draft_task` asks the agents, `write_draft` writes.

Nothing is prepared or trained. Not here: the agents (expert.py, model.py), the command line
(cli/draft.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.agents.drafting.assembling import REWARD_FILE, facts_of, search_fields, task_fields
from llmzero_ray.agents.drafting.trial import TrialReport, try_task
from llmzero_ray.agents.drafting.values import (
    Attempt,
    Drafters,
    Given,
    OpenQuestion,
    Perception,
    Ranking,
    Reading,
    RewardPlan,
)
from llmzero_ray.agents.drafting.writing import (
    description_md,
    record_json,
    search_yaml,
    task_yaml,
    write_files,
)
from llmzero_ray.agents.llm.errors import redacted

TASK, SEARCH, DESCRIPTION, RECORD = "task.yaml", "search.yaml", "description.md", "draft.json"
_MAX_SKIPPED = 200
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A task as it was understood, and what is known about it."""

    perception: Perception
    reading: Reading
    plan: RewardPlan
    ranking: Ranking | None
    """None: too little is known to suggest a search."""
    trial: TrialReport | None
    """None: the task is not complete, so that it could not be tried."""
    attempts: tuple[Attempt, ...]
    """Rewards that were tried and failed, oldest first."""
    fields: Mapping[str, Any]
    """Of task.yaml."""
    search: Mapping[str, Any] | None
    """Of search.yaml."""

    @property
    def open(self) -> tuple[OpenQuestion, ...]:
        """What only the user can say."""
        return (*self.reading.open, *self.plan.open)

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong with the task as it stands."""
        return self.trial.findings if self.trial is not None else ()

    @property
    def works(self) -> bool:
        """Nothing is open, and the trial found nothing."""
        return not self.open and not self.findings


def draft_task(
    perception: Perception,
    sentence: str,
    given: Given,
    drafters: Drafters,
    *,
    repairs: int = 2,
    tell: Tell = lambda _: None,
) -> Draft:
    """The draft; a reward that fails its trial goes back to its writer up to `repairs` times.

    Raises:
        ConfigError: the user has named what does not exist, or no search fits the task.
    """
    tell("reading the task")
    reading = drafters.describe(perception, sentence, given)
    tried: list[Attempt] = []
    plan = drafters.write_reward(reading, sentence, given, ()) or RewardPlan(kind=None)
    trial: TrialReport | None = None
    while not (reading.open or plan.open):
        tell(f"trying the reward {plan.kind} on sampled rows")
        trial = try_task(task_fields(reading, plan, perception.folder), reading, plan)
        if not trial.findings or not trial.mendable or len(tried) == repairs:
            break
        tried.append(Attempt(plan=plan, findings=trial.findings))
        tell("mending the reward")
        better = drafters.write_reward(reading, sentence, given, tuple(tried))
        if better is None or better.open:
            tried.pop()
            break
        plan = better
    known = reading.template is not None and reading.answer is not None
    facts = facts_of(reading, plan)
    ranking = drafters.rank(reading, facts, sentence) if known else None
    return Draft(
        perception=perception,
        reading=reading,
        plan=plan,
        ranking=ranking,
        trial=trial,
        attempts=tuple(tried),
        fields=task_fields(reading, plan, perception.folder),
        search=None if ranking is None else search_fields(reading, facts, ranking),
    )


def files_of(draft: Draft, record: Mapping[str, Any], secret: str | None = None) -> dict[str, str]:
    """Name -> text of the files of a draft; `secret` stands in none of them.

    `record` opens draft.json: who was asked what.
    """
    evidence = (*draft.reading.evidence, *draft.plan.evidence)
    files = {
        TASK: task_yaml(draft.fields, evidence, draft.reading.doubts, draft.open),
        DESCRIPTION: description_md(draft.reading, evidence, draft.ranking),
    }
    if draft.search is not None and draft.ranking is not None:
        files[SEARCH] = search_yaml(draft.search, draft.ranking)
    if draft.plan.code is not None:
        files[REWARD_FILE] = draft.plan.code.rstrip() + "\n"
    files[RECORD] = record_json({**record, **_result(draft)})
    return {name: redacted(text, secret) for name, text in files.items()}


def _result(draft: Draft) -> dict[str, Any]:
    trial = draft.trial
    return {
        "seen": _seen(draft.perception),
        "open": [
            {"field": q.field, "asks": q.asks, "choices": list(q.choices), "flag": q.flag} for q in draft.open
        ],
        "evidence": [*draft.reading.evidence, *draft.plan.evidence],
        "doubts": list(draft.reading.doubts),
        "recipes": None if draft.ranking is None else list(draft.ranking.names),
        "attempts": [_attempt(each.plan, each.findings) for each in draft.attempts],
        "trial": None
        if trial is None
        else {
            "rows": trial.n_rows,
            "accuracies": dict(trial.accuracies),
            "gate": [list(line) for line in trial.gate],
            "findings": list(trial.findings),
            "warnings": list(trial.warnings),
        },
    }


def _seen(perception: Perception) -> dict[str, Any]:
    """The folder in short: what was opened, what was not."""
    return {
        "folder": str(perception.folder),
        "files": perception.n_files,
        "listed_all": perception.complete,
        "tables": [
            {
                "files": len(table.files),
                "opened": list(table.opened),
                "rows": table.n_rows,
                "exact": table.exact,
                "columns": [column.name for column in table.columns],
            }
            for table in perception.tables
        ],
        "texts": list(perception.texts),
        "skipped": dict(list(perception.skipped.items())[:_MAX_SKIPPED]),
    }


def _attempt(plan: RewardPlan, findings: Sequence[str]) -> dict[str, Any]:
    return {"kind": plan.kind, "options": dict(plan.options), "code": plan.code, "findings": list(findings)}


def write_draft(
    draft: Draft,
    directory: Path,
    record: Mapping[str, Any],
    *,
    secret: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write the files of a draft; names of those that are new or have changed.

    Raises:
        StorageError: files with other content are there and `force` is not set, or they cannot be written.
    """
    return write_files(directory, files_of(draft, record, secret), force=force)
