"""Agents driven by a language model behind the Messages API, with the offline expert as their understudy.

A fixed workflow: each request is one question with one form to fill in. A proposal that breaks a rule goes
back once with the reason; the second one is repaired. Whatever goes wrong, the search gets an answer: the
expert's proposal, or CONTINUE. Not here: texts (prompts/), values (briefing.py), transport and money
(agent_client.py).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from llmzero_ray.agents.base import (
    AgentName,
    ErrorRequest,
    ProposalRequest,
    StopRequest,
    TaskView,
)
from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer, ExpertProposer
from llmzero_ray.agents.llm import briefing
from llmzero_ray.agents.llm.agent_client import AgentClient, Question
from llmzero_ray.agents.llm.answers import ErrorForm, ProposalForm, VerdictForm, read, tool
from llmzero_ray.agents.llm.prompting import Prompts, Rendered
from llmzero_ray.agents.llm.repair import Bounds, bounds_of, proposal_of, repaired
from llmzero_ray.errors import AgentError, CapReachedError
from llmzero_ray.records import Diagnosis, Proposal, StopDecision

logger = logging.getLogger(__name__)

PROPOSAL_TOKENS, FIX_TOKENS, VERDICT_TOKENS = 1500, 1200, 150
"""Longest answers that are asked for."""
ROOM_TO_THINK = 4000
RULE = "early_stopper"

Picture: TypeAlias = Callable[[str, Any, int], bytes]
"""(kind of picture, request, validation items) -> PNG; may take seconds and runs outside of actors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelAgentSettings:
    """What holds for all questions of a search."""

    n_val: int
    """Validation items."""
    n_gpus: int = 1
    """GPUs of a slot."""
    visual: bool = True
    multi_stage: bool = True
    strict_tools: bool = True
    """The server is asked to enforce the schema of an answer."""
    on_cap: Literal["expert", "stop"] = "expert"
    backend: str = "claude"
    """Who is named as the author of proposals."""


