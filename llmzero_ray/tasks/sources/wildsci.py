"""WildSci: multiple-choice science questions written from papers, ten options each, nine disciplines.

Rows whose votes agree with the answer are used, unless all are asked for. The rationale is never used: it
gives the answer away. Source: Liu et al. 2026, arXiv 2601.05567; data JustinTX/WildSci on the Hugging Face
hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.tasks.sources.base import (
    DatasetAdapter,
    Record,
    Rejection,
    TaskExample,
    empty,
    option_lines,
    options_problem,
    slug,
    text_of,
)
from llmzero_ray.utils.text import json_or_none

INSTRUCTION = "Reason step by step and put only the letter in \\boxed{}."
ALIGNED = ("all_aligned", "majority_aligned")
"""Values of `voting_type` that vouch for the answer."""
LETTERS = "ABCDEFGHIJ"


class WildSci(DatasetAdapter):
    """`voting`: `aligned` keeps rows whose votes agree with the answer, `all` keeps every row."""

    name = "wildsci"
    licence = "CC-BY-4.0"
    ability = "science"
    required = ("paper_id", "discipline", "question", "options", "answer", "voting_type")
    optional = ("nc_domain", "nc_subdomain", "rationale", "voting_answers")
    shares = "proportional"
    reward = RewardEntry(module="llmzero_ray.tasks.rewards.wildsci", gold_response="\\boxed{{answer}}")

    def __init__(self, voting: str = "aligned") -> None:
        if voting not in ("aligned", "all"):
            raise TaskError(f"wildsci: voting is {voting!r}; must be aligned or all")
        self._voting = voting

    def options(self) -> dict[str, Any]:
        """Which votes count."""
        return {"voting": self._voting}

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:  # noqa: ARG002
        """One question with its options in the order of their letters."""
        if self._voting == "aligned" and text_of(record, "voting_type") not in ALIGNED:
            kind = text_of(record, "voting_type") or "empty"
            return Rejection(
                reason="votes not aligned", detail=f"voting_type is {kind}; voting: all would keep the row"
            )
        question, discipline = text_of(record, "question"), slug(text_of(record, "discipline"))
        if not question or not discipline:
            return empty("discipline" if question else "question")
        options = _options(record.get("options"))
        if isinstance(options, Rejection):
            return options
        answer = text_of(record, "answer").upper()
        if answer not in options:
            return Rejection(
                reason="gold not among the options",
                detail=f"answer is {answer or 'empty'!r}, the options are {', '.join(options)}; correct it",
            )
        paper = text_of(record, "paper_id")
        return TaskExample(
            data_source=f"wildsci_{discipline}",
            prompt=f"{question}\n\n{option_lines(options)}\n\n{INSTRUCTION}",
            ground_truth=answer,
            label=answer,
            stable_id=paper,
            group=paper or question,
            extra={"discipline": text_of(record, "discipline"), "paper_id": paper},
        )


def _options(value: Any) -> dict[str, str] | Rejection:
    """Letter -> text, without the empty letters that a common schema adds; a CSV cell holds them as JSON."""
    if isinstance(value, str):
        value = json_or_none(value)
    if not isinstance(value, Mapping):
        return Rejection(
            reason="options unreadable", detail="options is not an object such as {'A': ..., 'B': ...}"
        )
    unknown = [str(letter) for letter in value if str(letter) not in LETTERS]
    if unknown:
        return Rejection(
            reason="options unreadable", detail=f"options has the key {unknown[0]!r}; keys are A to J"
        )
    options = {letter: str(value[letter]).strip() for letter in LETTERS if value.get(letter) is not None}
    return options_problem(options) or options
