"""Shared parts of the commands that draft a task with the user: options, questions, output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from llmzero_ray.cli.output import print_line
from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.text import clean

if TYPE_CHECKING:
    from llmzero_ray.tasks.drafting.base import OpenQuestion, UserChoices

_FIELDS = {
    "--question-field": "question",
    "--answer-field": "answer",
    "--options-field": "options",
    "--answer-form": "answer_form",
    "--reward": "reward",
    "--table": "table",
}
"""Option that answers an open question -> field of the draft."""


def check_sentence(sentence: str) -> None:
    """Raise ConfigError if the sentence is empty."""
    if not sentence.strip():
        raise ConfigError("the sentence is empty; say in a few words what the model must learn")


def user_choices(*, options: Sequence[str], reward: str | None, **fields: Any) -> UserChoices:
    """The user's decisions from the options. `fields` are those of `UserChoices`."""
    from llmzero_ray.tasks.drafting.base import UserChoices

    place = str(Path(reward).absolute()) if reward is not None and ".py:" in reward else reward
    return UserChoices(options=tuple(options), reward=place, **fields)


def ask_user(console: Console, questions: Sequence[OpenQuestion]) -> dict[str, Any]:
    """Fields of `UserChoices` that the user answers. An empty line leaves a question open. Without a terminal
    no question is asked."""
    answers: dict[str, Any] = {}
    for question in questions if sys.stdin.isatty() else ():
        print_text(console, f"{question.text} {question.listed_choices}")
        while answer := ask(console, "> "):
            if question.field != "reward" and question.choices and answer not in question.choices:
                print_text(console, f"{answer} is none of them. {question.listed_choices}")
                continue
            answers[_FIELDS[question.flag]] = _read(question.flag, answer)
            break
    return answers


def ask(console: Console, prompt: str) -> str:
    """A trimmed line of user input. Empty at the end of the input."""
    try:
        return console.input(prompt, markup=False).strip()
    except EOFError:
        return ""


def print_text(console: Console, text: str) -> None:
    """Print untrusted text."""
    print_line(console, clean(text))


def _read(flag: str, answer: str) -> Any:
    if flag == "--options-field":
        return tuple(name.strip() for name in answer.split(","))
    return int(answer) if flag == "--table" else answer
