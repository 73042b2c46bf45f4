"""The drafting pipeline: describe the task, write and validate a reward, rank the recipes.

Nothing is prepared or trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmzero_ray.prepared.repeated_questions import MOST_REPEATED, questions_of, repeated
from llmzero_ray.tasks.drafting.base import (
    DataProfile,
    DraftingAgents,
    OpenQuestion,
    RecipeRanking,
    RewardAttempt,
    RewardSpec,
    TaskSpec,
    UserChoices,
)
from llmzero_ray.tasks.drafting.column_roles import unused_columns
from llmzero_ray.tasks.drafting.config_fields import (
    prompt_of,
    prompt_room,
    search_fields,
    task_features,
    task_fields,
    tokens_of,
)
from llmzero_ray.tasks.drafting.reward_rules import MAX_LABELS, is_composite
from llmzero_ray.tasks.drafting.sampling import every_row
from llmzero_ray.tasks.drafting.task_validation import TaskValidation, validate_task
from llmzero_ray.tasks.sources.base import text_of
from llmzero_ray.tasks.sources.custom import labels_of
from llmzero_ray.tasks.sources.readers import ENDINGS
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, template_fields
from llmzero_ray.utils.text import one_line, plural

OnProgress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A drafted task with its reward, recipe ranking and validation."""

    spec: TaskSpec
    reward: RewardSpec
    ranking: RecipeRanking | None
    """Ranking of recipes. None if the template or the answer column is not decided, so no search can be
    suggested."""
    trial: TaskValidation | None
    """Result of the validation. None if a field is not decided, so the task could not be validated."""
    fields: Mapping[str, Any]
    """Fields of task.yaml."""
    search: Mapping[str, Any] | None
    """Fields of search.yaml."""

    @property
    def open(self) -> tuple[OpenQuestion, ...]:
        """Fields that only the user can decide."""
        return (*self.spec.open, *self.reward.open)

    @property
    def findings(self) -> tuple[str, ...]:
        """Problems that the validation found."""
        return self.trial.findings if self.trial is not None else ()

    @property
    def works(self) -> bool:
        """Whether nothing is open and the validation found no problem."""
        return not self.open and not self.findings


