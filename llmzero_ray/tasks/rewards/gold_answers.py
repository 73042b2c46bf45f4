"""Accepted answers of a ground truth, and how wordings are compared.

Not here: where the answer stands in a response (extraction.py).
"""

from __future__ import annotations

import json
import re
import string
from functools import lru_cache
from typing import Any

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MAX_GOLD = 100_000
_MAX_DEPTH = 8


def accepted_answers(ground_truth: Any) -> tuple[str, ...]:
    """The accepted wordings of `{"target": [...]}` in JSON; of any other text, the text itself."""
    if not isinstance(ground_truth, str) or len(ground_truth) > _MAX_GOLD:
        return ()
    return _parsed_targets(ground_truth)


def gold_response(template: str, ground_truth: str) -> str:
    """The template with the answer for `{answer}`, the first wording where several are accepted."""
    wordings = (*accepted_answers(ground_truth), ground_truth)
    return template.replace("{answer}", wordings[0])


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
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    return tuple(_flat(held["target"], _MAX_DEPTH)) if "target" in held else (text,)


def _flat(value: Any, depth: int) -> list[str]:
    """All texts in a nested list."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or depth == 0:
        return []
    return [text for part in value for text in _flat(part, depth - 1)]
