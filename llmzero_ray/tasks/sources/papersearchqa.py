"""PaperSearchQA: short biomedical questions with several accepted wordings of the answer.

Asked without a search engine: the model answers from memory, step by step or at once. Its test split is the
only origin of test rows. Source: Burgess et al. 2026, arXiv 2601.18207; data jmhb/PaperSearchQA on the
Hugging Face hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.tasks.sources.base import DatasetAdapter, Record, Rejection, TaskExample, empty, text_of
from llmzero_ray.utils.text import json_or_none

PROMPTS = {
    "cot": "Answer the biomedical question below. Think step by step, then give the final answer, a single "
    "entity, fact or short phrase, between <answer> and </answer>.",
    "direct": "Answer the biomedical question below at once, without any reasoning: only a single entity, "
    "fact or short phrase, between <answer> and </answer>.",
}
_MAX_DEPTH = 4


class PaperSearchQA(DatasetAdapter):
    """`prompt`: `cot` asks for reasoning before the answer, `direct` for the answer alone."""

    name = "papersearchqa"
    licence = "MIT"
    ability = "biomedical_qa"
    required = ("question", "answer", "golden_answers", "pmid")
    optional = ("question_original", "is_paraphrased", "cat_num", "cat", "paper_title", "raw_response")
    reward = RewardEntry(module="llmzero_ray.tasks.rewards.papersearchqa")

    def __init__(self, prompt: str = "cot") -> None:
        if prompt not in PROMPTS:
            raise TaskError(f"papersearchqa: prompt is {prompt!r}; must be one of {', '.join(PROMPTS)}")
        self._prompt = prompt

    def options(self) -> dict[str, Any]:
        """The style of the prompt."""
        return {"prompt": self._prompt}

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:  # noqa: ARG002
        """Question with its accepted wordings, `answer` first."""
        question = text_of(record, "question")
        if not question:
            return empty("question")
        wordings = [text_of(record, "answer"), *_flat(record.get("golden_answers"), _MAX_DEPTH)]
        targets = list(dict.fromkeys(wording for wording in wordings if wording))
        if not targets:
            return Rejection(
                reason="no gold answer", detail="answer and golden_answers are empty; fill one of them"
            )
        pmid = text_of(record, "pmid")
        return TaskExample(
            data_source=self.name,
            prompt=f"{PROMPTS[self._prompt]}\n\nQuestion: {question}",
            ground_truth=json.dumps({"target": targets}, ensure_ascii=False),
            label=targets[0].lower(),
            stable_id=pmid,
            group=pmid,
            extra={
                "cat": text_of(record, "cat"),
                "pmid": pmid,
                "is_paraphrased": text_of(record, "is_paraphrased").lower() in ("true", "1"),
            },
        )

    def gold_response(self, data_source: str, ground_truth: str) -> str | None:  # noqa: ARG002
        """First wording, in the answer tags."""
        return f"<answer>{json.loads(ground_truth)['target'][0]}</answer>"


def _flat(value: Any, depth: int) -> list[str]:
    """All texts in lists and objects. A list may be JSON text, as in a CSV file."""
    if isinstance(value, str):
        text = value.strip()
        held = json_or_none(text) if text.startswith("[") and depth else None
        return [text] if held is None else _flat(held, depth - 1)
    if depth == 0 or value is None:
        return []
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for part in value for text in _flat(part, depth - 1)]
    return [str(value)]
