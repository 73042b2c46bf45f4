"""view.json: all that the page of a search shows, as plain data, from the facts of its report.

The same journal gives the same view, except for what `Live` adds: the clock, the running processes, and what
needs a person. Scores stay numbers; tables and sentences are those of report.md.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llmzero_ray.agents.knowledge import metric_label
from llmzero_ray.cli.event_text import approval_texts, event_line
from llmzero_ray.cli.explain import BOUNDS
from llmzero_ray.cli.results import node_facts
from llmzero_ray.coordinator.budget import budget_limits, time_left
from llmzero_ray.coordinator.follow import RunStatus
from llmzero_ray.coordinator.proposals import waiting
from llmzero_ray.coordinator.replay import DecisionRow, decision_row
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import diff, format_value, short
from llmzero_ray.journal import active_seconds
from llmzero_ray.records import PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import NodeView
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves, Score, score_without_items
from llmzero_ray.records.metrics import series as curve
from llmzero_ray.records.significance import score_interval
from llmzero_ray.report import phase_tables, summary
from llmzero_ray.report.best_strategy import score_at
from llmzero_ray.report.comparison import comparisons, policies
from llmzero_ray.report.costs import (
    Costs,
    Stay,
    account_table,
    all_stays,
    call_table,
    cold_reason,
    costs,
    median_setups,
    phase_table,
)
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.formatting import TextTable
from llmzero_ray.stopping.request import saving_text
from llmzero_ray.stopping.signals import annotate
from llmzero_ray.storage.locate import renamed
from llmzero_ray.utils.text import number, plural, short_duration

FORMAT = 1
_POINTS, _ALL_POINTS, _FEWEST = 300, 2250, 40
"""Maximum points of one series, of one metric over all nodes, and the smallest limit for one series."""
_FEED = 300
"""Maximum events in the feed, the newest ones."""
_BUDGETS = {
    "runs": "runs",
    "gpu_hours": "GPU hours",
    "wall_clock": "hours",
    "dollars": "dollars",
    "compute": "compute",
}
_IDLE_S = 120.0
"""Seconds after which an idle slot needs a person."""
_NEAR = 0.9
"""Share of the dollar budget from which on a person is told."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """Facts about a search at one moment that are not in its journal."""

    now: float
    """Unix seconds."""
    status: RunStatus
    steering: bool
    """Whether the page may send requests."""


def view(facts: SearchFacts, live: Live | None = None) -> dict[str, Any]:
    """Data of the page of a search that has started, as JSON values."""
    known, compared = policies(facts), comparisons(facts)
    sure = summary.how_sure(facts, known, compared)
    stays = all_stays(facts)
    account = costs(facts)
    calls = [event for event in facts.events if isinstance(event, ev.AgentCalled)]
    decisions = [decision_row(check, facts.nodes) for check in facts.decisions()]
    judged = [run for run in facts.runs.values() if run.verdicts]
    tables = {
        "scores": summary.score_table(known),
        "differences": summary.difference_table(compared),
        "parts": summary.part_table(known),
        "confirmed": summary.confirm_table(facts),
        "node_tests": summary.node_test_table(facts),
        "verdicts": phase_tables.verdict_table(judged),
        "failures": phase_tables.failure_table(facts),
        "decisions": phase_tables.decision_table(decisions),
        "account": account_table(account),
        "phases": phase_table(facts),
        "calls": call_table(calls) if calls else "",
        "metrics": phase_tables.meaning_table(phase_tables.shown_notes(facts)),
    }
    whys = {row.node: row.reason for row in decisions}
    points = points_for(len(facts.runs))
    left = live is not None and live.status.stage == "interrupted"  # no coordinator runs, so nothing is spent
    now = facts.core.now if live is None or left else live.now
    budgets = _budgets(facts, now)
    return {
        "format": FORMAT,
        "name": facts.name,
        "task": str(facts.task.get("name", "")),
        "model": facts.base_model_name,
        "stage": facts.core.stage if live is None else live.status.stage,
        "sentence": _state_sentence(facts),
        "verdict": summary.result_lines(facts, known, compared),
        "how_sure": [line for line in (summary.unscored(facts, known), *sure) if line],
        "policies": [_policy(policy) for policy in known],
        "budgets": budgets,
        "left_s": None if live is None or left else _time_left(facts, now),
        "needs": [] if live is None else list(_needs(facts, stays, budgets, live)),
        "live": None if live is None else {**asdict(live), "status": asdict(live.status)},
        "nodes": [_node(facts, run, stays, whys, left=left) for run in facts.runs.values()],
        "reference": _reference(facts),
        "default": dict(facts.default),
        "short": {key: short(key) for key in facts.default},
        "series": {str(node): facts.from_curves(node, series, points) for node in facts.runs},
        "labels": {name: metric_label(name) for name in phase_tables.SHOWN},
        "strategy": [
            {"node": phase.node, "begin": phase.begin, "end": phase.end, "score": score_at(facts, phase)}
            for phase in facts.path
        ],
        "progress": _progress(facts),
        "begun": facts.events[0].time,
        "slots": [asdict(stay) for stay in stays],
        "feed": list(_feed(facts)),
        "tables": {
            name: {"header": made.header, "rows": made.rows}
            for name, made in tables.items()
            if isinstance(made, TextTable)
        },
        "notes": {
            "decisions": _decided(decisions),
            "account": _started(account),
        },
        "losses": list(phase_tables.losses(facts)),
        "on_cpu": account.on_cpu,
        "versions": dict(facts.versions),
        "config": facts.config.to_json(),
    }


def _decided(decisions: Sequence[DecisionRow]) -> str:
    """Number of decisions, and how many of them the rules of this version would make differently."""
    differing = sum(bool(row.differences) for row in decisions)
    same = f"{differing} of them come out differently" if differing else "all of them come out the same"
    return (
        f"{plural(len(decisions), 'decision')}: {phase_tables.counted_actions(decisions)}. Replayed through "
        f"the rules of this version, {same}. {BOUNDS}"
    )


def _started(account: Costs) -> str:
    """Number of warm and cold starts, as a sentence."""
    setups = median_setups(account)
    return f"{account.warm} of {plural(account.phases, 'phase')} started warm, {account.cold} cold" + (
        f" (median set-up {setups})." if setups else "."
    )


def _state_sentence(facts: SearchFacts) -> str:
    """State of the search as a sentence, with the reason if it has ended."""
    done = f"{facts.finished_phases} of at most {plural(facts.config.budget.runs, 'run')}"
    if facts.core.end_reason is not None:
        more = " Its final measurements are not complete yet." if facts.core.stage == "measuring" else ""
        return f"The search ended because {summary.end_in_words(facts)} ({done}).{more}"
    return " ".join(
        (f"Not finished: {done} have ended. This is the best so far.", *approval_texts(facts.core))
    )


def _score(score: Score | None) -> dict[str, Any] | None:
    """A score with its error and 95 % interval."""
    return None if score is None else {**asdict(score), "interval": score_interval(score)}


def _policy(policy: Any) -> dict[str, Any]:
    return {
        "what": policy.what,
        "name": policy.name,
        "steps": policy.steps,
        "validation": _score(policy.validation),
        "test": _score(policy.test),
    }


# --- nodes --------------------------------------------------------------------------------------------------


def _error(facts: SearchFacts, run: PhaseRun, global_step: int, score: float) -> float | None:
    """Standard error of one validation. Items of a phase that still trains are not read."""
    if run.outcome is None:
        return score_without_items(score, facts.n_val).standard_error
    found = facts.validation(run.node, global_step - run.base_step, score)
    return None if found is None else found.standard_error


def _node(
    facts: SearchFacts, run: PhaseRun, stays: Sequence[Stay], whys: Mapping[int | None, str], *, left: bool
) -> dict[str, Any]:
    """A node: the fields of `llmzero show --json`, and those that only its panel shows."""
    found, outcome, proposal = node_facts(facts, run.node), run.outcome, run.shown.proposal
    used = found.pop("hyperparameters") or {}
    start = found["start_score"] = facts.start_score(run)
    best = facts.validation(run.node, found["best_step"], run.score)
    result = outcome if isinstance(outcome, PhaseResult) else None
    own = [stay for stay in stays if stay.node == run.node]
    cut = next((phase.cut for phase in facts.path if phase.node == run.node), None)
    return {
        **found,
        **({"status": "interrupted"} if left and run.started and run.active else {}),
        "own": {key: new for key, (_, new) in diff(facts.default, used).items()} if used else {},
        "gain": None if start is None or run.score is None else run.score - start,
        "error": None if best is None else best.standard_error,
        "interval": None if best is None else score_interval(best),
        "state": None if proposal is None else proposal.diagnosis.state,
        "evidence": [] if proposal is None else list(proposal.diagnosis.evidence),
        "seen_in": run.on,
        "why": whys.get(run.node, ""),
        "pruned": facts.nodes[run.node].pruned,
        "slot": run.slot,
        "changes": [
            {
                **change,
                "name": short(change["key"]),
                "before": format_value(change["key"], change["old"]),
                "now": format_value(change["key"], change["new"]),
            }
            for change in found["changes"]
        ],
        "validations": [
            {**point, "error": _error(facts, run, point["global_step"], point["score"])}
            for point in found["validations"]
        ],
        "verdicts": [
            {
                "step": run.base_step + verdict.step,
                "stop": verdict.decision.stop,
                "rule": verdict.decision.rule,
                "reason": verdict.decision.reason,
                "saves": "" if verdict.saves is None else saving_text(verdict.saves),
            }
            for verdict in run.verdicts
        ],
        "levels": facts.from_curves(run.node, _levels, cut),
        "wall_s": None if outcome is None else outcome.wall_s,
        "setup_s": None if result is None else result.setup_s,
        "train_s": None if result is None else result.train_wall_s,
        "start": None if outcome is None else cold_reason(outcome),
        "began": own[0].begin if own else None,
        "rollouts": None if outcome is None else facts.rollouts(run, outcome.steps_done),
    }


def _levels(curves: Curves, cut: int | None) -> list[tuple[str, str, str]]:
    """(metric, first level, last level) of a phase up to `cut`, the step at which the best strategy leaves
    it."""
    found = []
    for name in phase_tables.SHOWN:
        one = curve(curves, name)
        one = one if cut is None else one.until(cut)
        if len(one):
            found.append((metric_label(name), number(one.first), number(one.last)))
    return found


def _reference(facts: SearchFacts) -> dict[str, Any] | None:
    """The run of the default recipe in one phase: validations by global step, and GPU hours."""
    run = facts.core.reference
    if run is None:
        return None
    curves = facts.curves(REFERENCE)
    start = facts.start_score(run)
    first = [] if start is None else [(0, start)]
    return {
        "status": run.status,
        "steps_done": len(curves.steps) if run.outcome is None else run.outcome.steps_done,
        "gpu_hours": None if run.outcome is None else run.outcome.gpu_hours,
        "validations": [*first, *zip(curves.val_steps, curves.val_scores, strict=True)],
    }


def series(curves: Curves, most: int) -> dict[str, Any]:
    """Metric -> (global steps, values), at most `most` of them (`thinned`)."""
    found = {}
    for name in phase_tables.SHOWN:
        one = curve(curves, name)
        if len(one):
            kept = thinned([*zip(one.steps, one.values, strict=True)], most)
            found[name] = (
                [curves.base_step + step for step, _ in kept],
                [float(f"{value:.4g}") for _, value in kept],
            )
    return found


def points_for(n_nodes: int) -> int:
    """Maximum points of a series on a page with this many nodes."""
    return max(_FEWEST, min(_POINTS, _ALL_POINTS // max(n_nodes, 1)))


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Up to `most` points in their order, with the smallest and the largest value of each stretch."""
    if len(points) <= most:
        return list(points)
    n = max(most // 2, 1)
    edges = [len(points) * i // n for i in range(n + 1)]
    kept: list[tuple[int, float]] = []
    for begin, end in itertools.pairwise(edges):
        stretch = points[begin:end]
        kept += sorted({min(stretch, key=lambda one: one[1]), max(stretch, key=lambda one: one[1])})
    return kept


# --- the whole search ---------------------------------------------------------------------------------------


def _progress(facts: SearchFacts) -> list[dict[str, Any]]:
    """The best score so far after each phase, with what all phases had spent by then."""
    hours, steps, best = 0.0, 0, None
    found = []
    for event in facts.events:
        if not isinstance(event, ev.PhaseFinished | ev.PhaseFailed) or event.node == REFERENCE:
            continue
        run = facts.runs[event.node]
        if run.outcome is None or not run.ended_with(event):
            continue
        hours, steps = hours + run.outcome.gpu_hours, steps + run.outcome.steps_done
        if run.score is not None and (best is None or run.score > best[1]):
            best = (run.node, run.score)
        if best is not None:
            winner = facts.runs[best[0]]
            step = winner.outcome.best_step if winner.outcome else None
            score = facts.validation(winner.node, step, winner.score)
            bounds = None if score is None else score_interval(score)
            found.append(
                {
                    "node": best[0],
                    "score": best[1],
                    "interval": bounds,
                    "gpu_hours": hours,
                    "steps": steps,
                    "time": event.time,
                }
            )
    return found


def _feed(facts: SearchFacts) -> Iterator[tuple[float, str]]:
    for event in facts.events[-_FEED:]:
        if line := event_line(facts.core, event):
            by = "you: " if (event.source or "").startswith("user:") else ""
            yield event.time, by + line


def _budgets(facts: SearchFacts, now: float) -> list[dict[str, Any]]:
    """Every limit of the search with its use so far. `ends` marks the limit that `_time_left` refers to."""
    worked = active_seconds(facts.events, now if facts.core.finished is None else None)
    used = [("runs", float(len(facts.nodes)), float(facts.config.budget.runs))]
    used += budget_limits(facts.core, facts.config, worked_s=worked, now=now)
    ends = None if facts.core.end_reason is not None else time_left(facts.core, worked_s=worked, now=now)[1]
    return [
        {
            "name": _BUDGETS[name],
            "used": amount,
            "limit": limit,
            "share": amount / limit if limit else 1.0,
            "ends": name == ends,
        }
        for name, amount, limit in used
    ]


def _time_left(facts: SearchFacts, now: float) -> float | None:
    """Seconds until a limit ends the training. None before a phase has ended, or if no more runs begin."""
    if facts.core.end_reason is not None:
        return None
    seconds, _ = time_left(facts.core, worked_s=active_seconds(facts.events, now), now=now)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def needs(facts: SearchFacts, status: RunStatus, now: float) -> list[dict[str, Any]]:
    """What a person should look at now: `text`, `node` if it concerns one, and `tries` of a proposal."""
    live = Live(now=now, status=status, steering=False)
    return list(_needs(facts, all_stays(facts), _budgets(facts, now), live))


def _needs(
    facts: SearchFacts, stays: Sequence[Stay], budgets: Iterable[Mapping[str, Any]], live: Live
) -> Iterator[dict[str, Any]]:
    """What a person should look at now, one sentence each. Nothing while all is well."""
    status, core = live.status, facts.core
    for run, text in zip(waiting(core), approval_texts(core, to_do=not live.steering), strict=True):
        yield {"node": run.node, "text": text, "tries": run.tries}
    if status.stage == "interrupted":
        paused = isinstance(facts.events[-1], ev.SearchPaused)
        ago = short_duration(max(0.0, live.now - (status.last_alive or live.now)))
        what = "It is paused" if paused else "It is interrupted: its coordinator is silent"
        root = facts.paths.root
        resume = renamed(root, core.config.name) or f"`llmzero resume {shlex.quote(str(root))}` continues it."
        yield {"text": f"{what}, for {ago}. {resume}"}
        return
    for run in facts.runs.values():
        if run.active and run.started and run.spec is not None:
            seen = NodeView(
                node=run.node,
                kind=run.kind,
                status=run.status,
                hyperparameters=run.spec.hyperparameters,
                n_steps=run.spec.n_steps,
                base_step=run.base_step,
                curves=facts.curves(run.node),
            )
            for sign in annotate(seen, n_val=facts.n_val or 500):
                last = run.verdicts[-1].decision if run.verdicts else None
                said = "" if last is None or last.stop else " The stopper says CONTINUE."
                yield {"node": run.node, "text": f"Node {run.node}: {sign.partition(': ')[2]}.{said}"}
        if run.stage == "proposing" and run.rejected:
            yield {"node": run.node, "text": f"Node {run.node}: its proposal broke a rule: {run.rejected}"}
    if core.end_reason is None:
        yield from _idle_slots(facts, stays, live.now)
        for one in budgets:
            if one["name"] == "dollars" and one["share"] >= _NEAR:
                yield {"text": f"{one['share']:.0%} of the dollars for agents are spent."}


def _idle_slots(facts: SearchFacts, stays: Sequence[Stay], now: float) -> Iterator[dict[str, Any]]:
    for slot in facts.core.slots:
        last = max((stay.end for stay in stays if stay.slot == slot.index), default=None)
        waiting = any(run.active and run.slot == slot.index for run in facts.runs.values())
        if slot.ready and slot.idle and not waiting and last is not None and now - last > _IDLE_S:
            yield {"text": f"Slot {slot.index} has been idle for {short_duration(now - last)}."}
