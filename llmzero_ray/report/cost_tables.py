"""Costs of a search as tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from llmzero_ray.records import PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.costs import Costs, cold_reason
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.utils import text


def account_table(account: Costs) -> str:
    """Table of wall-clock time and hardware hours."""
    return fmt.table(("what", "how much"), _rows(account))


def _rows(account: Costs) -> list[tuple[str, str]]:
    total = account.gpu_hours + account.reference_gpu_hours
    rows = [
        ("wall clock, with a coordinator at work", text.duration(account.wall_s)),
        ("until the first slot was ready", text.duration(account.until_ready_s)),
        ("search, from then until the decision to end", text.duration(account.search_s)),
        (
            "of the search, with a phase in a slot",
            f"{text.duration(account.busy_s)} ({fmt.share(account.busy_s, account.search_s)})",
        ),
        (
            "of the search, between phases",
            f"{text.duration(account.between_s)} ({fmt.share(account.between_s, account.search_s)})",
        ),
    ]
    if account.after_s > 0:
        rows.append(("after it: default recipe, test scores, this report", text.duration(account.after_s)))
    rows += [
        ("GPU hours, phases of the search", fmt.hours(account.gpu_hours)),
        ("GPU hours, default recipe for comparison", fmt.hours(account.reference_gpu_hours)),
        ("GPU hours, together", fmt.hours(total)),
        ("GPU hours reserved, idle ones included", fmt.hours(account.reserved_gpu_hours)),
        ("GPU hours reserved and idle", fmt.hours(max(0.0, account.reserved_gpu_hours - total))),
        ("CPU hours reserved with them", fmt.hours(account.cpu_hours)),
    ]
    if account.lost_s > 0:
        rows.append(("lost with hardware, repeated or given up", text.duration(account.lost_s)))
    return rows


def call_table(calls: Sequence[ev.AgentCalled]) -> str:
    """Table of language-model calls by agent."""
    header = ("agent", "calls", "without an answer", "input", "of it cached", "output", "dollars")
    names = [*dict.fromkeys(call.agent for call in calls)]
    rows = [_calls_row(name, [call for call in calls if call.agent == name]) for name in names]
    if len(names) > 1:
        rows.append(_calls_row("together", calls))
    return fmt.table(header, rows)


def _calls_row(name: str, calls: Sequence[ev.AgentCalled]) -> tuple[str, ...]:
    cached = sum(call.cache_read_tokens for call in calls)
    sent = cached + sum(call.input_tokens + call.cache_creation_tokens for call in calls)
    return (
        name.replace("_", " "),
        str(len(calls)),
        str(sum(call.outcome != "ok" for call in calls)),
        str(sent),
        str(cached),
        str(sum(call.output_tokens for call in calls)),
        f"{sum(call.dollars for call in calls):.4f}",
    )


def setups(account: Costs) -> str:
    """`0.6 s warm, 48 s cold`: median set-up times; empty when nothing was set up."""
    kinds = (("warm", account.warm_setups_s), ("cold", account.cold_setups_s))
    return ", ".join(f"{text.duration(median(times))} {name}" for name, times in kinds if times)


def phase_table(facts: SearchFacts) -> str:
    """The account of each phase; empty without any."""
    rows = []
    for run in facts.core.runs.values():
        outcome = run.outcome
        if outcome is None:
            continue
        result = outcome if isinstance(outcome, PhaseResult) else None
        rows.append(
            (
                "default recipe" if run.node == REFERENCE else str(run.node),
                str(outcome.steps_done),
                text.duration(outcome.wall_s),
                fmt.NONE if result is None else text.duration(result.setup_s),
                fmt.NONE if result is None else text.duration(result.train_wall_s),
                fmt.hours(outcome.gpu_hours),
                cold_reason(outcome),
            )
        )
    header = ("node", "steps", "wall clock", "set-up", "training", "GPU hours", "start")
    return fmt.table(header, rows, right=(0, 1, 2, 3, 4, 5)) if rows else ""
