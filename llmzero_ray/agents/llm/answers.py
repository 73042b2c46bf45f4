"""The forms in which a language model answers: one tool per agent, and its reading into records.

The schemas keep to what the API can enforce while it generates: closed objects, enumerations, no numeric
bounds. What they cannot say (bounds, couplings, sums) is checked afterwards (repair.py). Not here: the words
that explain the fields (prompts/).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from llmzero_ray.agents.base import AgentName
from llmzero_ray.agents.llm.briefing_text import clean
from llmzero_ray.agents.llm.call import Tool
from llmzero_ray.errors import ProposalError

State: TypeAlias = Literal[
    "healthy", "slow", "plateau", "collapsing", "truncated", "inactive", "failed", "unknown"
]
_MAX_TEXT = 2000
_MAX_ENTRIES = 12
"""Longer answers are cut, not refused: nothing is lost that a reader would miss."""


def _cut(value: Any) -> Any:
    return clean(value[:_MAX_TEXT]) if isinstance(value, str) else value


def _few(value: Any) -> Any:
    return value[:_MAX_ENTRIES] if isinstance(value, list) else value


Text = Annotated[str, BeforeValidator(_cut), StringConstraints(strip_whitespace=True)]
Texts = Annotated[list[Text], BeforeValidator(_few)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class InflectionPoint(_Form):
    """Where the run changed its course."""

    step: int
    """Step of the phase."""
    what: Text
    """What turned there."""


class DiagnosisForm(_Form):
    """Stage 1: what the curves say."""

    state: State
    """The one word that fits best."""
    summary: Text
    """Two or three sentences: the state, since when, and its likely cause."""
    evidence: Texts
    """One fact each, with metric name, numbers and steps; primary metrics first."""
    inflection_points: Annotated[list[InflectionPoint], BeforeValidator(_few)]
    """Turns of the curves; empty where there are none."""
    anomalies: Texts
    """What does not fit the picture; empty where there is nothing."""


class ChangeForm(_Form):
    """One hyper-parameter with a new value."""

    name: Annotated[Text, Field(min_length=1)]
    """Short name or VeRL key, as in the configuration."""
    value: bool | int | float | str | list[float] | None
    """The new value itself, never a factor."""
    reason: Text
    """Which observed cause it acts on, and what should be seen if it works."""


class SavedStep(_Form):
    """A checkpoint that is offered."""

    node: int
    step: int
    """Counted inside that node's phase."""


class CheckpointForm(_Form):
    """Stage 3: where the phase starts."""

    resume_from: SavedStep | None
    """Null: from the base model, with a fresh adapter."""
    reason: Text
    """Why there."""


class LengthForm(_Form):
    """Stage 4: how long it trains."""

    n_steps: int
    """Training steps of the new phase."""
    total_epochs: int
    """Passes over the training data on the whole path when it ends, rounded up."""
    arithmetic: Text
    """The sum written out."""


class ProposalForm(_Form):
    """The proposer's answer, in the order in which it is thought out."""

    diagnosis: DiagnosisForm
    changes: Annotated[list[ChangeForm], BeforeValidator(_few)]
    """Stage 2: changes that act together; empty to go on as before."""
    checkpoint: CheckpointForm
    length: LengthForm


class ErrorForm(_Form):
    """The error analyzer's answer."""

    failure_class: Literal[
        "oom", "nan", "config", "mismatch", "engine", "data", "timeout", "resource", "unknown"
    ]
    """What kind of failure it is."""
    summary: Text
    """The root cause in a sentence or two."""
    evidence: Texts
    """Lines or numbers that show it."""
    changes: Annotated[list[ChangeForm], BeforeValidator(_few)]
    """The smallest change that lets the phase train; empty to try the same again."""
    checkpoint: CheckpointForm
    length: LengthForm


class VerdictForm(_Form):
    """The early stopper's answer."""

    decision: Literal["CONTINUE", "STOP"]
    """STOP only where the run cannot realistically beat the best strategy."""
    reason: Text
    """One sentence with the numbers that decide."""


FORMS: dict[AgentName, type[_Form]] = {
    "proposer": ProposalForm,
    "error_analyzer": ErrorForm,
    "early_stopper": VerdictForm,
}
_TOOLS: dict[AgentName, tuple[str, str]] = {
    "proposer": ("propose_phase", "Hand in the diagnosis of the run and the next training phase."),
    "error_analyzer": ("propose_fix", "Hand in the cause of the failure and the phase that avoids it."),
    "early_stopper": ("give_verdict", "Hand in whether the running phase goes on."),
}


def tool(agent: AgentName, *, strict: bool) -> Tool:
    """The tool through which an agent answers; `strict`: the server is to enforce its schema."""
    name, description = _TOOLS[agent]
    return Tool(name=name, description=description, schema=_schema(FORMS[agent]), strict=strict)


def read(agent: AgentName, answer: Any) -> Any:
    """The form that a tool's input fills in.

    Raises:
        ProposalError: it does not fit; says where and what is allowed, in words for the model.
    """
    try:
        return FORMS[agent].model_validate(answer)
    except ValidationError as error:
        raise ProposalError(_told(error)) from error


_UNION = {"bool", "int", "float", "str", "list[float]"}
"""Where pydantic names the member of a union that it tried; a model knows fields only."""


def _told(error: ValidationError) -> str:
    faults: dict[str, str] = {}
    for fault in error.errors(include_url=False, include_input=False):
        place = ".".join(str(part) for part in fault["loc"] if part not in _UNION) or "the answer"
        what = "must be an object" if fault["type"] == "model_type" else fault["msg"].lower()
        faults.setdefault(place, what)
    told = [f"{place}: {what}" for place, what in faults.items()]
    more = f"; and {len(told) - 6} more" if len(told) > 6 else ""
    return f"the answer does not fit the tool's schema: {'; '.join(told[:6])}{more}."


def _schema(form: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema without references, titles and bounds."""
    schema = form.model_json_schema()
    found = _inlined(schema, schema.get("$defs", {}))
    assert isinstance(found, dict)
    return found


_DROPPED = {"$defs", "title", "default", "minLength", "maxLength", "minimum", "maximum", "pattern"}


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(entry, definitions) for entry in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        target = definitions[part["$ref"].rpartition("/")[2]]
        own = {key: value for key, value in part.items() if key != "$ref"}
        return _inlined({**target, **own}, definitions)
    kept = {}
    for key, value in part.items():
        if key == "properties":
            kept[key] = {name: _inlined(entry, definitions) for name, entry in value.items()}
        elif key not in _DROPPED:
            kept[key] = _inlined(value, definitions)
    return kept
