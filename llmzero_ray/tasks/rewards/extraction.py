"""Place of the answer in a response, and the result that every reward returns.

All searches are linear in the response. Answers are only read from its last `MAX_CHARS` characters.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

Result: TypeAlias = dict[str, float | str]
"""`score`, `acc`, `fmt_ok`: floats in [0, 1]; `pred`: str."""

MAX_CHARS = 100_000
"""Maximum characters read of a response after its thoughts, from the end, because answers are there."""
MAX_PREDICTION = 128
"""Maximum characters of `pred`."""

_START_OF_THOUGHT, _END_OF_THOUGHT = "<think>", "</think>"
_START_OF_ANSWER, _END_OF_ANSWER = "<answer>", "</answer>"
_BOX = "\\boxed"
# An escaped brace is text and opens nothing.
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def visible(response: Any) -> str:
    """The response after its thoughts; empty when a thought never ends, or when it is not text.

    At most the last `MAX_CHARS` characters.
    """
    if not isinstance(response, str):
        return ""
    text = (
        response[response.rfind(_END_OF_THOUGHT) + len(_END_OF_THOUGHT) :]
        if _END_OF_THOUGHT in response
        else response
    )
    return "" if _START_OF_THOUGHT in text else text[-MAX_CHARS:]


def has_box(text: str) -> bool:
    """Whether a box was opened, with balanced braces or not."""
    return _BOX in text


def last_boxed(text: str) -> str | None:
    """Content of the balanced `\\boxed{}` that begins last; None without one."""
    if _BOX not in text:
        return None
    open_braces: list[tuple[int, int] | None] = []
    last: tuple[int, int, int] | None = None
    for token in _BRACES.finditer(text):
        kind = token.group()
        if kind == "{":
            open_braces.append(None)
        elif kind == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None and (last is None or opened[0] > last[0]):
                last = (*opened, token.start())
        elif kind.endswith("{") and kind.startswith(_BOX):
            open_braces.append((token.start(), token.end()))
    return None if last is None else text[last[1] : last[2]]


def last_tagged(text: str) -> str | None:
    """Content of the last closed `<answer>`; None without one."""
    end = text.rfind(_END_OF_ANSWER)
    start = text.rfind(_START_OF_ANSWER, 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(_START_OF_ANSWER) : end]


def last_marked(text: str) -> str | None:
    """Content of the last box, otherwise of the last `<answer>`, trimmed; None without either. An unbalanced
    box counts as an empty one."""
    if has_box(text):
        return (last_boxed(text) or "").strip()
    tagged = last_tagged(text)
    return None if tagged is None else tagged.strip()


def too_many_tags(response: Any, limit: int) -> bool:
    """Whether opening or closing answer tags occur more than `limit` times in the whole response."""
    if not isinstance(response, str):
        return False
    return response.count(_START_OF_ANSWER) > limit or response.count(_END_OF_ANSWER) > limit


def result(*, right: bool, found: bool, pred: str, format_bonus: Any = 0.0, factor: float = 1.0) -> Result:
    """The result of one row: `acc` is 1.0 when `right`, `fmt_ok` is 1.0 when an answer was `found`.

    `score` is `acc` times `factor`; a wrong answer that was found scores `format_bonus` instead (clipped to
    [0, 1]; anything that is not a number counts as 0).
    """
    acc, fmt_ok = float(right), float(found)
    score = acc * factor if right else fmt_ok * share(format_bonus)
    return {"score": score, "acc": acc, "fmt_ok": fmt_ok, "pred": pred[:MAX_PREDICTION]}


def share(value: Any) -> float:
    """`value` clipped to [0, 1], or 0 if it is not a number."""
    if not isinstance(value, int | float) or value != value:  # only NaN differs from itself
        return 0.0
    return float(max(0, min(1, value)))
