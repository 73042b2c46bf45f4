"""Response schemas of the agents: one tool per agent, whose input is the response.

What a schema cannot say (bounds, couplings, sums) is checked afterwards (proposal_response.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from llmzero_ray.agents.llm.structured_output import FEW, ResponseSchema, ResponseTool, Text, Texts
from llmzero_ray.records import DiagnosisState
from llmzero_ray.records.agents import AgentName
from llmzero_ray.utils.text import clean

_LARGEST = 2**53
"""Whole numbers beyond it are no floats any more."""
_LONGEST = 200
"""Characters of a value or a name."""
_MOST_NUMBERS = 16


def _bounded(value: Any) -> Any:
    """A value that every later step can hold, print and draw. Raises ValueError with what is allowed."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError("a whole number must lie within ±2**53")
    if isinstance(value, list) and len(value) > _MOST_NUMBERS:
        raise ValueError(f"a list must have at most {_MOST_NUMBERS} numbers")
    if isinstance(value, str) and (len(value) > _LONGEST or clean(value) != value or "\n" in value):
        raise ValueError(f"a text must have at most {_LONGEST} plain characters")
    return value


Whole = Annotated[int, AfterValidator(_bounded)]
"""A whole number of a size that counts something."""


class InflectionPoint(ResponseSchema):
    """Where the run changed its course."""

    step: Whole
    what: Text


class DiagnosisSchema(ResponseSchema):
    """Stage 1: what the curves say."""

    state: DiagnosisState
    """The one word that fits best."""
    summary: Text
    """Two or three sentences: the state, since when, and its likely cause."""
    evidence: Texts
    """One fact each, with metric name, numbers and steps; primary metrics first."""
    inflection_points: Annotated[list[InflectionPoint], FEW]
    """Turns of the curves, with the step of the phase; empty where there are none."""
    anomalies: Texts
    """What does not fit the picture; empty where there is nothing."""


class ChangeSchema(ResponseSchema):
    """One hyper-parameter with a new value."""

    name: Annotated[Text, Field(min_length=1, max_length=_LONGEST)]
    """Short name or VeRL key, as in the configuration."""
    value: Annotated[bool | int | float | str | list[float] | None, AfterValidator(_bounded)]
    """The new value itself, never a factor."""
    reason: Text
    """Which observed cause it acts on, and what should be seen if it works."""


class SavedStep(ResponseSchema):
    """A checkpoint that is offered."""

    node: Whole
    step: Whole
    """Counted inside that node's phase."""


class CheckpointSchema(ResponseSchema):
    """Stage 3: where the phase starts."""

    resume_from: SavedStep | None
    """Null: from the base model, with a fresh adapter."""
    reason: Text


class LengthSchema(ResponseSchema):
    """Stage 4: how long it trains."""

    n_steps: Whole
    """Training steps of the new phase."""
    arithmetic: Text
    """The sum of its cost written out."""

    @model_validator(mode="before")
    @classmethod
    def _recorded_before(cls, given: Any) -> Any:
        """Earlier answers hold `total_epochs`, too, which was of no effect."""
        return {k: v for k, v in given.items() if k != "total_epochs"} if isinstance(given, dict) else given


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


def _percent(value: Any) -> Any:
    """The value, if it is no fraction: 1.0 and true would be read as one percent."""
    if isinstance(value, bool) or (isinstance(value, float | str) and 0 < float(value) <= 1):
        raise ValueError("a chance must be a whole number of percent, 0 to 100")
    return value


def _within_percent(value: int) -> int:
    if not 0 <= value <= 100:
        raise ValueError("a chance must lie within 0 and 100")
    return value


class VerdictSchema(ResponseSchema):
    """The early stopper's answer."""

    reason: Text
    """One sentence with the numbers that decide."""
    chance: Annotated[int, BeforeValidator(_percent), AfterValidator(_within_percent)]
    """Chance in percent, 0 to 100, that the phase's best later validation passes the best score."""

    @model_validator(mode="before")
    @classmethod
    def _recorded_before(cls, given: Any) -> Any:
        """Answers that version 0.1 recorded have `decision`, STOP or CONTINUE, in place of the chance."""
        if isinstance(given, dict) and (said := given.get("decision")) in ("STOP", "CONTINUE"):
            return {"reason": given.get("reason"), "chance": 0 if said == "STOP" else 100}
        return given


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
        name="give_verdict",
        description="Hand in the chance that the running phase wins.",
        schema=VerdictSchema,
    ),
}
"""The tool of each agent."""