def draft_task(
    profile: DataProfile,
    sentence: str,
    user: UserChoices,
    agents: DraftingAgents,
    *,
    repairs: int = 2,
    response_cap: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Draft:
    """Draft a task. A reward that fails validation is rewritten up to `repairs` times.

    `response_cap` is the user's cap of a rollout, in tokens. `on_progress` receives one line per stage.

    Raises:
        ConfigError: a choice of the user does not exist, or no search fits the task.
    """
    on_progress("reading the task")
    spec = _with_doubts(agents.describe(profile, sentence, user))
    spec = replace(spec, doubts=(*spec.doubts, *_left_out(spec, profile, user)))
    if spec.template is not None and spec.answer is not None:
        spec = _with_all_rows(spec, [profile.folder / name for name in spec.table.files])
    attempts: list[RewardAttempt] = []
    reward = agents.write_reward(spec, sentence, user, ()) or RewardSpec(kind=None)
    trial: TaskValidation | None = None
    while not (spec.open or reward.open):
        on_progress(f"trying the reward {reward.kind} on sampled rows")
        trial = validate_task(task_fields(spec, reward, profile.folder), spec, reward)
        if not trial.findings or not trial.fixable or len(attempts) == repairs:
            break
        attempts.append(RewardAttempt(reward=reward, findings=trial.findings))
        on_progress("repairing the reward")
        better = agents.write_reward(spec, sentence, user, tuple(attempts))
        if better is None or better.open:
            attempts.pop()
            break
        reward = better
    known = spec.template is not None and spec.answer is not None
    features = task_features(spec, reward, response_cap)
    ranking = agents.rank(spec, features, sentence) if known else None
    return Draft(
        spec=spec,
        reward=reward,
        ranking=ranking,
        trial=trial,
        fields=task_fields(spec, reward, profile.folder),
        search=None if ranking is None else search_fields(spec, features, ranking),
    )


_MAX_BYTES = 2**28
"""Maximum bytes of a task's files for all of their rows to be read."""


def _with_all_rows(spec: TaskSpec, files: Sequence[Path]) -> TaskSpec:
    """The task with what a sample cannot tell: all labels, and the room that prompts need. Of very large
    files the sample has to do."""
    whole = sum(file.stat().st_size for file in files) <= _MAX_BYTES
    names = (*template_fields(str(spec.template)), str(spec.answer), *spec.choices)
    columns = [part for name in names for part in (name, name.partition(".")[0])]
    labels, lengths = set[str](), list[int]()
    for row in every_row(files, columns) if whole else spec.table.rows:
        if len(labels) <= MAX_LABELS and (answer := text_of(row, str(spec.answer))):
            labels.add(answer)
        lengths.append(tokens_of(prompt_of(spec, row)))
    few = sorted(labels, key=lambda text: (text.casefold(), text))
    room = prompt_room(lengths)
    n_longer = sum(length > room for length in lengths)
    doubt = (
        f"engine.max_prompt_length is sized for prompts of up to about {room} tokens; {n_longer} of "
        f"{len(lengths)} {'' if whole else 'sampled '}prompts {'is' if n_longer == 1 else 'are'} longer, up "
        f"to about {max(lengths, default=0)}: a GPU leaves them out, on the CPU a phase with one fails; "
        "shorten or remove these rows, or raise it"
    )
    return replace(
        spec,
        labels=tuple(few) if whole and len(few) <= MAX_LABELS else None,
        longest_prompt=room,
        doubts=(*spec.doubts, doubt) if n_longer else spec.doubts,
    )


_MEDIA = {"image", "images", "video", "videos", "audio", "audios"}


def _with_doubts(spec: TaskSpec) -> TaskSpec:
    """The task with doubts about unreadable rows, unused columns and questions that occur in many rows."""
    if spec.template is None or spec.answer is None:
        return spec
    doubts, table = list(spec.doubts), spec.table
    if table.unreadable:
        n_left = plural(len(table.unreadable), "row")
        doubts.append(f"{n_left} cannot be read and will be left out, the first: {table.unreadable[0]}")
    if table.broken:
        doubts.append(_first("not read to the end", table.broken))
    labels = (labels_of(spec.choices[0]),) if len(spec.choices) == 1 else ()
    unused = unused_columns(table, spec.template, (spec.answer, *spec.choices, *labels))
    if unused:
        notes = {name: " (prompts are text alone)" for name in unused if name.lower() in _MEDIA}
        named = ", ".join(name + notes.get(name, "") for name in unused)
        doubts.append(
            f"not used: {named}; if a question needs one of them, write its name into the prompt, in braces"
        )
    for name in template_fields(spec.template):
        if spec.choices and name == OPTIONS_FIELD:
            continue
        texts = [text for row in table.rows if (text := text_of(row, name))]
        if texts and all(map(is_composite, texts)):
            doubts.append(f"{name} holds lists or objects, which the prompt shows as they stand")
    return replace(spec, doubts=(*doubts, *_repeated_questions(spec)))


_NAMED = 5
"""Maximum files, and maximum tables, that are named as left out."""


def _left_out(spec: TaskSpec, profile: DataProfile, user: UserChoices) -> Iterable[str]:
    """Doubts about files that are not part of the task. Those that may hold rows come first."""
    skipped = sorted(profile.skipped, key=lambda name: not name.lower().endswith(ENDINGS))
    if skipped:
        yield _first("not read", [f"{name} {one_line(profile.skipped[name], 120)}" for name in skipped])
    if not profile.complete:
        yield f"the folder holds more than {profile.n_files} files; the others were not looked at"
    others = [table for table in profile.tables if table is not spec.table]
    if others and user.table is None and all(question.field != "files" for question in spec.open):
        tables = [
            f"{one_line(', '.join(table.files), 60)} ({plural(table.n_rows, 'row')} with the columns "
            f"{one_line(', '.join(column.name for column in table.columns), 60)})"
            for table in others
        ]
        yield _first("not used, because their columns differ", tables)


def _first(what: str, lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return f"{what}: {'; '.join(lines[:_NAMED])}{more}"


def _repeated_questions(spec: TaskSpec) -> Iterable[str]:
    rows = [(prompt_of(spec, row), text_of(row, str(spec.answer))) for row in spec.table.rows]
    distinct = set(rows)
    n_questions = len(set(questions_of(list(distinct))))
    if n_questions <= MOST_REPEATED * len(distinct):
        yield repeated(len(distinct), n_questions)
