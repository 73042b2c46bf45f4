"""Reward 1 when what a pattern finds last in the response is the expected text, else 0.

Option `pattern`: a regular expression for the `regex` package, searched in the response after its thoughts;
its group `answer`, else its first group, else the whole match is compared with the ground truth (or each
`{"target": [...]}`), trimmed. A search that takes longer than `TIMEOUT_S` finds nothing. Also `ignore_case`
(default false, for the comparison) and `format_bonus` (default 0).
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from importlib import import_module
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import accepted_answers
from llmzero_ray.tasks.rewards.extraction import Result, result, visible
from llmzero_ray.tasks.rewards.reward_options import options_of_row

TIMEOUT_S = 0.25
MAX_CHARS = 20_000
"""Maximum characters read of the response, from its end."""
MAX_PATTERN = 1_000


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    **others: Any,
) -> Result:
    """Score one response; `pred` is what the pattern found, or empty; 0 without a usable pattern."""
    options = options_of_row(extra_info, others)
    pattern = options.get("pattern")
    found = _last_match(pattern, visible(solution_str)[-MAX_CHARS:]) if isinstance(pattern, str) else ""
    fold = options.get("ignore_case") is True
    key = found.casefold() if fold else found
    golds = [target.strip() for target in accepted_answers(ground_truth)]
    right = found != "" and any(key == (gold.casefold() if fold else gold) for gold in golds)
    return result(right=right, found=found != "", pred=found, format_bonus=options.get("format_bonus"))


def check_pattern(pattern: Any) -> None:
    """Check that `pattern` can be used.

    Raises:
        TaskError: it is missing, too long, or no regular expression; or the `regex` package is not installed.
    """
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        raise TaskError(
            f"reward regex: pattern is {str(pattern)[:80]!r}; it must be a regular expression of 1 to "
            f"{MAX_PATTERN} characters whose group `answer`, or first group, is the answer"
        )
    try:
        regex = import_module("regex")
    except ImportError as error:
        raise TaskError("reward regex needs the package `regex`; install llmzero-ray[tasks]") from error
    try:
        regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise TaskError(f"reward regex: pattern {pattern!r} is not a regular expression: {error}") from error


def _last_match(pattern: str, text: str) -> str:
    compiled = _compiled(pattern)
    if compiled is None:
        return ""
    try:
        last = deque(compiled.finditer(text, timeout=TIMEOUT_S), maxlen=1)
    except (TimeoutError, MemoryError):
        return ""
    if not last:
        return ""
    match, named = last[0], last[0].groupdict()
    found = named["answer"] if "answer" in named else match[1 if match.re.groups else 0]
    return (found or "").strip()


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    try:
        check_pattern(pattern)
    except TaskError:
        return None
    return import_module("regex").compile(pattern)
