"""The commands `show`, `diff` and `report`: contents of searches, read from their directories only.

Not here: the list of searches (listing.py), a running search (status.py), the tables and the
report's text (report/).
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from llmzero_ray.agents.llm.recorded import recorded_calls
from llmzero_ray.cli import options
from llmzero_ray.cli.grammar import ONLY
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.config.changes import differing_keys
from llmzero_ray.coordinator import run_of
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import diff as differences
from llmzero_ray.hyperparameters import format_value, short
from llmzero_ray.records import Hyperparameters
from llmzero_ray.report import write_outcome
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.tables import change_rows, node_row
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find
from llmzero_ray.utils.text import clean

_NONE = "–"


# --- show ---------------------------------------------------------------------------------------------------


def show(
    search: options.Search,
    node: options.Node,
    *,
    as_json: options.AsJson = False,
    request: Annotated[
        bool, typer.Option("--request", help="print what the language model that planned it was asked")
    ] = False,
    storage: options.Storage = "runs",
) -> int:
    """Show one node: where it starts, what it changes and why, how it went."""
    place, number = options.find_node(search, node, storage)
    if request:
        print_lines(TerminalConsole(), _request_texts(place, number))
        return 0
    console, found = TerminalConsole(), node_facts(SearchFacts(place), number)
    if as_json:
        print_line(console, json.dumps(found, indent=2))
        return 0
    print_lines(console, _node_lines(found))
    return 0


def node_facts(facts: SearchFacts, node: int) -> dict[str, Any]:
    """One node as plain data: its row, its changes, its validations by global step.

    Raises:
        ConfigError: there is no such node.
    """
    run = _run(facts, node)
    row = node_row(facts, run)
    curves = facts.curves(node)
    start = facts.start_score(run)
    first = [] if start is None else [(0, start)]
    taken = facts.start_from(run)
    scores = [*first, *zip(curves.val_steps, curves.val_scores, strict=True)]
    return {
        "search": facts.name,
        **row,
        "hyperparameters": None if row["hyperparameters"] is None else json.loads(row["hyperparameters"]),
        "note": run.note,
        "doubts": list(run.doubts or ()),
        "changes": [
            {**change, "old": json.loads(change["old"]), "new": json.loads(change["new"])}
            for change in change_rows(facts, [node])
        ],
        "start_from": None if taken is None else dataclasses.asdict(taken),
        "validations": [{"global_step": run.base_step + step, "score": score} for step, score in scores],
    }


def _request_texts(place: SearchStorage, node: int) -> list[str]:
    """System text, user texts and refusals of the last call that planned a node."""
    calls = recorded_calls(place.paths.agents(node)).values()
    planned = [call for call in calls if call["agent"] != "early_stopper"]
    if not planned:
        raise ConfigError(
            f"node {node} has no recorded request: no language model planned it, or its record in "
            f"{place.paths.agents(node)} is gone."
        )
    refusals = [turn["reason"] for turn in planned[-1].get("refused", ())]
    return [clean(text) for text in (*planned[-1]["system"], *planned[-1]["user"], *refusals)]


def _run(facts: SearchFacts, node: int) -> PhaseRun:
    return run_of(facts.runs, node, facts.name)


def _node_lines(found: Mapping[str, Any]) -> Iterable[str]:
    mark = ", in the best strategy" if found["in_strategy"] else ""
    yield f"{found['search']}, node {found['node']}: {found['kind']}, {found['status']}{mark}"
    start = "the base model"
    if found["resume_node"] is not None:
        start = f"node {found['resume_node']}, step {found['resume_step']} (global step {found['base_step']})"
    yield f"starts from    {start}"
    done = _NONE if found["steps_done"] is None else found["steps_done"]
    yield f"steps          {done} of {found['n_steps']}"
    if found["score"] is not None:
        yield f"best           {found['score']:.4f} at global step {found['global_step']}"
    points = ", ".join(f"{point['score']:.4f}@{point['global_step']}" for point in found["validations"])
    yield f"validations    {points or _NONE}"
    if (taken := found["start_from"]) is not None:
        yield f"               the first as measured at node {taken['node']}, step {taken['step']}"
    if found["ended_by"]:
        yield f"ended by       {found['ended_by']}"
    for doubt in found["doubts"]:
        yield f"in doubt       {doubt}"
    for name in ("diagnosis", "rationale", "note"):
        if found[name]:
            yield f"{name:<14} {found[name]}"
    for change in found["changes"]:
        key = change["key"]
        old, new = (format_value(key, change[name]) for name in ("old", "new"))
        yield f"changed        {short(key)} {old} → {new}: {change['reason']}"


# --- diff ---------------------------------------------------------------------------------------------------


def diff(
    names: Annotated[
        list[str], typer.Argument(metavar="A B", help="nodes, such as demo:0 demo:3 or 0 3; or two searches")
    ],
    *,
    as_json: options.AsJson = False,
    storage: options.Storage = "runs",
) -> int:
    """Compare the configurations of two nodes, or of two searches, and their scores."""
    of_both, (one, other) = (names[0], names[1:]) if len(names) == 3 else (ONLY, _two(names))
    a, a_node = _named(one, storage, of_both)
    b, b_node = _named(other, storage, one.rpartition(":")[0] or of_both)
    if (a_node is None) != (b_node is None):
        raise ConfigError(f"{one} and {other}: name two searches, or a node of each, such as demo:0 demo:3.")
    changed: Mapping[str, Sequence[Any]]
    if a_node is None or b_node is None:
        changed = differing_keys(a.config, b.config)
        scores = [None if best is None else best.score for best in (a.best, b.best)]
    else:
        before, after = (_hyperparameters(facts, node) for facts, node in ((a, a_node), (b, b_node)))
        changed = differences(before, after)
        scores = [_run(a, a_node).score, _run(b, b_node).score]
    console = TerminalConsole()
    if as_json:
        body = {"a": one, "b": other, "scores": scores, "changed": {k: list(v) for k, v in changed.items()}}
        print_line(console, json.dumps(body, indent=2))
        return 0
    print_line(console, f"{one} → {other}")
    for key, (old, new) in changed.items():
        if a_node is None:
            name, was, now = key, *(one if isinstance(one, str) else json.dumps(one) for one in (old, new))
        else:
            name, was, now = short(key), *(format_value(key, value) for value in (old, new))
        print_line(console, f"  {name}  {was} → {now}")
    if not changed:
        print_line(console, "  the same configuration")
    texts = [_NONE if score is None else f"{score:.4f}" for score in scores]
    print_line(console, f"best validation  {texts[0]} → {texts[1]}")
    return 0


def _hyperparameters(facts: SearchFacts, node: int) -> Hyperparameters:
    spec = _run(facts, node).spec
    if spec is None:
        raise ConfigError(f"{facts.name}:{node} has no configuration yet: its phase is not planned.")
    return spec.hyperparameters


def _two(names: list[str]) -> list[str]:
    if len(names) != 2:
        raise ConfigError(
            f"diff compares two nodes or two searches, such as demo:0 demo:3; given: {' '.join(names)}."
        )
    return names


def _named(name: str, storage: str, search: str) -> tuple[SearchFacts, int | None]:
    place, node = options.find_named(name, storage, search)
    return SearchFacts(place), node


# --- report -------------------------------------------------------------------------------------------------


def report(search: options.Search, *, storage: options.Storage = "runs") -> int:
    """Write report.md, report.html, strategy.yaml and best/ again, for the current state."""
    console, place = TerminalConsole(), find(search, storage)
    if console.is_terminal:
        print_line(console, f"writing report and strategy of {place.name} ...")
    outcome = write_outcome(place)
    for path in outcome.files:
        print_line(console, str(path))
    for problem in outcome.problems:
        print_line(console, f"not written: {problem}")
    for path in outcome.files:
        if path.suffix == ".html":
            root = shlex.quote(str(path.parent))
            print_line(console, f"open in a browser: {path.as_uri()} (or `llmzero ui {root}`)")
    return 0
