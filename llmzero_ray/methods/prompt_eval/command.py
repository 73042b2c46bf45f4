"""The command `prompt-eval`: sends recorded requests to the agents' model and scores its answers by rules.

Not here: the recorded requests, asking and scoring (evaluate.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from llmzero_ray.agents.backend import check_agents
from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config import SearchConfig, resolve_config
from llmzero_ray.errors import CapReachedError, ConfigError
from llmzero_ray.utils.files import replace_file

if TYPE_CHECKING:
    from llmzero_ray.methods.prompt_eval.cases import RecordedRequest
    from llmzero_ray.methods.prompt_eval.evaluate import CaseResult
    from llmzero_ray.records.events import AgentCalled

_BELOW = 1


def prompt_eval(
    *,
    settings: Annotated[
        list[str],
        options.settings_option(
            "set a field of search.yaml, such as agents.prompts=DIR or dollars=2", of_search=True
        ),
    ],
    cases: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="file or directory of recorded requests (default: ours)"),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="proposer, error_analyzer or early_stopper alone")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="the first N requests of each agent")] = None,
    min_form: Annotated[
        float, typer.Option(metavar="SHARE", help="fewer valid forms than this end with exit code 1")
    ] = 0.9,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="receives every result as JSON")] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="SEARCH", help="ask nothing: record the requests of a search in --out"),
    ] = None,
) -> int:
    """Ask every recorded request once, and print what the answers are worth.

    It spends at most $1 unless budget.dollars says otherwise.
    """
    from llmzero_ray.methods.prompt_eval.cases import RECORDED, read_cases, recorded_cases, write_cases
    from llmzero_ray.methods.prompt_eval.evaluate import evaluate

    console = TerminalConsole()
    if record is not None:
        if out is None:
            raise ConfigError("--record needs --out FILE, such as requests.json.gz")
        found = tuple(recorded_cases(Path(record)))
        write_cases(found, Path(out))
        print_line(console, f"{len(found)} requests of {record} written to {out}")
        return 0
    config = _config(settings)
    chosen = _chosen(read_cases(RECORDED if cases is None else Path(cases)), agent, limit)
    checks: dict[str, AgentCalled] = {}
    check_agents(config, book=lambda call: checks.update({call.source: call}))
    results: list[CaseResult] = []

    def show(result: CaseResult) -> None:
        results.append(result)
        failed = [check for check, passed in result.checks.items() if not passed]
        fails = f" [fails: {', '.join(failed)}]" if failed else ""
        print_line(console, f"{result.case.agent} {result.case.name}: {result.said}{fails}")

    problem = ""
    try:
        evaluate(config, chosen, on_result=show, checks=checks.values())
    except CapReachedError as error:
        problem = str(error)
    if out is not None:
        replace_file(Path(out), json.dumps(_as_json(config, results), indent=1) + "\n")
    share = _print_tables(console, results)
    if problem:
        raise CapReachedError(f"{len(results)} of {len(chosen)} requests were asked: {problem}")
    return 0 if share >= min_form else _BELOW


def _config(settings: Sequence[str]) -> SearchConfig:
    data = {"name": "prompt-eval", "agents": {"backend": "claude"}, "budget": {"dollars": 1.0}}
    config = resolve_config(data, settings, source="prompt-eval")
    if config.agents.backend != "claude":
        raise ConfigError(
            f"agents.backend is {config.agents.backend}; prompt-eval asks a language model: leave it at "
            "claude, and name another server by agents.base_url."
        )
    return config


def _chosen(found: Sequence[RecordedRequest], agent: str | None, limit: int | None) -> list[RecordedRequest]:
    names = dict.fromkeys(case.agent for case in found)
    if agent is not None and agent not in names:
        raise ConfigError(f"--agent {agent}: the recorded requests are to {', '.join(names)}")
    kept = [name for name in names if agent in (None, name)]
    chosen = [case for name in kept for case in [one for one in found if one.agent == name][:limit]]
    if not chosen:
        raise ConfigError("--limit leaves no request; give at least 1")
    return chosen


def _print_tables(console: Console, results: Sequence[CaseResult]) -> float:
    """Print each agent's checks and costs. Returns the share of first answers that have a valid form."""
    from llmzero_ray.methods.prompt_eval.evaluate import check_rows

    rows = check_rows(results)
    table = Table("agent", "check", "passed", "of", "share", "95 %")
    for row in rows:
        low, high = row.interval
        share = f"{row.passed / row.n:.2f}"
        table.add_row(row.agent, row.check, str(row.passed), str(row.n), share, f"{low:.2f} to {high:.2f}")
    console.print(table)
    costs = Table("agent", "requests", "calls", "input tokens", "output tokens", "dollars", "seconds a call")
    for name in dict.fromkeys(result.case.agent for result in results):
        own = [result for result in results if result.case.agent == name]
        calls = [call for result in own for call in result.calls]
        sent = sum(c.input_tokens + c.cache_read_tokens + c.cache_creation_tokens for c in calls)
        output, dollars = sum(c.output_tokens for c in calls), sum(c.dollars for c in calls)
        seconds = sum(c.latency_s for c in calls) / max(1, len(calls))
        costs.add_row(
            name, str(len(own)), str(len(calls)), str(sent), str(output), f"{dollars:.4f}", f"{seconds:.1f}"
        )
    console.print(costs)
    forms = [row for row in rows if row.check == "form"]
    return sum(row.passed for row in forms) / max(1, sum(row.n for row in forms))


def _as_json(config: SearchConfig, results: Sequence[CaseResult]) -> dict[str, Any]:
    return {
        "agents": config.agents.model_dump(mode="json"),
        "results": [
            {
                "case": result.case.name,
                "agent": result.case.agent,
                "checks": result.checks,
                "statements": [result.n_true, result.n_said],
                "said": result.said,
                "dollars": sum(call.dollars for call in result.calls),
                "outcomes": [call.outcome for call in result.calls],
            }
            for result in results
        ],
    }
