"""The reward for a task by the form of its answers: one of the shipped rewards, or an open question."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmzero_ray.errors import ConfigError
from llmzero_ray.prepared.gold_answers import accepted_answers
from llmzero_ray.tasks.drafting.base import OpenQuestion, RewardSpec, TaskSpec, UserChoices
from llmzero_ray.tasks.shipped_rewards import KINDS
from llmzero_ray.tasks.sources.base import as_text, value_at
from llmzero_ray.utils.text import json_or_none

_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:/[1-9]\d*|(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_LATEX = re.compile(r"\\(?:[dt]?frac|sqrt|pi|cdot|infty|text|left|begin)\b|[\^_]\{|\$.+\$")
_MARKED = re.compile(r"####[^\n]*\S\s*$|\\boxed\s*\{|<answer>|\banswer is\b[^\n]*\S\s*$", re.IGNORECASE)
"""Mark of a solution's result: ####, a box, <answer>, or "answer is" in the last line."""
_BOX_ALONE = re.compile(r"\$?\\boxed\s*\{[^\n]*\}\$?\.?")
_CODE = re.compile(r"^\s*(?:assert|def|class|import|from|print|#include|public|function)\b", re.MULTILINE)
_LABEL = re.compile(r"[\w][\w ./+-]{0,29}")
_SHARE = 0.98
_SHORT_CHARS, _SHORT_WORDS = 80, 8
_MAX_LATEX = 300
MAX_LABELS = 10

INSTRUCTIONS = {
    "mcq": "Reason step by step, then put only the letter of the right option into \\boxed{}.",
    "math": "Reason step by step, then put the final result into \\boxed{}.",
    "exact_match": "Reason step by step, then give the answer alone between <answer> and </answer>.",
}
"""Reward kind -> instruction that makes the answer findable for it."""


def choose_reward(spec: TaskSpec, user: UserChoices) -> RewardSpec:
    """The user's reward, otherwise the one that fits the answers of the sample.

    Raises:
        ConfigError: `user.reward` is not a reward.
    """
    if user.reward is not None:
        return _user_reward(user.reward, spec)
    if spec.answer is None:
        return RewardSpec(kind=None, open=(_open_reward("the answer column is open"),))
    if spec.choices:
        return _of_kind("mcq", "the rows have options")
    values = [value for row in spec.table.rows if (value := value_at(row, spec.answer)) is not None]
    lists = [value for value in values if isinstance(value, list)]
    if lists and len(lists) == len(values):
        return _by_lists(lists, spec.answer)
    return _by_texts([text for text in map(as_text, values) if text], spec.answer, spec.labels)


def _by_lists(lists: Sequence[list[Any]], column: str) -> RewardSpec:
    if _are_wordings(lists):
        texts = [each for value in lists for each in value if each is not None]
        if all(map(_is_short, texts)) and not any(map(_CODE.search, texts)):
            return _of_kind("exact_match", f"{column} holds lists of wordings", ignore_case=True)
        why = f"{column} holds lists of code or of long texts; exact_match accepts each of them"
    else:
        why = (
            f"{column} holds lists that are not wordings of one answer, such as {as_text(lists[0])[:60]}; "
            "exact_match takes the whole list, as JSON, for the answer"
        )
    return RewardSpec(kind=None, open=(_open_reward(why),))


def _are_wordings(lists: Sequence[list[Any]]) -> bool:
    return all(isinstance(each, str) for value in lists for each in value if each is not None)


def _is_short(text: str) -> bool:
    return len(text) <= _SHORT_CHARS and len(text.split()) <= _SHORT_WORDS


