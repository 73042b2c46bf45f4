"""Accepted answers of a ground truth, and how wordings are compared."""

from __future__ import annotations

import json
import re
import string
from functools import lru_cache
from typing import Any

from llmzero_ray.utils.text import json_or_none

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MAX_GOLD = 100_000
_MAX_DEPTH = 8


def accepted_answers(ground_truth: Any) -> tuple[str, ...]:
    """Accepted wordings of a ground truth.

    `{"target": [...]}`, as an object or as JSON text, gives the wordings in its list. Any other text gives
    itself, a number or bool its JSON text, and anything else nothing.
    """
    if isinstance(ground_truth, dict) and "target" not in ground_truth:
        return ()
    if not isinstance(ground_truth, str | int | float | dict):
        return ()
    text = as_text(ground_truth)
    return () if len(text) > _MAX_GOLD else _parsed_targets(text)


def as_text(ground_truth: Any) -> str:
    """A ground truth as text: text unchanged, anything else as JSON."""
    return ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth, ensure_ascii=False)


def gold_response(template: str, ground_truth: Any) -> str:
    """The template with the answer for `{answer}`, the first wording where several are accepted."""
    wordings = (*accepted_answers(ground_truth), as_text(ground_truth))
    return template.replace("{answer}", wordings[0])


def gold_responses(template: str, ground_truth: Any) -> list[str]:
    """Responses of which a reward must accept at least one: the first wording, the JSON text and `str()` of
    the truth, because rewards differ in how they read a value. Plain text gives one response."""
    forms = (as_text(ground_truth), str(ground_truth))
    tried = [gold_response(template, ground_truth), *(template.replace("{answer}", each) for each in forms)]
    return list(dict.fromkeys(tried))


def normalize_answer(text: str) -> str:
    """The normalized form in which two wordings of a short answer are compared: small letters, no ASCII
    punctuation, no articles, single spaces.

    Source: Rajpurkar et al. 2016 (SQuAD), whose evaluation compares answers this way.
    """
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


@lru_cache(maxsize=4096)
def _parsed_targets(text: str) -> tuple[str, ...]:
    if not text.lstrip().startswith("{"):
        return (text,)
    held = json_or_none(text)
    return tuple(_flat(held["target"], _MAX_DEPTH)) if held and "target" in held else (text,)


def _flat(value: Any, depth: int) -> list[str]:
    """All texts in a nested list."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or depth == 0:
        return []
    return [text for part in value for text in _flat(part, depth - 1)]
