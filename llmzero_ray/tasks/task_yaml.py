"""task.yaml: a user's description of their own task, of a known data set, or of a reasoning-gym task.

`load_task_file` returns a frozen `TaskFile`, or raises one `ConfigError` that lists all defects.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from llmzero_ray.config.yaml_text import LocalPath, StrictModel, expanded, load_file, validated
from llmzero_ray.prepared.splits import CONFIRM
from llmzero_ray.utils.plugins import registered

OPTIONS_FIELD = "options"
"""Placeholder in a prompt template for the lettered options, one per line."""
_OPTIONAL = "optional"
MAX_ROWS = 100_000
"""Maximum rows of one split."""

RewardKind = Literal["exact_match", "mcq", "math", "regex", "python"]
_KINDS = get_args(RewardKind)
AnswerForm = Literal["letter", "text", "index"]


def _as_tuple(value: Any) -> Any:
    """Tuple type for settings. A single name becomes a tuple of one, and a YAML list becomes a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Places = Annotated[tuple[LocalPath, ...], BeforeValidator(_as_tuple)]


class OwnReward(StrictModel):
    """Rule by which answers are judged: `exact_match`, `regex: {pattern: ...}` or `python:
    reward.py:compute_score`; the latter two with `gold` if needed."""

    kind: str = Field(pattern=r"^[A-Za-z_][\w-]*$")
    """exact_match, mcq, math, regex, python, or the name of an entry point in the group llmzero_ray.rewards:
    a function of an installed package, which runs in the sandbox."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of that reward, such as ignore_case; see the reward's module."""
    function: str | None = Field(None, pattern=r"^.+\.py:[A-Za-z_]\w*$")
    """Function of a python reward, FILE:FUNCTION. The file is copied into the task, so it may import no other
    file of yours."""
    gold: str | None = Field(None, pattern=r"\{answer\}")
    """A perfect response, with {answer} in place of the answer. Null: the known form of the kind; for python
    it is found by trying."""
    allow_unsandboxed: bool = False
    """Run the code of python and package rewards, here and in training, even on machines that have no
    sandbox for it."""

    @property
    def file(self) -> Path | None:
        """The file of a python reward. None for other kinds."""
        return None if self.function is None else Path(self.function.rpartition(":")[0])

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"kind": data}
        short = [key for key in data if key in _KINDS] if isinstance(data, dict) else []
        if len(short) == 1 and "kind" not in data:
            others = {key: value for key, value in data.items() if key not in short}
            place = "function" if short == ["python"] else "options"
            return {**others, "kind": short[0], place: data[short[0]]}
        return data

    @model_validator(mode="after")
    def _complete(self) -> OwnReward:
        if (self.kind == "python") != (self.function is not None):
            raise ValueError(
                "reward: python needs, and it alone takes, a function; write python: reward.py:compute_score"
            )
        if self.kind == "python" and self.options:
            raise ValueError("reward: python takes no options; write them into the function")
        if self.kind not in _KINDS:
            registered(self.kind, field="reward")
        elif self.kind != "python" and self.allow_unsandboxed:
            raise ValueError(
                "reward: allow_unsandboxed is for python alone; the other kinds run no code of yours"
            )
        if self.kind == "regex" and "pattern" not in self.options:
            raise ValueError("reward: regex needs a pattern; write regex: {pattern: '...'}")
        return self


