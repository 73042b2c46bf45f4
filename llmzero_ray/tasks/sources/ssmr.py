"""SSMR-Bench, textual half: questions on sheet music in ABC notation, four options, four subtasks.

The options are put into an order that depends on the row's content alone. Files with "visual" in their names
are left out. Source: Wang et al. 2025, arXiv 2509.04059; data Sylence/SSMR-Bench on the Hugging Face hub.
"""

from __future__ import annotations

import random

from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.tasks.sources.base import (
    DatasetAdapter,
    Record,
    Rejection,
    TaskExample,
    empty,
    option_lines,
    options_problem,
    text_of,
)
from llmzero_ray.utils.files import text_digest

INSTRUCTION = (
    "Please read the following questions and select the best option from the four choices (A, B, C, and D). "
    "Mark your answer inside the \\boxed{} (e.g., \\boxed{A})."
)
LETTERS = "ABCD"
SUBTASK_OF_CLASS = {
    "BarLinePlacement": "beat",
    "TimeSignature": "beat",
    "ChordIdentification": "chord",
    "ChordKeyRoot": "chord",
    "ChordsCompletion": "chord",
    "IntervalNumber": "interval",
    "NoteCompletionByInterval": "interval",
    "ScaleIdentification": "scale",
    "ScaleSelection": "scale",
}
_SUBTASK_OF_CATEGORY = {
    "beat": "beat",
    "rhythm": "beat",
    "chord": "chord",
    "interval": "interval",
    "scale": "scale",
}
_ANSWERS = ("correct_answer", "incorrect_answer1", "incorrect_answer2", "incorrect_answer3")


class SSMR(DatasetAdapter):
    """Music theory. `class_name` names the subtask, or `category` if the class is unknown."""

    name = "ssmr"
    licence = "MIT"
    ability = "music"
    required = ("class_name", "question", "abc_context", *_ANSWERS, "category")
    optional = ("difficulty",)
    reward = RewardEntry(module="llmzero_ray.tasks.rewards.ssmr", gold_response="\\boxed{{answer}}")

    def wants(self, name: str) -> bool:
        """All but the half with images."""
        return "visual" not in name.lower()

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:  # noqa: ARG002
        """One question; the letter of the right option is drawn from a hash of the row."""
        subtask = _subtask(record)
        if subtask is None:
            return Rejection(
                reason="unknown subtask",
                detail=f"class_name {text_of(record, 'class_name')!r} and category "
                f"{text_of(record, 'category')!r} name no subtask; classes known: "
                f"{', '.join(SUBTASK_OF_CLASS)}",
            )
        question = text_of(record, "question")
        if not question:
            return empty("question")
        texts = [_decoded(text_of(record, column)) for column in _ANSWERS]
        if problem := options_problem(dict(zip(_ANSWERS, texts, strict=True))):
            return problem
        music = _decoded(text_of(record, "abc_context"))
        correct = texts[0]
        seed = int(text_digest("|".join([question, music, *texts])), 16)
        random.Random(seed).shuffle(texts)
        options = dict(zip(LETTERS, texts, strict=True))
        letter = LETTERS[texts.index(correct)]
        parts = [INSTRUCTION, question, *([music] if music else []), option_lines(options)]
        return TaskExample(
            data_source=f"ssmr_{subtask}",
            prompt="\n".join(parts),
            ground_truth=letter,
            label=letter,
            # The same question with other wrong options is still the same question.
            group=f"{question}|{music}|{correct}",
            extra={
                "class_name": text_of(record, "class_name"),
                "difficulty": text_of(record, "difficulty"),
            },
        )


def _subtask(record: Record) -> str | None:
    known = SUBTASK_OF_CLASS.get(text_of(record, "class_name"))
    return known or _SUBTASK_OF_CATEGORY.get(text_of(record, "category").lower().partition("-")[0])


def _decoded(text: str) -> str:
    """ABC notation with real line breaks: the published files hold a backslash and an n."""
    return text.replace("\\n", "\n").strip()
