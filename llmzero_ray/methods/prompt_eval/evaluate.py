"""Sends recorded requests to a language model and scores its answers.

Agents, prompts, retries and budget are those of a search. Not here: the checks (scoring.py), recorded
requests (cases.py), printing (command.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmzero_ray.agents.backend import Agents, AgentServices, agent_facts, make_agents
from llmzero_ray.agents.llm.budget import BudgetLedger
from llmzero_ray.agents.llm.call_records import ledger_of
from llmzero_ray.agents.llm.figures import draw_figure
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import CapReachedError
from llmzero_ray.methods.prompt_eval.cases import RecordedRequest
from llmzero_ray.methods.prompt_eval.scoring import (
    CHECKS,
    answer_statements,
    proposal_checks,
    substance,
    verdict_checks,
)
from llmzero_ray.records import Event, Proposal, StopDecision
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest, StopRequest
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.records.metrics import Score
from llmzero_ray.records.significance import score_interval


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Result of one case."""

    case: RecordedRequest
    checks: dict[str, bool]
    """Check -> whether it passed, for checks that apply. Only `form` if there was no answer."""
    n_true: int
    """Number of statements that agree with the series or the request."""
    n_said: int
    """Number of statements that can be checked."""
    calls: tuple[AgentCalled, ...]
    said: str
    """The answer in one line, or the reason why there is none."""


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One check of one agent over all cases."""

    agent: str
    check: str
    passed: int
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        share = self.passed / self.n
        error = (share * (1 - share) / self.n) ** 0.5
        found = score_interval(Score(mean=share, n=self.n, standard_error=error))
        assert found is not None
        return found


@dataclass
class _Desk:
    """Agents for one kind of search (n_val, n_gpus, multi_stage), and their reported calls."""

    agents: Agents
    calls: list[AgentCalled]
    printed: list[str]
    """Prompt texts sent for the current case."""


def evaluate(
    config: SearchConfig,
    cases: Sequence[RecordedRequest],
    *,
    on_result: Callable[[CaseResult], None] = lambda _: None,
    checks: Iterable[AgentCalled] = (),
) -> list[CaseResult]:
    """Ask every case once, with `config.agents` and at most `config.budget.dollars`, and score the answers.

    `checks` are the calls that checking the model cost; they count towards the budget.

    Raises:
        ConfigError: prompts or price are wrong.
        CapReachedError: the dollars are used up; `on_result` has received the results so far.
    """
    facts = agent_facts(config)
    ledger = ledger_of(facts, config.budget.dollars, checks)
    desks: dict[tuple[int, int, bool], _Desk] = {}
    results = []
    for case in cases:
        key = (case.n_val, case.n_gpus, case.multi_stage)
        if key not in desks:
            desks[key] = _desk(config, case, facts, ledger)
        results.append(_ask(desks[key], case))
        on_result(results[-1])
    return results


def check_rows(results: Sequence[CaseResult]) -> list[CheckRow]:
    """Totals of each agent's checks, in the order of `CHECKS`."""
    passed, n = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for result in results:
        for check, found in result.checks.items():
            n[result.case.agent, check] += 1
            passed[result.case.agent, check] += found
        if result.n_said:
            n[result.case.agent, "statements"] += result.n_said
            passed[result.case.agent, "statements"] += result.n_true
    agents = dict.fromkeys(result.case.agent for result in results)
    return [
        CheckRow(agent=agent, check=check, passed=passed[agent, check], n=n[agent, check])
        for agent in agents
        for check in CHECKS
        if n[agent, check]
    ]


def _desk(config: SearchConfig, case: RecordedRequest, facts: dict[str, Any], ledger: BudgetLedger) -> _Desk:
    calls: list[AgentCalled] = []
    printed: list[str] = []

    def post(event: Event) -> None:
        if isinstance(event, AgentCalled):
            calls.append(event)

    def write_call(_node: int, _name: str, record: Mapping[str, Any], _png: bytes | None) -> None:
        printed.append("\n".join(record["user"]))

    services = AgentServices(facts=facts, budget=ledger, post=post, write_call=write_call, draw=draw_figure)
    as_recorded = config.model_copy(
        update={
            "slots": config.slots.model_copy(update={"nodes": 1, "gpus_per_node": case.n_gpus}),
            "search": config.search.model_copy(update={"multi_stage": case.multi_stage}),
            "agents": config.agents.model_copy(update={"on_cap": "stop"}),
        }
    )
    return _Desk(agents=make_agents(as_recorded, case.n_val, services), calls=calls, printed=printed)


def _ask(desk: _Desk, case: RecordedRequest) -> CaseResult:
    before = len(desk.calls)
    desk.printed.clear()
    request = case.request
    answer: Proposal | StopDecision
    if isinstance(request, ProposalRequest):
        answer = desk.agents.proposer.propose(request)
    elif isinstance(request, ErrorRequest):
        answer = desk.agents.error_analyzer.analyze(request)
    else:
        answer = desk.agents.early_stopper.judge(request)
    calls = tuple(desk.calls[before:])
    answered = any(call.outcome == "ok" for call in calls)
    if any(call.outcome == "cap" for call in calls):
        raise CapReachedError("budget.dollars is used up; raise it to ask the rest.")
    checks = {"form": bool(calls) and calls[0].outcome in ("ok", "refused")}
    if any(call.outcome == "refused" for call in calls):  # it fits the schema but says nothing
        checks["substance"] = False
    true: list[bool] = []
    if answered:
        printed = "\n".join(desk.printed)
        if isinstance(answer, StopDecision):
            checks |= verdict_checks(answer, case.wins)
        elif not isinstance(request, StopRequest):
            checks |= proposal_checks(request, answer, n_gpus=case.n_gpus, better=case.better)
        checks |= substance(answer, printed)
        true = [one.agrees for one in answer_statements(request, answer, printed)]
    said = _in_a_line(answer) if answered else f"no answer ({', '.join(call.outcome for call in calls)})"
    return CaseResult(case=case, checks=checks, n_true=sum(true), n_said=len(true), calls=calls, said=said)


def _in_a_line(answer: Proposal | StopDecision) -> str:
    if not isinstance(answer, Proposal):
        return f"{'STOP' if answer.stop else 'CONTINUE'}: {answer.reason}"
    changes = ", ".join(f"{change.key.rpartition('.')[2]} {change.new}" for change in answer.changes)
    return f"{answer.diagnosis.state}; {changes or 'nothing changed'}; {answer.n_steps} steps"
