"""Counterparts of the paper's tables for any searches, from their journals and series, as Markdown.

Results (Tables 1, 6, 7), cost (2, 3, 5), strategies (8 to 11), nodes (15 to 21), reversals of direction along
best strategies, capacity against regularization, and the audit of diagnoses. Single nodes have test scores if
the search measured them (`final.test: all`). Not here: figures (figures.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import short
from llmzero_ray.hyperparameters.compute import amount, token_cost, tokens_of
from llmzero_ray.hyperparameters.verl_keys import (
    CAPACITY,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RATIO,
    ENTROPY_COEFF,
    GRAD_CLIP,
    KL_LOSS_COEF,
    LR,
    TEMPERATURE,
    WEIGHT_DECAY,
)
from llmzero_ray.records.metrics import Score
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.audit import audit
from llmzero_ray.report.comparison import policies
from llmzero_ray.report.facts import SearchFacts, stop_reason
from llmzero_ray.report.summary import part_table, policy_table
from llmzero_ray.storage.metric_files import load_points

REGULARIZATION = {
    KL_LOSS_COEF: 1,
    LR: -1,
    WEIGHT_DECAY: 1,
    GRAD_CLIP: -1,
    CLIP_RATIO: -1,
    CLIP_LOW: -1,
    CLIP_HIGH: -1,
    ENTROPY_COEFF: 1,
    TEMPERATURE: 1,
}
"""Key -> direction (1 is up) that regularises the policy or keeps it exploring. The other group is
`CAPACITY`. Batch size is in neither. The paper's epochs correspond to the steps of phases here, which can
only grow."""


def paper_tables(searches: Sequence[SearchFacts]) -> str:
    """All tables, as Markdown."""
    named = dict(zip(labels(searches), searches, strict=True))
    parts: list[tuple[str, str]] = [
        ("Results", _each(named, _results)),
        ("What it took", _costs(named)),
        ("Best strategies", _each(named, _strategy)),
        ("Nodes", _each(named, _nodes)),
        ("Reversals along best strategies", _reversals(searches)),
        ("Capacity against regularization", _groups(named)),
        ("Audit of diagnoses", _audit(named)),
    ]
    return "\n\n".join(f"## {title}\n\n{text or 'Nothing to show.'}" for title, text in parts) + "\n"


def labels(searches: Sequence[SearchFacts]) -> list[str]:
    """Labels of the searches: their names, or their directories where names are equal."""
    names = [facts.config.name for facts in searches]
    places = [facts.paths.root.absolute() for facts in searches]
    found = [
        name if names.count(name) == 1 else f"{place.parent.parent.name}/{place.parent.name}/{place.name}"
        for name, place in zip(names, places, strict=True)
    ]
    return [
        label if found.count(label) == 1 else f"{label} ({number})"
        for number, label in enumerate(found, start=1)
    ]


def node_tests(facts: SearchFacts) -> dict[int, Score]:
    """Node -> test score of its best step, for nodes that were tested (all with `final.test: all`)."""
    return {
        job.node: job.measured
        for what, job in facts.core.final.jobs.items()
        if (what == "best" or what.startswith("node-")) and job.node is not None and job.measured is not None
    }


def _each(named: Mapping[str, SearchFacts], part: Callable[[SearchFacts], str]) -> str:
    return "\n\n".join(
        f"**{name}** ({facts.task.get('name', 'a task')})\n\n{part(facts) or 'Nothing to show.'}"
        for name, facts in named.items()
    )


def _results(facts: SearchFacts) -> str:
    known = policies(facts)
    return "\n\n".join(filter(None, (policy_table(known), part_table(known))))


def _costs(named: Mapping[str, SearchFacts]) -> str:
    """Table of compute relative to the first search (the paper's speed in ablations), and of calls to a
    language model."""
    used = [sum(compute_of(facts, run) for run in facts.runs.values()) for facts in named.values()]
    rows = []
    for (name, facts), whole in zip(named.items(), used, strict=True):
        core, settings = facts.core, facts.config.search
        best = next((policy for policy in policies(facts) if policy.what == "best"), None)
        ended = [run.outcome for run in facts.runs.values() if run.outcome is not None]
        stopped = sum(run.status == "early_stopped" for run in facts.runs.values())
        off = [
            part
            for part, on in (
                ("multi-stage", settings.multi_stage),
                ("early stopping", facts.config.stopper.enabled),
                ("pictures", facts.config.agents.visual),
            )
            if not on
        ]
        what = settings.method + (f" without {', '.join(off)}" if off else "")
        rows.append(
            (
                name,
                what,
                fmt.scored(None if best is None else best.test),
                str(len(ended)),
                str(stopped),
                str(sum(one.steps_done for one in ended)),
                f"{whole:.4g}",
                f"{whole / used[0]:.2f}" if used[0] else fmt.NONE,
                f"{core.gpu_hours:.2f}",
                str(core.n_calls),
                f"{core.dollars:.2f}",
            )
        )
    header = ("search", "method", "test", "runs", "stopped early", "steps", "compute", "to the first")
    return fmt.table((*header, "GPU hours", "model calls", "dollars"), rows, right=range(3, 11))


def _strategy(facts: SearchFacts) -> str:
    rows = []
    for phase in facts.path:
        kept = () if phase.run.outcome is None else phase.run.outcome.checkpoints
        score = next((one.val_score for one in kept if one.step == phase.cut), None)
        changed = "; ".join(fmt.change(one) for one in facts.changes(phase.run))
        changed = changed or ("the default recipe" if phase.number == 1 else "nothing: it continues")
        rows.append(
            (str(phase.number), str(phase.node), f"{phase.begin}-{phase.end}", fmt.accuracy(score), changed)
        )
    return fmt.table(("phase", "node", "steps", "validation at its end", "changed"), rows) if rows else ""


def _nodes(facts: SearchFacts) -> str:
    tests = node_tests(facts)
    rows = []
    for node, run in facts.runs.items():
        outcome = run.outcome
        source = None if run.spec is None else run.spec.resume_from
        ended = run.status if run.status == "completed" else f"{run.status}: {stop_reason(run)}"
        rows.append(
            (
                str(node) + ("*" if node in facts.path_nodes else ""),
                run.kind,
                "base model" if source is None else f"node {source.node} at {source.step}",
                "0" if outcome is None else str(outcome.steps_done),
                fmt.NONE if outcome is None else f"{outcome.gpu_hours:.3f}",
                f"{compute_of(facts, run):.4g}",
                fmt.accuracy(run.score),
                fmt.scored(tests.get(node)),
                fmt.cell(ended)[:90],
            )
        )
    header = ("node", "kind", "from", "steps", "GPU hours", "compute", "validation", "test", "ended")
    return fmt.table(header, rows, right=(3, 4, 5))


def compute_of(facts: SearchFacts, run: PhaseRun) -> float:
    """Compute of a phase, computed from its series, so that it exists even if the search did not count it."""
    if run.spec is None:
        return 0.0
    points, cost = load_points(facts.storage, run.node), token_cost(facts.config)
    return sum(amount(tokens_of(run.spec.hyperparameters, point.metrics), cost) for point in points)


def moves(facts: SearchFacts) -> list[tuple[str, list[int]]]:
    """(hyper-parameter, its directions from phase to phase along the best strategy: 1 up, -1 down)."""
    found: dict[str, list[int]] = {}
    for phase in facts.path[1:]:
        for key, direction in _moved(facts, phase.run):
            found.setdefault(key, []).append(direction)
    return list(found.items())


def _moved(facts: SearchFacts, run: PhaseRun) -> list[tuple[str, int]]:
    """(numeric hyper-parameter, direction in which a run changed it: 1 up, -1 down)."""
    return [
        (changed.key, 1 if changed.new > changed.old else -1)
        for changed in facts.changes(run)
        if isinstance(changed.old, int | float) and isinstance(changed.new, int | float)
    ]


def _reversals(searches: Sequence[SearchFacts]) -> str:
    """Table of directions along best strategies: of each hyper-parameter, then of the paper's two groups
    (whether capacity only grows, and whether regularization reverses)."""
    together: dict[str, list[tuple[int, list[int]]]] = {}
    for number, facts in enumerate(searches):
        for key, directions in moves(facts):
            together.setdefault(key, []).append((number, directions))
    rows = [
        _directions(short(key), _group(key), paths)
        for key, paths in sorted(together.items(), key=lambda item: short(item[0]))
    ]
    for name in ("capacity", "regularization"):
        paths = [one for key, found in together.items() if _group(key) == name for one in found]
        if paths:
            rows.append(_directions("all of them", name, paths))
    header = ("hyper-parameter", "group", "changes", "up", "down", "reversals", "strategies that reverse it")
    return fmt.table(header, rows, right=range(2, 6)) if rows else ""


def _directions(name: str, group: str, numbered: Sequence[tuple[int, Sequence[int]]]) -> tuple[str, ...]:
    """One row of that table. `numbered` pairs each path's directions with the number of its strategy."""
    paths = [path for _, path in numbered]
    turned = {number for number, path in numbered if any(a != b for a, b in pairwise(path))}
    return (
        name,
        group,
        str(sum(map(len, paths))),
        str(sum(direction > 0 for one in paths for direction in one)),
        str(sum(direction < 0 for one in paths for direction in one)),
        str(sum(a != b for one in paths for a, b in pairwise(one))),
        f"{len(turned)} of {len({number for number, _ in numbered})}",
    )


def _group(key: str) -> str:
    return "capacity" if key in CAPACITY else "regularization" if key in REGULARIZATION else ""


def _groups(named: Mapping[str, SearchFacts]) -> str:
    """Table of a best strategy's phases by the effect of their changes on the two groups."""
    rows = []
    for name, facts in named.items():
        for phase in facts.path[1:]:
            moved = _moved(facts, phase.run)
            words = [
                _word({group[key] * direction for key, direction in moved if key in group})
                for group in (dict.fromkeys(CAPACITY, 1), REGULARIZATION)
            ]
            rows.append((name, str(phase.number), *words))
    return fmt.table(("search", "phase", "capacity", "regularization"), rows) if rows else ""


def _word(signs: set[int]) -> str:
    """Word for the directions, as the group counts them, in which a run changed the group's keys."""
    return "unchanged" if not signs else "both ways" if len(signs) > 1 else "more" if 1 in signs else "less"


def _audit(named: Mapping[str, SearchFacts]) -> str:
    found = [(name, one) for name, facts in named.items() for one in audit(facts)]
    if not found:
        return ""
    wrong = [(name, one) for name, one in found if not one.agrees]
    text = f"{len(found)} statements were checked, {len(wrong)} disagree with the series or the changes."
    rows = [(name, str(one.node), str(one.on), one.stated, one.found) for name, one in wrong]
    header = ("search", "node", "diagnosed", "stated", "found")
    return f"{text}\n\n{fmt.table(header, rows)}" if rows else text
