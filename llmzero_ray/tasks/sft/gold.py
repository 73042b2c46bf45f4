"""The examples of a prepared task: each row's prompt with its gold response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import gold_response
from llmzero_ray.prepared.manifest import Manifest
from llmzero_ray.prepared.reward_validation import GoldResponse
from llmzero_ray.tasks.sft.examples import Demonstration
from llmzero_ray.tasks.shipped_rewards import GOLD_FORMS, KINDS

_FORMS = {KINDS[kind]: form for kind, form in GOLD_FORMS.items()}


def gold_responses(manifest: Manifest) -> GoldResponse:
    """Form of a task's right answers: the task's own, or the known form of its reward.

    Raises:
        TaskError: neither is known.
    """
    module = manifest.reward.module or ""
    template = manifest.gate.gold_response if manifest.gate else manifest.reward.gold_response
    template = template or _FORMS.get(module)
    if template is not None:
        return lambda _source, truth: gold_response(template, truth)
    known = _of_data_sets().get(module)
    if known is None:
        raise TaskError(
            f"task {manifest.name or manifest.reward.path or module}: it is not known how a right response "
            "is written, so that there is nothing to learn. Name its form, such as "
            "'<answer>{answer}</answer>', as reward.gold_response in the task's manifest.json."
        )
    return known


def demonstrations(rows: Sequence[Mapping[str, Any]], gold: GoldResponse) -> list[Demonstration]:
    """Prompt and gold response of the rows of a split that have one."""
    golds = [gold(row["data_source"], row["reward_model"]["ground_truth"]) for row in rows]
    return [(row["prompt"], gold) for row, gold in zip(rows, golds, strict=True) if gold is not None]


def _of_data_sets() -> dict[str, GoldResponse]:
    """Reward module -> function that gives right answers, for rewards whose form differs from row to row."""
    from llmzero_ray.tasks.sources.chemcot import ChemCoT
    from llmzero_ray.tasks.sources.papersearchqa import PaperSearchQA
    from llmzero_ray.tasks.sources.reasoning_gym import GymTask

    adapters = (ChemCoT(), PaperSearchQA(), GymTask("any", {}, 0))
    return {str(adapter.reward.module): adapter.gold_response for adapter in adapters}
