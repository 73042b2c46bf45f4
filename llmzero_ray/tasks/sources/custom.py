"""User data as task.yaml describes it: a template, an answer column and a reward."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import gold_response
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward import sandbox_of
from llmzero_ray.tasks.rewards.math_answer import check_math_verify
from llmzero_ray.tasks.rewards.regex_match import check_pattern
from llmzero_ray.tasks.rewards.reward_options import ROW_KEY
from llmzero_ray.tasks.shipped_rewards import GOLD_FORMS, KINDS
from llmzero_ray.tasks.sources.base import (
    LETTERS,
    DatasetAdapter,
    Record,
    Rejection,
    TaskExample,
    as_text,
    chat_turns,
    empty,
    option_lines,
    options_problem,
    slug,
    text_of,
    value_at,
)
from llmzero_ray.tasks.task_yaml import (
    OPTIONS_FIELD,
    OwnReward,
    TaskFile,
    fill_template,
    needed_fields,
    template_fields,
)
from llmzero_ray.utils.files import text_digest
from llmzero_ray.utils.plugins import registered
from llmzero_ray.utils.text import json_or_none

REWARD_FILE = "reward.py"
"""Copy of the user's reward in the task's directory."""


class CustomTask(DatasetAdapter):
    """The task of one task.yaml."""

    def __init__(self, task: TaskFile) -> None:
        if task.name is None or task.prompt is None or task.answer is None or task.reward is None:
            raise TaskError("task.yaml: data of your own need name, prompt, answer and reward")
        self.name = self.ability = task.name
        self.licence = task.licence
        self._prompt, self._answer, self._reward = task.prompt, task.answer, task.reward
        self._task = task
        columns = [name for name in template_fields(task.prompt) if not task.choices or name != OPTIONS_FIELD]
        named = [name for name in (task.answer, task.id, task.group, task.subtask) if name is not None]
        self._shown = tuple(columns)
        self._needed = tuple(name for name in needed_fields(task.prompt) if name in columns)
        self.required = tuple(dict.fromkeys([*columns, *named, *task.choices]))
        self.reward = _prepared_reward(task.reward)

    def options(self) -> dict[str, Any]:
        """Values in task.yaml that determine the resulting examples."""
        names = ("prompt", "system", "answer", "choices", "answer_form", "id", "group", "subtask")
        settings: dict[str, Any] = {name: getattr(self._task, name) for name in names}
        settings["choices"] = list(self._task.choices)
        return settings | {"reward": self._reward.kind, "reward_options": dict(self._reward.options)}

    def check(self) -> None:
        """Check the requirements of the reward."""
        if self._reward.kind == "regex":
            check_pattern(self._reward.options.get("pattern"))
        if self._reward.kind == "math":
            check_math_verify()
        if (file := self._reward.file) is not None and not file.is_file():
            raise TaskError(f"reward: the file {file} does not exist; paths count from task.yaml")
        if self._reward.kind not in KINDS:
            sandbox_of(reward_entry(self._reward), Path()).close()

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:  # noqa: ARG002
        """The template filled with the record's columns."""
        task, values = self._task, {name: text_of(record, name) for name in self._shown}
        if rejected := _unsuited(record, self._shown, self._answer):
            return rejected
        if without_text := next((name for name in self._needed if not values[name]), None):
            return empty(without_text)
        answer = answer_text(value_at(record, self._answer))
        if not answer:
            return empty(self._answer, "no gold answer")
        settings = dict(self._reward.options)
        if task.choices:
            options = _options(record, task.choices)
            if isinstance(options, Rejection):
                return options
            letter = _letter(answer, options, _labels(record, task.choices), task.answer_form)
            if letter is None:
                return Rejection(
                    reason="gold not among the options",
                    detail=f"{self._answer} is {answer[:60]!r} (read as {task.answer_form}), the options are "
                    f"{', '.join(options)}; correct it, or answer_form",
                )
            answer, values[OPTIONS_FIELD] = letter, option_lines(options)
            settings["letters"] = "".join(options)
        subtask = _subtask(text_of(record, task.subtask)) if task.subtask else ""
        if task.subtask and not subtask:
            return empty(task.subtask, "no subtask")
        row_id = text_of(record, task.id) if task.id else ""
        return TaskExample(
            data_source=f"{self.name}_{subtask}" if subtask else self.name,
            prompt=fill_template(self._prompt, values),
            system=task.system,
            ground_truth=answer,
            label=answer,
            stable_id=row_id,
            group=text_of(record, task.group) if task.group else "",
            extra={
                "row_id": row_id,
                ROW_KEY: json.dumps(settings, sort_keys=True, ensure_ascii=False) if settings else "",
            },
        )

    def gold_response(self, data_source: str, ground_truth: str) -> str | None:  # noqa: ARG002
        """Perfect response, from task.yaml or the kind of reward. Unknown for patterns and functions."""
        template = self._reward.gold or GOLD_FORMS.get(self._reward.kind)
        return None if template is None else gold_response(template, ground_truth)


def reward_entry(reward: OwnReward) -> RewardEntry:
    """Reward in its original place: a shipped module, a module of an installed package, or the user's file.
    The last two have the form of a right answer."""
    allowed = reward.allow_unsandboxed
    if reward.kind in KINDS:
        return RewardEntry(module=KINDS[reward.kind])
    if reward.function is None:
        point = registered(reward.kind, field="reward")
        return RewardEntry(
            module=point.module, name=point.attr, gold_response=reward.gold, allow_unsandboxed=allowed
        )
    path, _, name = reward.function.rpartition(":")
    return RewardEntry(path=path, name=name, gold_response=reward.gold, allow_unsandboxed=allowed)


