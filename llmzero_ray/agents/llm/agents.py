"""Language-model agents over the Messages API, with the offline expert as fallback.

The workflow is fixed: each decision is one structured request. If a proposal breaks a rule, the model gets
the reason in the same conversation and proposes again. The second proposal is moved into its bounds. On any
failure the search still gets a decision: the expert's proposal, or CONTINUE.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer, ExpertProposer
from llmzero_ray.agents.expert.early_stopper import RULE
from llmzero_ray.agents.llm import context
from llmzero_ray.agents.llm.agent_client import AgentClient, StructuredRequest, StructuredResponse
from llmzero_ray.agents.llm.errors import raise_outage
from llmzero_ray.agents.llm.prices import image_tokens
from llmzero_ray.agents.llm.prompt_text import tokens
from llmzero_ray.agents.llm.prompts import Prompts, Rendered
from llmzero_ray.agents.llm.proposal_response import ProposalBounds, bounds_of, enforce_bounds, parse_proposal
from llmzero_ray.agents.llm.response_schemas import TOOLS, ErrorSchema, ProposalSchema, VerdictSchema
from llmzero_ray.config import AgentsConfig
from llmzero_ray.config.search_config import OnCap, OnOutage, Priors
from llmzero_ray.errors import AgentError, CapReachedError
from llmzero_ray.hyperparameters import VERL_SPACE, Space
from llmzero_ray.records import Diagnosis, Proposal, StopDecision
from llmzero_ray.records.agents import (
    AgentName,
    ErrorRequest,
    ProposalRequest,
    StopRequest,
    TaskView,
)
from llmzero_ray.utils.text import collapse_whitespace

logger = logging.getLogger(__name__)

PROPOSAL_TOKENS, FIX_TOKENS, VERDICT_TOKENS = 1500, 1200, 250
"""Token limits of responses."""
MOST_ANSWERS = 64
"""Maximum number of answers kept in case the coordinator rejects them."""
RULES = "rules"
"""Author of verdicts that the rules gave instead of the model."""

DrawFigure: TypeAlias = Callable[[str, Any, int], bytes]
"""(kind of figure, request, validation items) -> PNG. May take seconds, and runs outside of actors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlmAgentSettings:
    """Settings of the agents that are constant during a search."""

    n_val: int
    """Number of validation items."""
    n_gpus: int = 1
    """Number of GPUs of a slot."""
    stop_below: float
    """Chance of a new best score below which a phase is stopped."""
    visual: bool = True
    multi_stage: bool = True
    priors: Priors = "paper"
    """Source of the experience in the prompts."""
    strict_tools: bool = True
    """Whether the server enforces the response schemas."""
    on_cap: OnCap = "expert"
    on_outage: OnOutage = "rules"
    space: Space = VERL_SPACE
    """Hyper-parameters that a proposal may set."""
    backend: str = "claude"
    """Name that is recorded as the author of proposals."""


