"""Reward of a multiple-choice question: 1 for the letter of the gold option (in the last `\\boxed{}`, else in
the last `<answer>`, else after the last "answer is"), else 0.

The ground truth is the letter. Options: `letters`, the capital letters on offer (default ABCD), and
`format_bonus` (default 0), the score of a wrong letter.
"""

from __future__ import annotations

import re
from typing import Any

from llmzero_ray.tasks.rewards.extraction import (
    Result,
    has_box,
    last_boxed,
    last_tagged,
    result,
    visible,
)
from llmzero_ray.tasks.rewards.reward_options import options_of_row

DEFAULT_LETTERS = "ABCD"
_MAX_BARE = 4
"""Maximum characters of a response that is read as a letter without any mark."""
_MAX_OPTION = 2_000
"""Maximum characters read after a mark, because an answer may repeat its option."""
_STATED = re.compile(r"\banswer[\s*]{0,8}(?:is\b|:)", re.IGNORECASE)
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\b")
_NOISE = str.maketrans("", "", "$*\\{}")
_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\]]?\.?")
_LETTER_AND_OPTION = re.compile(r"[(\[]?([A-Z])[)\]]?[.:)\]]\s+\S")
_MARKED_LETTER = re.compile(r"(?<!\S)[(\[]?([A-Z])[.:)\]]+(?!\S)")


def compute_score(
    data_source: Any,
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    **others: Any,
) -> Result:
    """Score one response; `pred` is the letter, or empty."""
    options = options_of_row(extra_info, others)
    letters = options.get("letters")
    offered = letters.upper() if isinstance(letters, str) and letters else DEFAULT_LETTERS
    return score_offered(
        offered, data_source, solution_str, ground_truth, format_bonus=options.get("format_bonus")
    )


def score_offered(
    letters: str,
    /,
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001
    format_bonus: Any = 0.0,
    **_others: Any,
) -> Result:
    """Score one response to a question that offers `letters`, for tasks that offer all rows the same ones."""
    letter = chosen_letter(visible(solution_str), letters)
    gold = ground_truth.strip().upper() if isinstance(ground_truth, str) else None
    return result(
        right=letter is not None and letter == gold,
        found=letter is not None,
        pred=letter or "",
        format_bonus=format_bonus,
    )


def chosen_letter(text: str, letters: str) -> str | None:
    """The letter that the visible text of a response chooses among the capital `letters`; None for none.

    Looked for in this order: the last balanced box, the last `<answer>`, the last "answer is X" or
    "answer: X", a text of at most four characters. A box that was begun never falls through to the others.
    """
    if has_box(text):
        return bare_letter(last_boxed(text) or "", letters)
    tagged = last_tagged(text)
    if tagged is not None:
        return bare_letter(tagged, letters)
    stated = _last_stated(text)
    if stated is not None:
        # In prose a lower-case letter is a word.
        letter = bare_letter(stated, letters)
        return letter if letter is not None and letter in stated else None
    whole = text.strip()
    return bare_letter(whole, letters) if len(whole) <= _MAX_BARE else None


def bare_letter(text: str, letters: str) -> str | None:
    """The one letter that `text` is, without its decoration, or that it begins with as in `C. 6/8`.

    None for a list of options.
    """
    plain = _WRAPPER.sub("", text[:_MAX_OPTION]).translate(_NOISE).strip()
    alone = _LETTER.fullmatch(plain)
    found = alone or _LETTER_AND_OPTION.match(plain)
    letter = found.group(1).upper() if found else ""
    if not letter or letter not in letters:
        return None
    # One other letter may belong to the option: `B. E. coli`.
    others = set(_MARKED_LETTER.findall(plain)) & set(letters) - {letter}
    return letter if len(others) < max(1, min(2, len(letters) - 1)) else None


def _last_stated(text: str) -> str | None:
    end = max((found.end() for found in _STATED.finditer(text)), default=None)
    if end is None:
        return None
    lines = text[end : end + _MAX_OPTION].lstrip(" \t\r\n:*").splitlines()
    return lines[0] if lines else ""
