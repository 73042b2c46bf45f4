"""Options of `llmzero draft`, and what they say about the task.

Not here: what is done with them (drafting.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from llmzero_ray.errors import ConfigError

if TYPE_CHECKING:
    from llmzero_ray.agents.drafting.values import Given


def parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    made = argparse.ArgumentParser(prog="llmzero draft", description="Draft a task from a folder of data.")
    made.add_argument("folder", metavar="FOLDER", help="holds the data: JSON, JSON Lines, CSV, TSV, Parquet")
    made.add_argument("sentence", metavar="SENTENCE", help="what the model must learn")
    made.add_argument("--out", required=True, metavar="DIR", help="receives the files of the draft")
    made.add_argument("--backend", default="expert", help="who drafts: expert (rules, offline) or claude")
    made.add_argument("--model", metavar="ID", help="language model (default: that of agents.model)")
    made.add_argument("--max-dollars", type=float, default=1.0, help="most that calls may cost (default: 1)")
    made.add_argument("--repairs", type=int, default=2, help="how often a reward is mended (default: 2)")
    made.add_argument("--force", action="store_true", help="replace files of DIR that differ")
    made.add_argument("--name", help="of the task")
    made.add_argument("--table", type=int, metavar="N", help="which files, where their columns differ")
    made.add_argument("--question-field", metavar="COLUMN", help="holds the question")
    made.add_argument("--answer-field", metavar="COLUMN", help="holds the right answer")
    told = "holds the options, or one of them: give it again for each"
    made.add_argument("--options-field", action="append", default=[], metavar="COLUMN", help=told)
    made.add_argument(
        "--answer-form", choices=("letter", "text", "index"), help="with options: what it holds"
    )
    made.add_argument("--reward", metavar="R", help="exact_match, mcq, math, regex=PATTERN, FILE.py:function")
    told = "set a field of agents, such as agents.base_url=http://localhost:8000"
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=told)
    return made


def given_of(arguments: argparse.Namespace) -> Given:
    """What the user has decided.

    Raises:
        ConfigError: the name cannot be one.
    """
    from llmzero_ray.agents.drafting.checking import NAME
    from llmzero_ray.agents.drafting.values import Given

    if arguments.name is not None and not NAME.fullmatch(arguments.name):
        raise ConfigError(f"--name {arguments.name}: must be 1 to 63 of a-z, 0-9, _ and -")
    reward = arguments.reward
    if reward is not None and ".py:" in reward:
        reward = str(Path(reward).absolute())
    return Given(
        name=arguments.name,
        table=arguments.table,
        question=arguments.question_field,
        answer=arguments.answer_field,
        options=tuple(arguments.options_field),
        answer_form=arguments.answer_form,
        reward=reward,
    )