class LlmAgents:
    """Proposer, error analyzer and early stopper in one object."""

    def __init__(
        self,
        clients: Mapping[AgentName, AgentClient],
        prompts: Prompts,
        settings: LlmAgentSettings,
        draw_figure: DrawFigure,
    ) -> None:
        self._clients, self._prompts = clients, prompts
        self._settings, self._draw_figure = settings, draw_figure
        self._expert = ExpertProposer(n_val=settings.n_val, n_gpus=settings.n_gpus)
        self._analyzer = ExpertErrorAnalyzer(n_gpus=settings.n_gpus)
        self._stopper = ExpertEarlyStopper(n_val=settings.n_val)
        self._answers: dict[tuple[str, int], StructuredResponse] = {}
        """The model's latest answers by agent and node, to continue their conversations after a rejection."""

    def use_settings(self, agents: AgentsConfig) -> None:
        """Apply the settings that may change during a search: `on_cap` and `deadline_s`."""
        self._settings = dataclasses.replace(self._settings, on_cap=agents.on_cap)
        for name, client in self._clients.items():
            client.deadline_s = agents.deadline_of(name)

    # --- protocols ------------------------------------------------------------------------------------------

    def propose(self, request: ProposalRequest) -> Proposal:
        """The model's proposal. If the second one still breaks a rule, it is moved into its bounds. On
        failure, the expert's proposal.

        Raises:
            OutageError: the server is out of service and `agents.on_outage` is `wait`.
            CapReachedError: `budget.dollars` is used up and `agents.on_cap` is `stop`.
        """

        def values() -> Iterator[dict[str, Any]]:
            for limits in context.PROMPT_LIMITS:
                yield context.proposer_context(
                    request,
                    self._prompts.knowledge,
                    n_val=self._settings.n_val,
                    n_gpus=self._settings.n_gpus,
                    limits=limits,
                )

        def proposal_from(response: ProposalSchema, bounds: ProposalBounds) -> Proposal:
            proposal = parse_proposal(
                _diagnosis(response),
                response.changes,
                response.checkpoint,
                response.length,
                bounds,
                self._settings.backend,
            )
            return dataclasses.replace(proposal, predicted=response.expected_validation)

        def by_rules() -> Proposal:
            on_path = {view.node for view in request.path}
            own = tuple(one for one in request.checkpoints if one.node in on_path)
            return self._expert.propose(dataclasses.replace(request, checkpoints=own))

        return self._proposal("proposer", request, values(), PROPOSAL_TOKENS, proposal_from, by_rules)

    def analyze(self, request: ErrorRequest) -> Proposal:
        """The model's fix of a failed phase, corrected or replaced like a proposal.

        Raises:
            OutageError: the server is out of service and `agents.on_outage` is `wait`.
            CapReachedError: `budget.dollars` is used up and `agents.on_cap` is `stop`.
        """
        values = context.error_context(request, n_val=self._settings.n_val, n_gpus=self._settings.n_gpus)

        def proposal_from(response: ErrorSchema, bounds: ProposalBounds) -> Proposal:
            summary = f"{response.failure_class}: {response.summary}"
            diagnosis = Diagnosis(state="failed", summary=summary, evidence=tuple(response.evidence))
            return parse_proposal(
                diagnosis,
                response.changes,
                response.checkpoint,
                response.length,
                bounds,
                self._settings.backend,
            )

        return self._proposal(
            "error_analyzer",
            request,
            [values],
            FIX_TOKENS,
            proposal_from,
            lambda: self._analyzer.analyze(request),
        )

    def judge(self, request: StopRequest) -> StopDecision:
        """The model's verdict, or CONTINUE on any error. The rules decide clear cases, and all cases once
        the budget is used up."""
        settled = self._stopper.settled(request)
        if settled is not None:
            return dataclasses.replace(settled, rule=RULES)
        values = context.stop_context(
            request, n_val=self._settings.n_val, n_gpus=self._settings.n_gpus, checks=request.checks
        )
        steps = request.running.curves.steps
        question = self._request(
            "early_stopper",
            node=request.running.node,
            name=f"early_stopper-{steps[-1] if steps else 0:06d}",
            task=request.task,
            values=[values],
            png=self._figure("overlay", request),
            max_tokens=(VERDICT_TOKENS,),
        )
        try:
            response: VerdictSchema = _usable(self._clients["early_stopper"].generate(question)).parsed
        except CapReachedError:
            return dataclasses.replace(self._stopper.judge(request), rule=RULES)
        except AgentError as error:
            return StopDecision(stop=False, reason=f"no judgement, so it continues: {error}", rule=RULE)
        stop = response.chance / 100 < self._settings.stop_below
        return StopDecision(stop=stop, reason=f"{response.chance} %: {response.reason}", rule=RULE)

    # --- parts ----------------------------------------------------------------------------------------------

    def _proposal(
        self,
        agent: AgentName,
        request: ProposalRequest | ErrorRequest,
        values: Iterable[dict[str, Any]],
        max_tokens: int,
        proposal_from: Callable[[Any, ProposalBounds], Proposal],
        expert: Callable[[], Proposal],
    ) -> Proposal:
        bounds = bounds_of(request, self._settings.n_gpus, self._settings.space)
        base = request.failed if isinstance(request, ErrorRequest) else request.on
        node = base.node if request.node is None else request.node
        refused = self._answers.pop((agent, node), None) if request.rejected is not None else None
        draws = isinstance(request, ProposalRequest) and refused is None
        question = self._request(
            agent,
            node=node,
            name=f"{agent}-{request.tries}",
            task=request.task,
            values=values,
            png=self._figure("composite", request) if draws else None,
            max_tokens=(max_tokens, max_tokens),
        )
        if refused is not None:
            goes_on = refused.refused(str(request.rejected))
            question = dataclasses.replace(question, conversation=goes_on)
        try:
            answer = _usable(self._clients[agent].generate(question))
            proposal = proposal_from(answer.parsed, bounds)
            self._remember(agent, node, answer)
        except CapReachedError as error:
            if self._settings.on_cap == "stop":
                raise
            return instead_of_model(expert(), error)
        except AgentError as error:
            raise_outage(error, self._settings.on_outage)
            return instead_of_model(expert(), error)
        if request.rejected is None:
            return proposal  # if it breaks a rule, the coordinator returns it with the reason
        bounded = enforce_bounds(proposal, bounds)
        if bounded is None:
            return instead_of_model(
                expert(), f"nothing of its second proposal could be kept ({request.rejected})"
            )
        proposal, notes = bounded
        if not notes:
            return proposal
        return dataclasses.replace(proposal, rationale=f"{proposal.rationale} Repaired: {'; '.join(notes)}.")

    def _remember(self, agent: str, node: int, answer: StructuredResponse) -> None:
        self._answers[agent, node] = answer
        for oldest in tuple(self._answers)[:-MOST_ANSWERS]:
            self._answers.pop(oldest, None)

    def _request(
        self,
        agent: AgentName,
        *,
        node: int,
        name: str,
        task: TaskView,
        values: Iterable[dict[str, Any]],
        png: bytes | None,
        max_tokens: tuple[int, ...],
    ) -> StructuredRequest:
        """Request with the first of the `values` that keeps it within context.MOST_TOKENS, or with the last
        if none does."""
        stable = context.stable_context(
            agent,
            task,
            self._prompts.knowledge,
            n_val=self._settings.n_val,
            n_gpus=self._settings.n_gpus,
            visual=self._settings.visual,
            multi_stage=self._settings.multi_stage,
            priors=self._settings.priors,
            space=self._settings.space,
        )

        tool = TOOLS[agent].definition(strict=self._settings.strict_tools)
        room = context.MOST_TOKENS - tokens(json.dumps([tool.name, tool.description, tool.schema]))
        room -= 0 if png is None else image_tokens(png)
        for call in values:
            text = self._prompts.render(agent, stable, call)
            if tokens(text.system + text.user) <= room:
                break

        def render(rejection: str | None) -> Rendered:
            if rejection is None:
                return text
            return self._prompts.render(agent, stable, {**call, "rejected": rejection})

        return StructuredRequest(
            agent=agent,
            node=node,
            name=name,
            render=render,
            tool=tool,
            parse=TOOLS[agent].parse,
            validate=_problems,
            max_tokens=max_tokens,
            png=png,
        )

    def _figure(self, kind: str, request: Any) -> bytes | None:
        """Figure of a request. None if figures are off, or if it cannot be drawn."""
        if not self._settings.visual:
            return None
        try:
            return self._draw_figure(kind, request, self._settings.n_val)
        except Exception as error:  # noqa: BLE001 - whatever drawing raises, the numbers are in the text
            logger.warning("no picture for the agents: %s: %s", type(error).__name__, error)
            return None


