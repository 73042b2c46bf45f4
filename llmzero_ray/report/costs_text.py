"""The account of a search as tables.

Not here: adding it up (costs.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from llmzero_ray import events as ev
from llmzero_ray.events import REFERENCE
from llmzero_ray.records import PhaseResult
from llmzero_ray.report import words
from llmzero_ray.report.costs import Costs, cold_reason, costs
from llmzero_ray.report.facts import SearchFacts


def costs_section(facts: SearchFacts) -> str:
    """Wall clock, hours of hardware, starts, and the account of each phase."""
    account = costs(facts)
    header = ("what", "how much")
    return words.section(
        "Cost", words.table(header, _rows(account)), _starts(account), _phases(facts), _agents(facts)
    )


def _rows(account: Costs) -> list[tuple[str, str]]:
    unit = "GPU hours (logical GPUs: this ran on CPUs)" if account.on_cpu else "GPU hours"
    total = account.gpu_hours + account.reference_gpu_hours
    rows = [
        ("wall clock, with a coordinator at work", words.duration(account.wall_s)),
        ("until the first slot was ready", words.duration(account.until_ready_s)),
        ("search, from then until the decision to end", words.duration(account.search_s)),
        (
            "of the search, with a phase in a slot",
            f"{words.duration(account.busy_s)} ({words.share(account.busy_s, account.search_s)})",
        ),
        (
            "of the search, between phases",
            f"{words.duration(account.between_s)} ({words.share(account.between_s, account.search_s)})",
        ),
    ]
    if account.after_s > 0:
        rows.append(("after it: default recipe, test scores, this report", words.duration(account.after_s)))
    rows += [
        (f"{unit}, phases of the search", words.hours(account.gpu_hours)),
        (f"{unit}, default recipe for comparison", words.hours(account.reference_gpu_hours)),
        (f"{unit}, together", words.hours(total)),
        (f"{unit} reserved, idle ones included", words.hours(account.reserved_gpu_hours)),
        (f"{unit} reserved and idle", words.hours(max(0.0, account.reserved_gpu_hours - total))),
        ("CPU hours reserved beside them", words.hours(account.cpu_hours)),
    ]
    if account.lost_s > 0:
        rows.append(("lost with hardware, repeated or given up", words.duration(account.lost_s)))
    return rows


def _agents(facts: SearchFacts) -> str:
    """Calls of a language model by agent; nothing where none was made."""
    calls = [event for event in facts.events if isinstance(event, ev.AgentCalled)]
    if not calls:
        return ""
    header = ("agent", "calls", "without an answer", "input", "of it cached", "output", "dollars")
    names = [*dict.fromkeys(call.agent for call in calls)]
    rows = [_calls_row(name, [call for call in calls if call.agent == name]) for name in names]
    if len(names) > 1:
        rows.append(_calls_row("together", calls))
    limit = facts.config.budget.dollars
    cap = "no cap was set" if limit is None else f"at most {limit:g} were allowed"
    return f"{words.table(header, rows)}\n\nTokens as billed by {calls[-1].model}; {cap}."


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


def _starts(account: Costs) -> str:
    if not account.phases:
        return ""
    told = [
        f"{account.warm} of {words.plural(account.phases, 'phase')} started warm, {account.cold} cold"
        + _setups(account)
        + ".",
        f"Phases that did not fail spent {words.duration(account.train_s)} in training steps and validations "
        f"and {words.duration(account.setup_s)} in set-up.",
    ]
    return " ".join(told)


def _setups(account: Costs) -> str:
    kinds = (("warm", account.warm_setups_s), ("cold", account.cold_setups_s))
    told = [f"{words.duration(median(times))} {name}" for name, times in kinds if times]
    return f" (median set-up {', '.join(told)})" if told else ""


def _phases(facts: SearchFacts) -> str:
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
                words.duration(outcome.wall_s),
                words.NONE if result is None else words.duration(result.setup_s),
                words.NONE if result is None else words.duration(result.train_wall_s),
                words.hours(outcome.gpu_hours),
                cold_reason(outcome),
            )
        )
    header = ("node", "steps", "wall clock", "set-up", "training", "GPU hours", "start")
    return words.table(header, rows, right=(0, 1, 2, 3, 4, 5)) if rows else ""
