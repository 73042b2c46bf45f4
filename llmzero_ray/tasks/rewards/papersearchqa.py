"""Reward of PaperSearchQA: 1 when the last `<answer>` equals an accepted wording, else 0.

The ground truth is `{"target": [...]}` in JSON. Wordings are compared without case, ASCII punctuation and
articles. More than ten answer tags quarter the score, not the accuracy, as in VeRL's Search-R1 reward. The
metric is exact match: the mean accuracy over all rows.
Source: Burgess et al. 2026, arXiv 2601.18207; comparison of wordings: Rajpurkar et al. 2016 (SQuAD).
"""

from __future__ import annotations

from typing import Any

from llmzero_ray.prepared.gold_answers import accepted_answers, normalize_answer
from llmzero_ray.tasks.rewards.extraction import Result, last_tagged, result, too_many_tags, visible

MAX_TAGS = 10
TAG_FACTOR = 0.25


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001
    format_bonus: Any = 0.0,
    **_others: Any,
) -> Result:
    """Score one response; `pred` is the answer as it was compared, or empty."""
    answer = last_tagged(visible(solution_str))
    key = normalize_answer(answer or "")
    right = key != "" and any(key == normalize_answer(target) for target in accepted_answers(ground_truth))
    factor = TAG_FACTOR if too_many_tags(solution_str, MAX_TAGS) else 1.0
    return result(right=right, found=key != "", pred=key, format_bonus=format_bonus, factor=factor)
