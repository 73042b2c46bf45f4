"""Front matter of the adapter's card: YAML that the Hugging Face Hub reads, made with `huggingface_hub`."""

from __future__ import annotations

import re
from typing import Any

from llmzero_ray.report.comparison import policies
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.utils.plugins import import_problem
from llmzero_ray.utils.text import one_line

TAGS = ("lora", "grpo", "reinforcement-learning", "llmzero", "verl")


def front_matter(facts: SearchFacts) -> str:
    """Front matter between two lines of `---`, with base model, library, tags and known scores.

    Raises:
        ImportError: `huggingface_hub` is not installed.
    """
    import huggingface_hub

    data = huggingface_hub.ModelCardData(
        base_model=facts.base_model_id,
        base_model_relation="adapter" if facts.base_model_id else None,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=list(TAGS),
        metrics=["accuracy"],
        model_name=one_line(facts.config.name),
        eval_results=_eval_results(facts) or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def missing() -> str:
    """Reason why a card cannot have front matter. Empty if it can."""
    problem = import_problem("huggingface_hub")
    return problem and (
        f"best/README.md: it has no front matter, as huggingface_hub {problem}; `pip install "
        "'llmzero-ray[report]'`, then write it again"
    )


def _eval_results(facts: SearchFacts) -> list[Any]:
    """Test score and score on fresh items. If there is neither, the validation score, although it chose the
    adapter."""
    best = next((policy for policy in policies(facts) if policy.what == "best"), None)
    final = facts.core.final.confirmation
    scores = [
        ("test", None if best is None else best.test),
        ("confirmation", None if final is None else final.measured),
    ]
    if not any(score for _, score in scores):
        scores = [("validation", None if best is None else best.validation)]
    return [_result(facts, split, score) for split, score in scores if score is not None]


def _result(facts: SearchFacts, split: str, score: Any) -> Any:
    from huggingface_hub import EvalResult

    # Viewers that do not know front matter show it as Markdown.
    name = re.sub(r"[^\w ./+-]", "_", one_line(str(facts.task.get("name") or "task")))
    sure = "" if score.standard_error is None else f", ± {score.standard_error:.4f}"
    items = "" if score.n is None else f", {score.n} items"
    return EvalResult(
        task_type="text-generation",
        dataset_type=name,
        dataset_name=name,
        dataset_split=split,
        metric_type="accuracy",
        metric_name=f"accuracy of greedy answers{sure}{items}",
        metric_value=round(score.mean, 4),
    )