def _problems(answer: ProposalSchema | ErrorSchema | VerdictSchema) -> list[str]:
    """Problems, as text for the model, of an answer that fits its schema but says nothing."""
    if isinstance(answer, VerdictSchema):
        said = [answer.reason]
    else:
        found = answer.diagnosis if isinstance(answer, ProposalSchema) else answer
        said = [found.summary, *found.evidence, *(change.reason for change in answer.changes)]
    return [] if any(said) else ["the answer says nothing: give the evidence and the reason of each change"]


def _usable(answer: StructuredResponse) -> StructuredResponse:
    """The answer. Raises AgentError if problems remain after all tries."""
    if answer.problems:
        raise AgentError("; ".join(answer.problems))
    return answer


def _diagnosis(response: ProposalSchema) -> Diagnosis:
    diagnosis = response.diagnosis
    turns = tuple(f"step {turn.step}: {turn.what}" for turn in diagnosis.inflection_points)
    odd = tuple(f"anomaly: {what}" for what in diagnosis.anomalies)
    return Diagnosis(
        state=diagnosis.state, summary=diagnosis.summary, evidence=(*diagnosis.evidence, *turns, *odd)
    )


def instead_of_model(proposal: Proposal, why: object) -> Proposal:
    """The expert's proposal, with the reason why the model's is not used."""
    why = collapse_whitespace(str(why))
    why = why if len(why) <= 400 else f"{why[:399]}…"
    return dataclasses.replace(
        proposal, rationale=f"The rules answer instead of the language model: {why} {proposal.rationale}"
    )