class ModelAgents:
    """Proposer, error analyzer and early stopper in one object."""

    def __init__(
        self, client: AgentClient, prompts: Prompts, setting: ModelAgentSettings, picture: Picture
    ) -> None:
        self._client, self._prompts, self._setting, self._picture = client, prompts, setting, picture
        self._expert = ExpertProposer(n_val=setting.n_val, n_gpus=setting.n_gpus)
        self._fixer = ExpertErrorAnalyzer(n_gpus=setting.n_gpus)
        self._stopper = ExpertEarlyStopper(n_val=setting.n_val)

    # --- protocols ------------------------------------------------------------------------------------------

    def propose(self, request: ProposalRequest) -> Proposal:
        """The model's proposal, repaired where a second one still breaks a rule, else the expert's.

        Raises:
            CapReachedError: `budget.dollars` is used up and `agents.on_cap` is `stop`.
        """
        values = briefing.proposer_context(
            request,
            self._prompts.knowledge,
            n_val=self._setting.n_val,
            n_gpus=self._setting.n_gpus,
        )

        def proposal_from(form: ProposalForm, bounds: Bounds) -> Proposal:
            return proposal_of(
                _diagnosis(form), form.changes, form.checkpoint, form.length, bounds, self._setting.backend
            )

        return self._answered(
            "proposer", request, values, PROPOSAL_TOKENS, proposal_from, lambda: self._expert.propose(request)
        )

    def analyze(self, request: ErrorRequest) -> Proposal:
        """The model's fix of a failed phase, repaired or replaced as a proposal is.

        Raises:
            CapReachedError: `budget.dollars` is used up and `agents.on_cap` is `stop`.
        """
        values = briefing.error_context(request, n_val=self._setting.n_val, n_gpus=self._setting.n_gpus)

        def proposal_from(form: ErrorForm, bounds: Bounds) -> Proposal:
            summary = f"{form.failure_class}: {form.summary}"
            diagnosis = Diagnosis(state="failed", summary=summary, evidence=tuple(form.evidence))
            return proposal_of(
                diagnosis, form.changes, form.checkpoint, form.length, bounds, self._setting.backend
            )

        return self._answered(
            "error_analyzer", request, values, FIX_TOKENS, proposal_from, lambda: self._fixer.analyze(request)
        )

    def judge(self, request: StopRequest) -> StopDecision:
        """The model's verdict; CONTINUE on any error. At the cap the expert judges."""
        values = briefing.stop_context(request, n_val=self._setting.n_val, checks=request.checks)
        steps = request.running.curves.steps
        question = self._question(
            "early_stopper",
            node=request.running.node,
            name=f"early_stopper-{steps[-1] if steps else 0:06d}",
            task=request.task,
            values=values,
            png=self._drawn("overlay", request),
            max_tokens=(VERDICT_TOKENS,),
        )
        try:
            form: VerdictForm = self._client.ask(question).form
        except CapReachedError:
            return self._stopper.judge(request)
        except AgentError as error:
            return StopDecision(stop=False, reason=f"no judgement, so it goes on: {error}", rule=RULE)
        return StopDecision(stop=form.decision == "STOP", reason=form.reason, rule=RULE)

    # --- parts ----------------------------------------------------------------------------------------------

    def _answered(
        self,
        agent: AgentName,
        request: ProposalRequest | ErrorRequest,
        values: dict[str, Any],
        max_tokens: int,
        proposal_from: Callable[[Any, Bounds], Proposal],
        expert: Callable[[], Proposal],
    ) -> Proposal:
        bounds = bounds_of(request, self._setting.n_gpus)
        base = request.failed if isinstance(request, ErrorRequest) else request.on
        question = self._question(
            agent,
            node=base.node if request.node is None else request.node,
            name=f"{agent}-{request.tries}",
            task=request.task,
            values=values,
            png=self._drawn("composite", request) if isinstance(request, ProposalRequest) else None,
            max_tokens=(max_tokens, max_tokens),
        )
        try:
            proposal = proposal_from(self._client.ask(question).form, bounds)
        except CapReachedError as error:
            if self._setting.on_cap == "stop":
                raise
            return _instead(expert(), str(error))
        except AgentError as error:
            return _instead(expert(), str(error))
        if request.rejected is None:
            return proposal  # the coordinator judges it, and sends it back with the reason
        mended = repaired(proposal, bounds)
        if mended is None:
            return _instead(expert(), f"nothing of its second proposal could be kept ({request.rejected})")
        proposal, notes = mended
        if not notes:
            return proposal
        return dataclasses.replace(proposal, rationale=f"{proposal.rationale} Repaired: {'; '.join(notes)}.")

    def _question(
        self,
        agent: AgentName,
        *,
        node: int,
        name: str,
        task: TaskView,
        values: dict[str, Any],
        png: bytes | None,
        max_tokens: tuple[int, ...],
    ) -> Question:
        stable = briefing.stable_context(
            agent,
            task,
            self._prompts.knowledge,
            n_val=self._setting.n_val,
            n_gpus=self._setting.n_gpus,
            visual=self._setting.visual,
            multi_stage=self._setting.multi_stage,
        )

        def render(refused: str | None) -> Rendered:
            return self._prompts.render(
                agent, stable, values if refused is None else {**values, "rejected": refused}
            )

        return Question(
            agent=agent,
            node=node,
            name=name,
            render=render,
            tool=tool(agent, strict=self._setting.strict_tools),
            read=partial(read, agent),
            max_tokens=max_tokens,
            png=png,
        )

    def _drawn(self, kind: str, request: Any) -> bytes | None:
        """The picture of a question; a question without one is better than none."""
        if not self._setting.visual:
            return None
        try:
            return self._picture(kind, request, self._setting.n_val)
        except Exception as error:  # noqa: BLE001 - whatever drawing raises, the numbers are in the text
            logger.warning("no picture for the agents: %s: %s", type(error).__name__, error)
            return None


def _diagnosis(form: ProposalForm) -> Diagnosis:
    said = form.diagnosis
    turns = tuple(f"step {turn.step}: {turn.what}" for turn in said.inflection_points)
    odd = tuple(f"anomaly: {what}" for what in said.anomalies)
    return Diagnosis(state=said.state, summary=said.summary, evidence=(*said.evidence, *turns, *odd))


def _instead(proposal: Proposal, why: str) -> Proposal:
    """The expert's answer in place of the model's, with the reason."""
    why = " ".join(why.split())
    why = why if len(why) <= 400 else f"{why[:399]}…"
    return dataclasses.replace(
        proposal, rationale=f"The rules answer instead of the language model: {why} {proposal.rationale}"
    )
