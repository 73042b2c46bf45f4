"""Skill-based agent: one conversation that makes every decision of a search by tool calls.

It proposes the next run and judges a running one. A call of a deciding tool answers a question. Before that,
the model may call tools that show or check something; each is another paid call. Every call is reserved in
the budget, journalled and recorded like those of other agents. Without an answer, the offline expert plans
the next run, or the running one continues, and the question is dropped from the conversation.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmzero_ray.agents.expert import ExpertProposer
from llmzero_ray.agents.knowledge import MetricNote
from llmzero_ray.agents.llm.agent_client import Report, reported_call
from llmzero_ray.agents.llm.agents import instead_of_model
from llmzero_ray.agents.llm.budget import BudgetClient, LlmClient
from llmzero_ray.agents.llm.errors import REPROMPT_KINDS, LlmCallError, raise_outage
from llmzero_ray.agents.llm.messages import (
    LlmCall,
    LlmResponse,
    TextBlock,
    ToolExchange,
)
from llmzero_ray.config import AgentsConfig
from llmzero_ray.config.search_config import OnCap, OnOutage
from llmzero_ray.errors import AgentError, CapReachedError, HyperparameterError, ProposalError
from llmzero_ray.hyperparameters import VERL_SPACE, Space
from llmzero_ray.methods.skills.handover import proposal_of_tree
from llmzero_ray.methods.skills.tools import AGENT, DECIDING, TOOLS
from llmzero_ray.methods.skills.transcript import Episode, Kind, Transcript, conversation
from llmzero_ray.methods.skills.workbench import Workbench
from llmzero_ray.records import Proposal, StopDecision
from llmzero_ray.records.agents import SKILL_AGENT, ProposalRequest, Proposer, StopRequest
from llmzero_ray.search import SearchRules

MOST_CALLS = 24
"""Maximum number of calls for one decision."""
MOST_TOKENS = 3000
"""Maximum tokens of one answer, without thinking."""
RULE = "skill_agent"


@dataclass(frozen=True, kw_only=True)
class SkillSettings:
    """Settings that are constant during a search."""

    n_val: int
    """Number of validation items."""
    n_gpus: int = 1
    """Number of GPUs of a slot."""
    on_cap: OnCap = "expert"
    space: Space = VERL_SPACE
    rules: SearchRules = field(default_factory=SearchRules)
    """Rules of the tree search that plans handed-over runs."""
    model: str
    deadline_s: float = 120.0
    """Timeout of one call in seconds."""
    on_outage: OnOutage = "rules"


class SkillAgent:
    """Proposer and early stopper in one conversation; thread-safe, one decision at a time."""

    def __init__(
        self,
        *,
        client: Callable[[int, str], LlmClient],
        budget: BudgetClient,
        report: Report,
        texts: Mapping[str, str],
        notes: Mapping[str, MetricNote],
        settings: SkillSettings,
        transcript: Transcript,
        workflow: Proposer,
    ) -> None:
        """`client(node, name)` returns the client for that call. `texts` has the system prompt and the
        skills, `notes` the notes on metrics. `workflow` is the proposer of the tree search."""
        self._client, self._budget, self._report = client, budget, report
        self._texts, self._notes, self._settings = texts, notes, settings
        self._transcript, self._workflow = transcript, workflow
        self._expert = ExpertProposer(n_val=settings.n_val, n_gpus=settings.n_gpus)
        self._lock = threading.Lock()
        self._tools = [tool.definition(strict=False) for tool in TOOLS.values()]

    def use_settings(self, agents: AgentsConfig) -> None:
        """Apply the settings that may change during a search: `on_cap` and `deadline_s`."""
        deadline_s = agents.deadline_of(SKILL_AGENT)
        self._settings = dataclasses.replace(self._settings, on_cap=agents.on_cap, deadline_s=deadline_s)

    def propose(self, request: ProposalRequest) -> Proposal:
        """Proposal of the next run: the agent's, the tree search's if the agent handed the run over, or the
        expert's on failure.

        Raises:
            CapReachedError: `budget.dollars` is used up and `agents.on_cap` is `stop`.
            OutageError: the server is out of service and `agents.on_outage` is `wait`.
        """
        node = request.on.node if request.node is None else request.node
        bench = self._bench(request)
        with self._lock:
            try:
                if self._is_handed_over(node):
                    return self._of_tree(request, bench)
                episode = self._decide("run", node, request.tries, bench)
                if episode.tool == "tree_search":
                    return self._of_tree(request, bench)
                return bench.proposal(TOOLS[episode.tool].parse(episode.input))
            except CapReachedError as error:
                if self._settings.on_cap == "stop":
                    raise
                why: Exception = error
            except (AgentError, HyperparameterError, ProposalError) as error:
                raise_outage(error, self._settings.on_outage)
                why = error
        # A decision recorded before a restart may no longer fit the saved checkpoints.
        return instead_of_model(self._expert.propose(self._for_expert(request)), why)

    def judge(self, request: StopRequest) -> StopDecision:
        """Verdict on a running run, or CONTINUE without an answer. The agent also judges runs that the tree
        search planned."""
        steps = (*request.running.curves.steps, *request.running.curves.val_steps)
        with self._lock:
            try:
                step = max(steps, default=0)
                episode = self._decide("check", request.running.node, step, self._bench(request))
            except (AgentError, CapReachedError) as error:
                return StopDecision(stop=False, reason=f"no judgement, so it continues: {error}", rule=RULE)
        verdict = TOOLS[episode.tool].parse(episode.input)
        return StopDecision(stop=verdict.decision == "STOP", reason=verdict.reason, rule=RULE)

    # --- parts ----------------------------------------------------------------------------------------------

    def _bench(self, request: ProposalRequest | StopRequest) -> Workbench:
        own = self._settings
        return Workbench(request, self._notes, n_val=own.n_val, n_gpus=own.n_gpus, space=own.space)

    def _is_handed_over(self, node: int) -> bool:
        """Whether an earlier decision handed this run over to the tree search."""
        return any(
            episode.node < node < episode.node + int(episode.input["runs"])
            for episode in self._transcript.episodes
            if episode.kind == "run" and episode.tool == "tree_search"
        )

    def _of_tree(self, request: ProposalRequest, bench: Workbench) -> Proposal:
        own = self._settings
        return proposal_of_tree(
            request, bench.views, own.rules, self._workflow, space=own.space, n_gpus=own.n_gpus
        )

    def _for_expert(self, request: ProposalRequest) -> ProposalRequest:
        """The request with only the checkpoints along the path, as the expert gets it in a tree search."""
        path = {view.node for view in request.path}
        return dataclasses.replace(
            request, checkpoints=tuple(one for one in request.checkpoints if one.node in path)
        )

    def _decide(self, kind: Kind, node: int, number: int, bench: Workbench) -> Episode:
        """The recorded decision, or else a new one.

        Raises:
            CapReachedError: the budget does not allow a call.
            AgentError: no decision within `MOST_CALLS`, or a call failed.
        """
        known = self._transcript.decided(kind, node, number)
        if known is not None:
            return known
        earlier, question = self._transcript.episodes, bench.question()
        exchanges: list[ToolExchange] = []
        remark = ""
        for round_ in range(MOST_CALLS):
            name = f"{SKILL_AGENT}-{kind}-{number}.{round_}"
            try:
                answer = self._ask(node, name, *conversation(earlier, question, exchanges), remark)
            except LlmCallError as error:
                if error.kind not in REPROMPT_KINDS:
                    raise
                remark = f"Your last answer could not be used: {error} Call exactly one tool."
                continue
            remark = ""
            result, failed, decided = self._carry_out(kind, answer, bench)
            exchanges.append(ToolExchange(content=answer.content, result=result, is_error=failed))
            if decided:
                episode = Episode(
                    kind=kind, node=node, number=number, question=question, exchanges=tuple(exchanges)
                )
                self._transcript.add(episode)
                return episode
        raise AgentError(f"The skill-based agent did not decide within {MOST_CALLS} calls.")

    def _carry_out(self, kind: Kind, answer: LlmResponse, bench: Workbench) -> tuple[str, bool, bool]:
        """(tool result, whether it is an error, whether the question is decided)."""
        try:
            given = TOOLS[answer.tool].parse(answer.input)
            match answer.tool:
                case "use_skill":
                    return self._texts[given.name], False, False
                case "show_task":
                    return bench.show_task(), False, False
                case "list_runs":
                    return bench.list_runs(), False, False
                case "read_metrics":
                    return bench.read_metrics(given), False, False
                case "check_config":
                    return bench.check_config(given), False, False
            if answer.tool not in DECIDING[kind]:
                return (
                    f"That is not the question now; answer with {' or '.join(DECIDING[kind])}.",
                    True,
                    False,
                )
            if answer.tool == "submit_training":
                bench.proposal(given)
            return "Taken.", False, True
        except (HyperparameterError, ProposalError) as error:
            return f"Refused: {error}", True, False

    def _ask(
        self, node: int, name: str, first: str, exchanges: tuple[ToolExchange, ...], remark: str
    ) -> LlmResponse:
        if remark and exchanges:
            last = exchanges[-1]
            then = "\n\n".join(filter(None, (last.then, remark)))
            exchanges = (*exchanges[:-1], dataclasses.replace(last, then=then))
        elif remark:
            first = f"{first}\n\n{remark}"
        call = LlmCall(
            agent=SKILL_AGENT,
            node=node,
            system=self._texts[AGENT],
            content=(TextBlock(text=first),),
            tool=self._tools[0],
            others=tuple(self._tools[1:]),
            max_tokens=MOST_TOKENS,
            deadline_s=self._settings.deadline_s,
            exchanges=exchanges,
        )
        client, model = self._client(node, name), self._settings.model
        with reported_call(client, self._budget, self._report, call, name=name, model=model) as made:
            response = made.send()
            made.outcome = "ok"
            return response