class TaskFile(StrictModel):
    """task.yaml. Exactly one of `prompt` (own data), `dataset` and `reasoning_gym` says what kind it is."""

    name: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """Name of the task, part of metric names; needed for own data."""
    dir: LocalPath = Field("data/task", min_length=1)
    """Directory that the prepared task is put into."""
    n_train: int = Field(5000, ge=1, le=MAX_ROWS)
    """Maximum training rows."""
    n_val: int = Field(500, ge=1, le=MAX_ROWS)
    """Maximum validation rows."""
    n_test: int = Field(500, ge=1, le=MAX_ROWS)
    """Maximum test rows, sealed until a search is over."""
    n_confirm: int = Field(1000, ge=0, le=MAX_ROWS)
    """Maximum rows to confirm the winners of a search (`confirm.k`): further validation rows, from those that
    the other three splits leave. If none are left, there are none."""
    tokenizer: LocalPath | None = None
    """Directory of a model or tokenizer to measure prompts with; null: they are measured in characters."""
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Maximum prompt tokens, chat template included. Longer prompts are dropped. If null, the limit of the
    model in `tokenizer` applies."""

    files: Places = ()
    """Files or directories with rows; relative paths count from the directory of task.yaml."""
    val_files: Places = ()
    """Files whose rows may only become validation rows; then no others do."""
    test_files: Places = ()
    """Files whose rows may only become test rows; then no others do."""
    hub: str | None = Field(None, pattern=r"^[\w.-]+/[\w.-]+$")
    """Data set of the Hugging Face hub to read instead of files: owner/name."""
    hub_revision: str | None = None
    """Branch, tag or commit of it; a commit alone makes the task repeatable."""

    dataset: Literal["chemcot", "papersearchqa", "ssmr", "wildsci"] | None = None
    """A data set whose columns, prompt and reward are known."""
    reasoning_gym: str | None = None
    """A task that the reasoning-gym package generates, by its name; its own verifier is the reward."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of `dataset` or of the reasoning_gym task."""
    seed: int = Field(0, ge=0, le=1_000_000)
    """Seed of a reasoning_gym task; the rows of files are chosen by their content alone."""

    prompt: str | None = Field(None, min_length=1)
    """Template of the user's message: {column} is replaced, {options} are lettered lines, {{ is a brace. Rows
    in which a column is empty are left out; of {column:optional} the text before it is, with the column."""
    system: str = ""
    """System message before the prompt. Empty if none."""
    answer: str | None = None
    """Column that holds the answer. `answer.value` is a key of an object, `messages.assistant` the answer
    in a chat; prompt and other columns are named alike."""
    choices: Names = ()
    """Column of mcq with a list (or an object of letters) of options, or the columns with one each."""
    answer_form: AnswerForm = "letter"
    """Content of mcq's answer column: a letter, an option's text, or its number from 0."""
    reward: OwnReward | None = None
    """Judge of the answers."""
    id: str | None = None
    """Column with an id of the row that is independent of its position. If null, the prompt is used."""
    group: str | None = None
    """Column whose equal values are never in two splits, such as a document's name."""
    subtask: str | None = None
    """Column that divides the task into subtasks, which share every split evenly."""
    licence: str | None = None
    """Licence of the data."""

    @property
    def sizes(self) -> dict[str, int]:
        """Maximum rows of train, val and test, and of the rows to confirm winners."""
        return {"train": self.n_train, "val": self.n_val, "test": self.n_test, CONFIRM: self.n_confirm}

    @property
    def reward_file(self) -> Path | None:
        """The user's file with the reward, if there is one."""
        return None if self.reward is None else self.reward.file

    @model_validator(mode="after")
    def _consistent(self) -> TaskFile:
        kinds = [name for name in ("prompt", "dataset", "reasoning_gym") if getattr(self, name) is not None]
        if len(kinds) != 1:
            given = ", ".join(kinds) or "none of them"
            raise ValueError(
                f"exactly one of prompt, dataset and reasoning_gym must be given; it has {given}"
            )
        if self.reasoning_gym is None and bool(self.files or self.test_files) == bool(self.hub):
            raise ValueError("give either files or hub: where the rows come from")
        if self.max_prompt_tokens is not None and self.tokenizer is None:
            raise ValueError("max_prompt_tokens counts tokens of a model; name its directory as tokenizer")
        if self.prompt is not None:
            self._check_own(self.prompt)
        return self

    def _check_own(self, prompt: str) -> None:
        missing = [name for name in ("name", "answer", "reward") if getattr(self, name) is None]
        if missing:
            raise ValueError(f"data of your own need {', '.join(missing)} as well")
        fields = template_fields(prompt)
        is_mcq = self.reward is not None and self.reward.kind == "mcq"
        if is_mcq != bool(self.choices):
            raise ValueError(
                "choices belong to reward mcq, and it needs them: the column or columns with the options"
            )
        if is_mcq and OPTIONS_FIELD not in fields:
            raise ValueError(
                "prompt must show the options of a multiple-choice question; write {options} into it"
            )
        if not needed_fields(prompt):
            raise ValueError(
                "prompt names no column, so that all prompts would be equal; write {column} into it"
            )


def template_fields(template: str) -> tuple[str, ...]:
    """Names between braces, `:optional` left out.

    Raises:
        ValueError: braces do not match, or hold more than a name.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"prompt: {error}; write {{{{ and }}}} for braces that are text") from error
    fields = []
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if not name or spec not in ("", _OPTIONAL) or conversion:
            raise ValueError(
                f"prompt: {{{name}}} must hold the name of a column, and nothing else but :{_OPTIONAL}"
            )
        fields.append(name)
    return tuple(dict.fromkeys(fields))


def needed_fields(template: str) -> tuple[str, ...]:
    """Names between braces that are optional nowhere."""
    optional = {name for _, name, spec, _ in string.Formatter().parse(template) if spec == _OPTIONAL}
    return tuple(name for name in template_fields(template) if name not in optional)


def fill_template(template: str, values: dict[str, str]) -> str:
    """Template with its columns filled in. An empty optional column is removed together with the text before
    it."""
    return "".join(
        "" if spec == _OPTIONAL and not values[str(name)] else text + ("" if name is None else values[name])
        for text, name, spec, _ in string.Formatter().parse(template)
    )


def parse_task_file(data: Any) -> TaskFile:
    """The task in plain data.

    Raises:
        ConfigError: everything that is wrong, one line each.
    """
    return validated(TaskFile, data, "task.yaml")


def load_task_file(path: str | Path, settings: Mapping[str, Any] | None = None) -> TaskFile:
    """The task in a YAML file, with dotted keys replaced; its relative file names are made absolute, from the
    file's directory.

    `dir` counts from the current directory, as in search.yaml.

    Raises:
        ConfigError: no such file, broken YAML, or everything that is wrong in it.
    """
    task = load_file(TaskFile, Path(path), settings)
    base = Path(path).absolute().parent
    places = {name: tuple(str(base / each) for each in getattr(task, name)) for name in _PLACES}
    tokenizer = None if task.tokenizer is None else str(base / task.tokenizer)
    reward = task.reward
    if reward is not None and reward.function is not None:
        reward = reward.model_copy(update={"function": str(base / reward.function)})
    target = str(expanded(task.dir).absolute())
    return task.model_copy(update={**places, "tokenizer": tokenizer, "reward": reward, "dir": target})


_PLACES = ("files", "val_files", "test_files")
