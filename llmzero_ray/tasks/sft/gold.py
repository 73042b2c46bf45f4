"""The examples of a prepared task: each row's prompt with its gold response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import gold_response
from llmzero_ray.prepared.manifest import Manifest
from llmzero_ray.prepared.reward_validation import GoldResponse
from llmzero_ray.tasks.sft.examples import SftExample
from llmzero_ray.tasks.shipped_rewards import GOLD_FORMS, KINDS

NO_GOLD = "no gold answer"
NO_RATIONALE = "no rationale"
_FORMS = {KINDS[kind]: form for kind, form in GOLD_FORMS.items()}


def gold_responses(manifest: Manifest, form: str | None) -> GoldResponse:
    """Form of a task's right answers: `form`, or the task's own, or the known form of its reward.

    Raises:
        TaskError: none of these is known.
    """
    template = form or (manifest.gate.gold_response if manifest.gate else None)
    template = template or manifest.reward.gold_response or _FORMS.get(manifest.reward.module or "")
    if template is not None:
        return lambda _source, truth: gold_response(template, truth)
    known = _of_data_sets().get(manifest.reward.module or "")
    if known is None:
        raise TaskError(
            f"task {manifest.name or manifest.reward.path or manifest.reward.module}: it is not known how a "
            "right response is written, so that there is nothing to learn. Name its form in the "
            "configuration, such as gold_response: '<answer>{answer}</answer>', or as reward.gold_response "
            "in the task's manifest.json."
        )
    return known


def read_examples(
    path: str | Path, gold: GoldResponse, rationale: str | None
) -> tuple[list[SftExample], Counter[str]]:
    """Examples of a split's parquet file in its order, and the number of rows without one, by reason.

    Raises:
        TaskError: there is no column or key of the rationale's name.
    """
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    extra = [rationale] if rationale in file.schema_arrow.names else []
    columns = ["data_source", "prompt", "reward_model", "extra_info", *extra]
    rows = file.read(columns=columns).to_pylist()
    held = rows[0].get("extra_info") or {}
    if rationale is not None and not extra and rationale not in held:
        raise TaskError(
            f"{path} has no rationale {rationale!r}; its columns: {', '.join(file.schema_arrow.names)}; keys "
            f"of extra_info: {', '.join(held) or 'none'}. Correct rationale, or leave it out."
        )
    examples, dropped = list[SftExample](), Counter[str]()
    for row in rows:
        answer = gold(row["data_source"], row["reward_model"]["ground_truth"])
        reason = _text(row, rationale) if rationale is not None else ""
        if answer is None or reason is None:
            dropped[NO_GOLD if answer is None else NO_RATIONALE] += 1
            continue
        messages = tuple({"role": each["role"], "content": each["content"]} for each in row["prompt"])
        response = f"{reason}\n{answer}" if reason else answer
        examples.append(SftExample(messages=messages, response=response))
    return examples, dropped


def _text(row: Mapping[str, Any], rationale: str) -> str | None:
    """Rationale of a row, trimmed. None if it is empty."""
    found = row[rationale] if rationale in row else (row.get("extra_info") or {}).get(rationale)
    return (str(found).strip() or None) if found is not None else None


def _of_data_sets() -> dict[str, GoldResponse]:
    """Functions that give right answers where the form differs from row to row, by the module of the
    reward."""
    from llmzero_ray.tasks.sources.chemcot import ChemCoT
    from llmzero_ray.tasks.sources.papersearchqa import PaperSearchQA
    from llmzero_ray.tasks.sources.reasoning_gym import GymTask

    adapters = (ChemCoT(), PaperSearchQA(), GymTask("any", {}, 0))
    return {str(adapter.reward.module): adapter.gold_response for adapter in adapters}
