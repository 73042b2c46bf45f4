"""Tools of the skill-based agent, and the texts of prompts/skills/.

Every question offers the same list of tools, so that the prompt cache can hold it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field

from llmzero_ray.agents.knowledge import prompt_file
from llmzero_ray.agents.llm.response_schemas import ChangeSchema, CheckpointSchema, SavedStep, Whole
from llmzero_ray.agents.llm.structured_output import FEW, ResponseSchema, ResponseTool, Text, Texts
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import DiagnosisState

SkillName: TypeAlias = Literal[
    "prepare_dataset",
    "define_reward",
    "validate_run",
    "generate_config",
    "download_model",
    "submit_training",
    "check_training",
    "gather_results",
    "tree_search",
]
SKILLS: tuple[SkillName, ...] = get_args(SkillName)
"""The paper's eight skills, and the tree search as the ninth."""
AGENT = "agent"
"""Name of the system prompt in the texts."""


class UseSkill(ResponseSchema):
    """Which skill."""

    name: SkillName


class Nothing(ResponseSchema):
    """No input."""


class ReadMetrics(ResponseSchema):
    """Which metrics of which run."""

    node: Whole
    names: Texts
    """Names of metrics; empty: a summary of all."""


class CheckConfig(ResponseSchema):
    """A run that may be handed in."""

    changes: Annotated[list[ChangeSchema], FEW]
    resume_from: SavedStep | None
    n_steps: Whole


class Verdict(ResponseSchema):
    """On one hyper-parameter."""

    name: Text
    verdict: Literal["KEEP", "INCREASE", "DECREASE"]
    reason: Text
    """The numbers behind it."""


class SubmitTraining(ResponseSchema):
    """The next run."""

    state: DiagnosisState
    """How the last run went, in one word."""
    summary: Text
    """Two or three sentences: what was seen, and what is decided."""
    verdicts: Annotated[list[Verdict], Field(max_length=32)]
    """One for each hyper-parameter of the diagnosis."""
    changes: Annotated[list[ChangeSchema], FEW]
    checkpoint: CheckpointSchema
    n_steps: Whole
    expected_validation: float | None


class HandOver(ResponseSchema):
    """To the tree search."""

    runs: Annotated[int, Field(ge=1, le=64)]
    """How many runs it plans, the next one included."""
    reason: Text


class DecideRun(ResponseSchema):
    """Whether a running run goes on."""

    decision: Literal["CONTINUE", "STOP"]
    reason: Text
    """One sentence with the numbers that decide."""


TOOLS: dict[str, ResponseTool] = {
    tool.name: tool
    for tool in (
        ResponseTool(name="use_skill", description="Read the instructions of a skill.", schema=UseSkill),
        ResponseTool(
            name="show_task", description="Show rows, reward, base model and limits.", schema=Nothing
        ),
        ResponseTool(
            name="list_runs",
            description="List all runs with starts, changes, scores and saved checkpoints.",
            schema=Nothing,
        ),
        ResponseTool(name="read_metrics", description="Show metrics of a run.", schema=ReadMetrics),
        ResponseTool(
            name="check_config",
            description="Check a configuration, start and length; trains nothing.",
            schema=CheckConfig,
        ),
        ResponseTool(
            name="submit_training",
            description="Hand in the next run, with its diagnosis.",
            schema=SubmitTraining,
        ),
        ResponseTool(
            name="tree_search", description="Hand the next runs over to the tree search.", schema=HandOver
        ),
        ResponseTool(
            name="decide_run",
            description="Decide whether the running run continues or ends now.",
            schema=DecideRun,
        ),
    )
}
DECIDING = {"run": ("submit_training", "tree_search"), "check": ("decide_run",)}
"""Kind of question -> the tools that answer it."""


def skill_texts() -> dict[str, str]:
    """Name -> text of the system prompt and of every skill.

    Raises:
        ConfigError: a file is missing or is not UTF-8.
    """
    found = {}
    for name in (AGENT, *SKILLS):
        file = prompt_file(f"skills/{name}.md")
        try:
            found[name] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}; it must be a text file in UTF-8.") from error
    return found
