"""report.md: the outcome of a search, for people. Its sections in their order, and nothing else.

Not here: the sections (headline.py, tree_text.py, phases_text.py, events_text.py, costs_text.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from llmzero_ray.report import words
from llmzero_ray.report.costs_text import costs_section
from llmzero_ray.report.events_text import decisions_section, early_stops_section, failures_section
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.headline import headline
from llmzero_ray.report.phases_text import metrics_section, others_section, strategy_section
from llmzero_ray.report.pictures import CURVES, RECIPE, SCORES, TREE, Picture
from llmzero_ray.report.tree_text import tree_section


def report_text(facts: SearchFacts, drawn: Collection[Picture], problems: Collection[str]) -> str:
    """The whole report; `drawn` are the pictures that exist, `problems` what could not be written."""
    sections = (
        headline(facts),
        words.section("What this report goes without", words.bullets(problems)) if problems else "",
        _pictures(drawn, SCORES),
        strategy_section(facts, _pictures(drawn, CURVES, RECIPE)),
        tree_section(facts, _pictures(drawn, TREE)),
        others_section(facts),
        early_stops_section(facts),
        failures_section(facts),
        decisions_section(facts),
        costs_section(facts),
        metrics_section(facts),
        _software(facts.versions),
    )
    return "\n\n".join(part for part in sections if part) + "\n"


def _pictures(drawn: Collection[Picture], *wanted: Picture) -> str:
    told = [
        f"![{picture.title}]({picture.file})\n\n*{picture.caption}*" for picture in wanted if picture in drawn
    ]
    return "\n\n".join(told)


def _software(versions: Mapping[str, str]) -> str:
    rows = [(name, version) for name, version in versions.items()]
    return words.section("Software", words.table(("package", "version"), rows) if rows else "")
