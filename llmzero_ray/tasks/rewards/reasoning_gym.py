"""Reward of reasoning-gym tasks: 1 when the last `<answer>` is the generator's own answer, or when the task's
verifier accepts it fully, else 0.

Verifiers pay for parts of an answer and for form; only their full score counts here. Some also pay in full
for another number, such as the first digits of a probability, or for any text at all: of those only the
generator's own answer counts. Several evaluate the answer as Python or as a formula: what could call
anything, or grow without bound, is never handed to them.
Source: Stojanovski et al. 2025, reasoning-gym (package version 0.1.25).
"""

from __future__ import annotations

import ast
import json
import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from llmzero_ray.tasks.rewards.extraction import Result, last_tagged, result, visible

STREAM_LENGTH = 100
"""Entries of one generator. Few, because some generators make all of them at once."""
MAX_ANSWER = 4_000
"""Maximum characters of an answer that is given to a verifier."""
_EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Tasks whose verifier evaluates the answer as Python."""
_ARITHMETIC = frozenset({"countdown", "puzzle24"})
_FORMULAS = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})
"""Tasks whose verifier passes the answer to sympy: of `_ARITHMETIC` only numbers, here also names."""
_NUMBERS = re.compile(r"[0-9+\-*/().\s]+")
_FORMULA = re.compile(r"[A-Za-z0-9_+\-*/().\s]+")
_MEMBER = re.compile(r"\.\s*[A-Za-z_(]|__")
_NAMES = frozenset(
    {"C", "E", "x", "y", "z", "sin", "cos", "tan", "exp", "log", "ln", "sqrt", "pi", "asin", "acos", "atan"}
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_LONG_NUMBER = re.compile(r"\d{20,}")
_POWER = re.compile(
    r"([A-Za-z0-9_.)])\s*\*\*\s*\(?\s*-?\s*(\d{1,2})(?:\s*/\s*\d{1,2})?\s*\)?(?![\d.]|[\s)]*\*\*)"
)
"""A power with a small whole (or fractional) exponent that is not a power itself."""
_MAX_EXPONENTS = 1_000
"""Maximum product of the exponents of numbers and brackets."""
_NO_ANSWER = "zzqx"
"""A verifier that accepts this text accepts anything."""
_MOST_ROUNDING = 0.01
"""Maximum relative difference of a rounded answer, if answer and truth are one number each."""
_ONE_NUMBER = re.compile(
    r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:e[+-]?\d{1,3}|/\d{1,40})?", re.IGNORECASE
)
_MIN_FORMULA = 80
"""Maximum characters of a formula, or twice those of the gold answer if that is more."""


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001
    format_bonus: Any = 0.0,
    **_others: Any,
) -> Result:
    """Score one response; `pred` is the tagged answer, or empty."""
    answer = (last_tagged(visible(solution_str)) or "").strip()
    right = answer != "" and isinstance(ground_truth, str) and _is_right(answer, ground_truth)
    return result(right=right, found=answer != "", pred=answer, format_bonus=format_bonus)


@lru_cache(maxsize=64)
def dataset_of(task: str, options: str, seed: int = 0) -> Any:
    """The generator of a task, which holds its verifier; `options` is JSON.

    Raises:
        Exception: the package is missing, or rejects the name or the options with an error of its own.
    """
    import reasoning_gym

    return reasoning_gym.create_dataset(task, seed=seed, size=STREAM_LENGTH, **json.loads(options))


def is_safe(task: str, answer: str, gold: str) -> bool:
    """Whether an answer may be handed to the task's verifier."""
    if len(answer) > MAX_ANSWER:
        return False
    if task in _EVALUATED:
        return _is_literal(answer)
    if task in _ARITHMETIC or task in _FORMULAS:
        short = len(answer) <= max(_MIN_FORMULA, 2 * len(gold))
        return short and _is_tame_formula(answer, _NUMBERS if task in _ARITHMETIC else _FORMULA)
    return True


def _is_right(answer: str, ground_truth: str) -> bool:
    try:
        truth = json.loads(ground_truth)
        task, entry = truth["task"], truth["entry"]
        gold = "" if entry["answer"] is None else str(entry["answer"]).strip()
        if gold and answer == gold:
            return True
        if not is_safe(task, answer, gold):
            return False
        if _is_another_number(answer, gold):
            return False
        verifier = dataset_of(task, json.dumps(truth["options"], sort_keys=True)).score_answer
        return bool(verifier(answer, entry) >= 1.0 and verifier(_NO_ANSWER, entry) < 1.0)
    except Exception:  # noqa: BLE001  whatever a verifier raises, the answer is not right
        return False


def _is_another_number(answer: str, gold: str) -> bool:
    """Whether both are single numbers, and too far apart for rounding."""
    texts = [text.replace(",", "") for text in (answer, gold)]
    if not all(map(_ONE_NUMBER.fullmatch, texts)):
        return False
    given, right = map(Fraction, texts)
    return abs(given - right) > abs(right) * Fraction(_MOST_ROUNDING)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def _is_tame_formula(text: str, characters: re.Pattern[str]) -> bool:
    if not characters.fullmatch(text) or _MEMBER.search(text) or _LONG_NUMBER.search(text):
        return False
    if any(word not in _NAMES for word in _WORD.findall(text)):
        return False
    powers = _POWER.findall(text)
    grown = math.prod(int(exponent) for base, exponent in powers if not base.isalpha())
    return len(powers) == text.count("**") and grown <= _MAX_EXPONENTS
