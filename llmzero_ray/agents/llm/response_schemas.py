"""Response schemas of the agents: one tool per agent, whose input is the response.

What a schema cannot say (bounds, couplings, sums) is checked afterwards (proposal_response.py). Not here: how
a schema becomes JSON Schema and a response is parsed (structured_output.py), the words that explain the
fields (prompts/).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llmzero_ray.agents.base import AgentName
from llmzero_ray.agents.llm.structured_output import FEW, ResponseSchema, ResponseTool, Text, Texts
from llmzero_ray.records import DiagnosisState


class InflectionPoint(ResponseSchema):
    """Where the run changed its course."""

    step: int
    """Step of the phase."""
    what: Text
    """What turned there."""


class DiagnosisSchema(ResponseSchema):
    """Stage 1: what the curves say."""

    state: DiagnosisState
    """The one word that fits best."""
    summary: Text
    """Two or three sentences: the state, since when, and its likely cause."""
    evidence: Texts
    """One fact each, with metric name, numbers and steps; primary metrics first."""
    inflection_points: Annotated[list[InflectionPoint], FEW]
    """Turns of the curves; empty where there are none."""
    anomalies: Texts
    """What does not fit the picture; empty where there is nothing."""


class ChangeSchema(ResponseSchema):
    """One hyper-parameter with a new value."""

    name: Annotated[Text, Field(min_length=1)]
    """Short name or VeRL key, as in the configuration."""
    value: bool | int | float | str | list[float] | None
    """The new value itself, never a factor."""
    reason: Text
    """Which observed cause it acts on, and what should be seen if it works."""


class SavedStep(ResponseSchema):
    """A checkpoint that is offered."""

    node: int
    step: int
    """Counted inside that node's phase."""


class CheckpointSchema(ResponseSchema):
    """Stage 3: where the phase starts."""

    resume_from: SavedStep | None
    """Null: from the base model, with a fresh adapter."""
    reason: Text
    """Why there."""


class LengthSchema(ResponseSchema):
    """Stage 4: how long it trains."""

    n_steps: int
    """Training steps of the new phase."""
    total_epochs: int
    """Passes over the training data on the whole path when it ends, rounded up."""
    arithmetic: Text
    """The sum written out."""


class ProposalSchema(ResponseSchema):
    """The proposer's answer, in the order in which it is thought out."""

    diagnosis: DiagnosisSchema
    changes: Annotated[list[ChangeSchema], FEW]
    """Stage 2: changes that act together; empty to go on as before."""
    checkpoint: CheckpointSchema
    length: LengthSchema
    expected_validation: float | None = None
    """The best validation score that you expect of this phase."""


class ErrorSchema(ResponseSchema):
    """The error analyzer's answer."""

    failure_class: Literal[
        "oom", "nan", "config", "mismatch", "reward", "engine", "data", "timeout", "resource", "unknown"
    ]
    """What kind of failure it is."""
    summary: Text
    """The root cause in a sentence or two."""
    evidence: Texts
    """Lines or numbers that show it."""
    changes: Annotated[list[ChangeSchema], FEW]
    """The smallest change that lets the phase train; empty to try the same again."""
    checkpoint: CheckpointSchema
    length: LengthSchema


class VerdictSchema(ResponseSchema):
    """The early stopper's answer."""

    decision: Literal["CONTINUE", "STOP"]
    """STOP only where the run cannot realistically beat the best strategy."""
    reason: Text
    """One sentence with the numbers that decide."""


TOOLS: dict[AgentName, ResponseTool] = {
    "proposer": ResponseTool(
        name="propose_phase",
        description="Hand in the diagnosis of the run and the next training phase.",
        schema=ProposalSchema,
    ),
    "error_analyzer": ResponseTool(
        name="propose_fix",
        description="Hand in the cause of the failure and the phase that avoids it.",
        schema=ErrorSchema,
    ),
    "early_stopper": ResponseTool(
        name="give_verdict", description="Hand in whether the running phase goes on.", schema=VerdictSchema
    ),
}
"""The tool of each agent."""