def _by_texts(texts: Sequence[str], column: str, labels: Sequence[str] | None) -> RewardSpec:
    def share(pattern: re.Pattern[str], *, whole: bool) -> float:
        found = (pattern.fullmatch(text) if whole else pattern.search(text) for text in texts)
        return sum(each is not None for each in found) / max(1, len(texts))

    if share(_BOX_ALONE, whole=True) >= _SHARE:
        return _of_kind("math", f"{len(texts)} answers stand in \\boxed")
    if share(_MARKED, whole=False) >= _SHARE:
        why = (
            f"{column} holds whole solutions that end in a marked result (####, \\boxed, <answer> or `the "
            "answer is`): write the result into a column of its own and name it with --answer-field, or give "
            "a function that finds it"
        )
        return RewardSpec(kind=None, open=(_open_reward(why),))
    n, is_short = len(texts), all(map(_is_short, texts))
    if labels and len(labels) * 4 <= n and all(map(_is_short, labels)) and all(map(_LABEL.fullmatch, labels)):
        listed = ", ".join(labels)
        match = _of_kind(
            "exact_match", f"all answers are one of {len(labels)} words: {listed}", ignore_case=True
        )
        instruction = f"The answer is one of: {listed}. {match.instruction}"
        return replace(match, instruction=instruction)
    if (composite := sum(map(is_composite, texts))) >= _SHARE * n:
        why = (
            f"{composite} of {n} answers in {column} are lists or objects in one text: write the answer into "
            "a column of its own and name it with --answer-field, or give a function that reads them"
        )
        return RewardSpec(kind=None, open=(_open_reward(why),))
    if sum(_CODE.search(text) is not None for text in texts) >= _SHARE * n:
        return RewardSpec(kind=None, open=(_open_reward(f"{column} holds code"),))
    if share(_NUMBER, whole=True) >= _SHARE:
        return _of_kind("math", f"{share(_NUMBER, whole=True):.0%} of {n} answers are numbers")
    if share(_LATEX, whole=False) >= 0.2 and all(len(text) <= _MAX_LATEX for text in texts):
        return _of_kind("math", f"{share(_LATEX, whole=False):.0%} of {n} answers hold LaTeX")
    if is_short:
        return _of_kind("exact_match", f"all of {n} answers are short texts", ignore_case=True)
    longest = max(map(len, texts), default=0)
    return RewardSpec(
        kind=None, open=(_open_reward(f"answers in {column} are up to {longest} characters long"),)
    )


def is_composite(text: str) -> bool:
    """Whether a text is an object, or a list of objects or texts, in JSON or Python's notation. The project's
    own form of several wordings does not count."""
    if not text.startswith(("{", "[")):
        return False
    held = json_or_none(text)
    if held is None:
        try:
            held = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return False
    if not isinstance(held, list | dict):
        return False
    if isinstance(held, list):
        return any(isinstance(each, dict | str) for each in held)
    return not ("target" in held and accepted_answers(text))


def _of_kind(kind: str, evidence: str, **options: bool) -> RewardSpec:
    return RewardSpec(
        kind=kind,  # type: ignore[arg-type]
        options=options,
        instruction=INSTRUCTIONS[kind],
        evidence=(f"reward {kind}: {evidence}",),
    )


def _open_reward(why: str) -> OpenQuestion:
    return OpenQuestion(
        field="reward",
        text=f"How are answers judged? Rules cannot tell: {why}.",
        choices=("exact_match", "mcq", "math", "regex=PATTERN", "FILE.py:function"),
        flag="--reward",
    )


def _user_reward(reward: str, spec: TaskSpec) -> RewardSpec:
    """The reward that the user chose."""
    kind, _, pattern = reward.partition("=")
    if kind == "regex" and pattern:
        return RewardSpec(
            kind="regex",
            options={"pattern": pattern},
            instruction="End with the answer.",
            evidence=("reward: as asked",),
        )
    if re.fullmatch(r".+\.py:[A-Za-z_]\w*", reward):
        message = "reward: as asked; the prompt does not say how the answer is to be written down"
        return RewardSpec(kind="python", function=reward, evidence=(message,))
    if reward not in KINDS or reward == "regex":
        raise ConfigError(
            f"--reward {reward}: must be one of exact_match, mcq, math, regex=PATTERN, or FILE.py:function"
        )
    if (reward == "mcq") != bool(spec.choices):
        message = (
            "needs the options: name them with --options-field" if reward == "mcq" else "takes no options"
        )
        raise ConfigError(f"--reward {reward} {message}")
    chosen = _of_kind(reward, "as asked")
    lists = [value for row in spec.table.rows if isinstance(value := value_at(row, str(spec.answer)), list)]
    if reward != "exact_match" or _are_wordings(lists):
        return chosen
    form = f"the answer alone, as JSON such as {as_text(lists[0])},"
    return replace(chosen, instruction=chosen.instruction.replace("the answer alone", form))