def _prepared_reward(reward: OwnReward) -> RewardEntry:
    """Reward as the manifest names it. A user's file is named by its copy in the task's directory."""
    entry = reward_entry(reward)
    if entry.path is None:
        return entry
    return entry.model_copy(update={"path": REWARD_FILE, "gold_response": None})


def _unsuited(record: Record, shown: tuple[str, ...], answer: str) -> Rejection | None:
    """Reason why a column cannot be read as the text of a question or an answer."""
    for name in (*shown, answer):
        turns = chat_turns(record.get(name))
        if turns:
            detail = f"{name} is a chat; name what is said in it: {name}.user, {name}.assistant"
            return Rejection(reason=f"{name} is a chat", detail=detail)
        head = name.partition(".")[0]
        said = [role for role, _ in chat_turns(record.get(head)) if role != "system"]
        if name not in record and said and said not in (["user"], ["user", "assistant"]):
            detail = f"{head} has the turns {', '.join(said[:6])}; one question and one answer are read"
            return Rejection(reason="a chat of other turns than a question and an answer", detail=detail)
        held = value_at(record, name)
        if any(isinstance(each, bytes) for each in (held if isinstance(held, list) else [held])):
            return Rejection(
                reason=f"{name} is binary", detail=f"{name} holds bytes, not text; convert it to text"
            )
    held = value_at(record, answer)
    if isinstance(held, Mapping) or (isinstance(held, list) and any(isinstance(x, Mapping) for x in held)):
        keys = held if isinstance(held, Mapping) else next(x for x in held if isinstance(x, Mapping))
        fields = ", ".join(f"{answer}.{key}" for key in keys)
        return Rejection(
            reason="the answer is an object", detail=f"{answer} holds objects; name a field of it: {fields}"
        )
    return None


_SIGNS = "+#*<=>"
"""Signs that tell names apart, such as `C`, `C++` and `C#`."""


def _subtask(text: str) -> str:
    """The text as part of a metric's name. If it has letters or signs that such a name cannot hold, a digest
    stands for them."""
    name, plain = slug(text), unicodedata.normalize("NFKD", text)
    lost = any(each in _SIGNS or (each.isalnum() and not each.isascii()) for each in plain)
    if not text or (name and not lost):
        return name
    return "_".join(part for part in (name, text_digest(plain.casefold())[:8]) if part)


def answer_text(value: Any) -> str:
    """Answer in the form that the rewards read. Several wordings become `{"target": [...]}`. A list of
    anything else becomes one answer in JSON."""
    held = [each for each in value if each is not None] if isinstance(value, list | tuple) else None
    if held is None or not all(isinstance(each, str) for each in held):
        return as_text(value)
    wordings = [each.strip() for each in held if each.strip()]
    return json.dumps({"target": wordings}, ensure_ascii=False) if wordings else ""


def _options(record: Record, columns: tuple[str, ...]) -> dict[str, str] | Rejection:
    """Letter -> text of each option. The options come from one column with a list or an object, or from one
    column each."""
    values: Any = (
        [value_at(record, name) for name in columns] if len(columns) > 1 else value_at(record, columns[0])
    )
    if isinstance(values, str):
        values = json_or_none(values)
    if isinstance(values, Mapping):
        values = [values[key] for key in _kept_keys(values)]
    if not isinstance(values, list | tuple):
        return Rejection(reason="options unreadable", detail=f"{columns[0]} is neither a list nor an object")
    if any(isinstance(value, Mapping | list) for value in values):
        detail = f"{columns[0]} holds objects or lists; name what holds the texts, such as {columns[0]}.text"
        return Rejection(reason="options are no texts", detail=detail)
    if len(values) > len(LETTERS):
        return Rejection(reason="too many options", detail=f"{len(values)} options; at most {len(LETTERS)}")
    texts = [as_text(value) for value in values]
    options = dict(zip(LETTERS, texts, strict=False))
    return options_problem(options) or options


def _kept_keys(options: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted(options) if options[key] is not None]


def _labels(record: Record, columns: tuple[str, ...]) -> list[str]:
    """What the data call their options, in capitals and in the order of `_options`: an object's keys, or the
    column next to the texts. Empty if they have no names."""
    if len(columns) > 1:
        return []
    held = value_at(record, columns[0])
    held = json_or_none(held) if isinstance(held, str) else held
    labels = _kept_keys(held) if isinstance(held, Mapping) else value_at(record, labels_of(columns[0]))
    return [as_text(label).upper() for label in labels] if isinstance(labels, list) else []


def labels_of(choices: str) -> str:
    """Column with the labels of options in ARC's form: `choices.label` next to `choices.text`."""
    head, dot, tail = choices.rpartition(".")
    return f"{head}{dot}label" if dot and tail == "text" else ""


def _letter(answer: str, options: Mapping[str, str], labels: list[str], form: str) -> str | None:
    if form == "letter" and answer.upper() in labels:
        return LETTERS[labels.index(answer.upper())]
    if form == "letter" and labels and set(labels) <= set(LETTERS):
        return None  # the label of an option that is null, and so is not shown
    if form == "text":
        return next((letter for letter, text in options.items() if text == answer), None)
    if form == "index":
        letters = list(options)
        return letters[int(answer)] if answer.isdecimal() and int(answer) < len(letters) else None
    return answer.upper() if answer.upper() in options else None
