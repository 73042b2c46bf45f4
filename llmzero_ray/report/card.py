"""best/README.md: the card of the winning adapter.

Not here: the adapter's files (best.py), the long story (report_text.py).
"""

from __future__ import annotations

from llmzero_ray.hyperparameters import canonical
from llmzero_ray.report import words
from llmzero_ray.report.comparison import Comparison, comparisons, policies
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.headline import reading, score_columns
from llmzero_ray.report.recipe import score_at

SAMPLING = ("temperature", "lr", "kl_loss_coef", "n", "max_response_length")
"""Hyper-parameters of the table, by their short names."""


def card_text(facts: SearchFacts) -> str:
    """The card; the search must have a best strategy."""
    last = facts.path[-1]
    title = f"# LoRA adapter of search `{facts.config.name}`, node {last.node}, step {last.cut}"
    return (
        "\n\n".join(
            [
                title,
                _what(facts),
                words.section("Scores", *_scores(facts)),
                words.section("Strategy", _strategy(facts)),
                words.section("Load it", _peft(facts), _vllm(facts)),
                words.section("Limits", _limits(facts)),
                words.section("Licence", _licence(facts)),
            ]
        )
        + "\n"
    )


def _what(facts: SearchFacts) -> str:
    last = facts.path[-1]
    hyperparameters = last.run.spec.hyperparameters if last.run.spec else {}
    rank, alpha = (hyperparameters.get(canonical(name)) for name in ("lora_rank", "lora_alpha"))
    rows = [
        ("base model", f"`{facts.base_model}`"),
        ("task", words.one_line(str(facts.task.get("name", "")))),
        ("adapter", f"LoRA, rank {rank}, alpha {alpha}, PEFT format"),
        (
            "trained with",
            f"GRPO (VeRL), {words.plural(len(facts.path), 'phase')}, {last.end} steps along the path",
        ),
    ]
    unfinished = (
        "\n\nThe search had not ended when this was written: it is the best so far."
        if facts.core.end_reason is None
        else ""
    )
    return words.table(("", ""), rows) + unfinished


def _scores(facts: SearchFacts) -> list[str]:
    header, rows = score_columns(policies(facts))
    told = [
        _sentence(c)
        for c in comparisons(facts)
        if c.new.what == "best" and (c.split == "test" or not _has_test(facts))
    ]
    noise = (
        "Accuracy of greedy answers, at most "
        f"{facts.config.eval.max_response_length} tokens long. ± is one standard error over the items; what "
        "another seed would change is not in it. The validation score chose this adapter among others and is "
        "too high on average."
    )
    return [words.table(header, rows), words.bullets(told), noise]


def _has_test(facts: SearchFacts) -> bool:
    return any(policy.test for policy in policies(facts) if policy.what == "best")


def _sentence(compared: Comparison) -> str:
    difference = compared.sharpest
    how = "item by item" if difference.paired else "as independent scores"
    gain = f"{words.gain(difference)} ({how}), {reading(difference)}"
    return f"{compared.split}: over the {compared.old.name} {gain}"


def _strategy(facts: SearchFacts) -> str:
    header = ("phase", "global steps", *SAMPLING, "validation at its end")
    rows = []
    for phase in facts.path:
        used = phase.run.spec.hyperparameters if phase.run.spec else {}
        shown = [words.value(canonical(name), used.get(canonical(name))) for name in SAMPLING]
        steps = f"{phase.begin}–{phase.end}"
        rows.append((str(phase.number), steps, *shown, words.accuracy(score_at(facts, phase))))
    return (
        words.table(header, rows, right=(0,))
        + "\n\nEvery hyper-parameter, with the reasons for each change, is in `strategy.yaml` of the search."
    )


def _peft(facts: SearchFacts) -> str:
    return f"""```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = "{facts.base_model}"
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), "best")  # this folder
tokenizer = AutoTokenizer.from_pretrained(base)
```"""


def _vllm(facts: SearchFacts) -> str:
    last = facts.path[-1].run
    rank = last.spec.hyperparameters.get(canonical("lora_rank")) if last.spec else None
    room = f" --max-lora-rank {_vllm_rank(rank)}" if isinstance(rank, int) else ""
    return (
        "Served with vLLM, from the folder that holds `best/`:\n\n"
        f"```bash\nvllm serve {facts.base_model} --enable-lora{room} --lora-modules "
        f"{facts.config.name}=best\n```"
    )


VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _vllm_rank(rank: int) -> int:
    """The smallest rank that vLLM's option accepts for an adapter of this rank."""
    return next((accepted for accepted in VLLM_RANKS if accepted >= rank), rank)


def _limits(facts: SearchFacts) -> str:
    sources = ", ".join(map(str, facts.task.get("data_sources", ()))) or "the task's own data"
    longest = facts.config.engine.max_prompt_length
    return words.bullets(
        [
            f"Trained and scored on one task ({sources}) alone; nothing is known of it elsewhere, and skills "
            "of the base model may have suffered.",
            f"Prompts of at most {longest} tokens in the task's own format, with the base model's chat "
            "template; answers are judged by the task's reward, which need not see everything a reader would "
            "mind.",
            "One training run: another seed may end elsewhere.",
            "`checksums.sha256` holds the SHA-256 of the adapter's files (`sha256sum -c checksums.sha256`).",
        ]
    )


def _licence(facts: SearchFacts) -> str:
    licence = facts.task.get("licence")
    data = (
        f"The task's data: {words.one_line(str(licence))}."
        if licence
        else "The task names no licence of its data."
    )
    return f"{data} The adapter is bound to the licence of its base model as well."
