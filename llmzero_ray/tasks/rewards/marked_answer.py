"""Reward 1 when the text after the only `#` is exactly the expected answer, else 0.

VeRL's reward workers load it as a module or by its file path, so it imports nothing of this project. Every
call returns the same keys, raises nothing, prints nothing and takes time linear in the response.
"""

from __future__ import annotations

from typing import Any

MARK = "#"
_END_OF_THOUGHT = "</think>"
_START_OF_THOUGHT = "<think>"
_MAX_PREDICTION = 64
"""Characters of `pred` that are kept; no answer of a shipped family is longer than 3."""


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001
    **_others: Any,
) -> dict[str, float | str]:
    """Score one response.

    `score` and `acc` are 1.0 or 0.0. `fmt_ok` is 1.0 if there is exactly one mark with text after it. `pred`
    is that text, shortened, or empty. A response that is not text scores 0.
    """
    prediction = marked_text(solution_str) if isinstance(solution_str, str) else ""
    known = isinstance(ground_truth, str) and prediction != ""
    right = float(known and prediction == ground_truth.strip())
    return {
        "score": right,
        "acc": right,
        "fmt_ok": float(prediction != ""),
        "pred": prediction[:_MAX_PREDICTION],
    }


def marked_text(response: str) -> str:
    """The text after the only mark, trimmed. Empty if there is no mark, or more than one."""
    parts = visible(response).split(MARK)
    return parts[1].strip() if len(parts) == 2 else ""


def visible(response: str) -> str:
    """The response after its thoughts. Empty if the thoughts never end."""
    if _END_OF_THOUGHT in response:
        return response.rpartition(_END_OF_THOUGHT)[2]
    return "" if _START_OF_THOUGHT in response else response
