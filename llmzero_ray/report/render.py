"""Renders the report and the adapter's card as Markdown, from the templates in this folder."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from llmzero_ray.hyperparameters import canonical
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report import phase_tables, summary
from llmzero_ray.report.comparison import comparisons, policies
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.front_matter import front_matter, missing
from llmzero_ray.utils import text
from llmzero_ray.utils.text import clean, collapse_whitespace

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's `--max-lora-rank` accepts."""


def report_text(facts: SearchFacts, problems: Collection[str], *, has_adapter: bool) -> str:
    """Text of report.md. `problems` are errors from writing other files. `has_adapter`: whether the best
    strategy's adapter is in best/."""
    known, compared = policies(facts), comparisons(facts)
    runs = facts.runs.values()
    failed = sum(run.status == "failed" for run in runs)
    values: dict[str, Any] = {
        "facts": facts,
        "config": facts.config,
        "budget": facts.config.budget,
        "core": facts.core,
        "problems": list(problems),
        "has_adapter": has_adapter,
        "end_reason": summary.end_in_words(facts),
        "policies": known,
        "result": summary.result_lines(facts, known, compared),
        "how_sure": summary.how_sure(facts, known, compared),
        "all_failed": bool(facts.finished_phases) and failed == facts.finished_phases,
        "problems_of_tests": [f"{policy.name}: {policy.problem}" for policy in known if policy.problem],
        "stopped": [run for run in runs if run.status == "early_stopped"],
    }
    return _render("report.md.j2", values)


def card_text(facts: SearchFacts, place: str = "best") -> str:
    """Text of best/README.md. The search must have a best strategy. The card's code loads the adapter from
    `place`: a folder or an id on the Hugging Face Hub. It has front matter if `huggingface_hub` is
    installed."""
    last, known = facts.path[-1], policies(facts)
    used = last.run.spec.hyperparameters if last.run.spec else {}
    rank = used.get(canonical("lora_rank"))
    has_test = any(policy.test for policy in known if policy.what == "best")
    values: dict[str, Any] = {
        "facts": facts,
        "config": facts.config,
        "last": last,
        "rank": rank,
        "alpha": used.get(canonical("lora_alpha")),
        "vllm_rank": _vllm_rank(rank) if isinstance(rank, int) else None,
        "policies": known,
        "compared": [
            c for c in comparisons(facts) if c.new.what == "best" and (c.split == "test" or not has_test)
        ],
        "confirmed": summary.confirmed_in_words(facts),
        "strategy_table": phase_tables.strategy_table(facts),
        "place": place,
        "end_reason": summary.end_in_words(facts),
        "n_failed": sum(run.status == "failed" for run in facts.runs.values()),
        "n_stopped": sum(run.status == "early_stopped" for run in facts.runs.values()),
    }
    head = "" if missing() else front_matter(facts) + "\n"
    return head + _render("card.md.j2", values)


def _vllm_rank(rank: int) -> int:
    """Smallest value of vLLM's `--max-lora-rank` for an adapter of this rank."""
    return next((accepted for accepted in VLLM_RANKS if accepted >= rank), rank)


def _render(template: str, values: Mapping[str, Any]) -> str:
    fence = secrets.token_hex(16)
    rendered: str = _environment().get_template(template).render(values, fence=fence)
    return inert(re.sub(r"\n{3,}", "\n\n", rendered).strip() + "\n", fence)


_OWN_LINKS = ("report.html", "strategy.yaml", "best/")
_OWN_LINK = "|".join(map(re.escape, _OWN_LINKS))
_LIVE = (
    (re.compile(r"<(?=[A-Za-z/!?])"), "&lt;"),
    (re.compile(rf"\](?=[\[:]|\((?!(?:{_OWN_LINK})\)))"), "&#93;"),
    (re.compile(r"(?i)(https?|ftp|mailto|xmpp):"), r"\1&#58;"),
    (re.compile(r"(?i)www\."), "www&#46;"),
    (re.compile("```"), "&#96;" * 3),
    (re.compile("~~~"), "&#126;" * 3),
)
"""Characters that start tags, links, images and code blocks in Markdown, with their escapes."""


def inert(markdown: str, fence: str) -> str:
    """Report with all text from agents, servers, rewards and tasks escaped: it has no control characters, and
    no tags, links, images or code blocks other than the report's own.

    The report's own code blocks are not escaped. They begin and end with a line of ``` and the secret
    `fence`, which is removed.
    """
    code, found = False, []
    for part in re.split(rf"(?m)^(```{fence}\w*)$", clean(markdown)):
        if part.startswith(f"```{fence}"):
            code = not code
            part = part.replace(fence, "")
        elif code:
            part = part.replace("```", "'''")
        else:
            for pattern, written in _LIVE:
                part = pattern.sub(written, part)
        found.append(part)
    return "".join(found)


@cache
def _environment() -> Any:
    """Jinja environment with the report's formats as filters and its tables as modules. Unknown names
    raise."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bullets": fmt.bullets,
        "change": fmt.change,
        "gain": fmt.gain,
        "one_line": collapse_whitespace,
        "plural": text.plural,
        "reading": summary.reading,
        "scored": fmt.scored,
    }
    environment.globals |= {
        "phases": phase_tables,
        "summary": summary,
        "table": fmt.table,
    }
    return environment
