"""The instructions of the skill-based agent: its system prompt and its skills, from prompts/skills/."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from llmzero_ray.agents.knowledge import prompt_file
from llmzero_ray.errors import ConfigError

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
"""The eight skills of the paper, and the tree search as one more."""
AGENT = "agent"
"""The system prompt."""


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
