"""From what was understood to the fields of task.yaml and of search.yaml, and to what a recipe is chosen by.

Not here: writing them down (writing.py), trying them (trial.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.agents.drafting.perceive import as_text
from llmzero_ray.agents.drafting.recipes import recipes
from llmzero_ray.agents.drafting.values import Ranking, Reading, RewardPlan, Row, TaskFacts
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.tasks.sources.base import option_lines
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, fill_template, template_fields

REWARD_FILE = "reward.py"
_SIZES = {"n_train": 5_000, "n_val": 500, "n_test": 500}
_HELD_OUT_SHARE = 10
"""One row in this many is held out for each of the two other splits, where there are few."""
_SPLIT = {
    "test_files": re.compile(r"(?:^|[/_.-])(?:test|eval|evaluation)(?:[/_.-]|$)", re.IGNORECASE),
    "val_files": re.compile(r"(?:^|[/_.-])(?:val|valid|validation|dev)(?:[/_.-]|$)", re.IGNORECASE),
}
_CHARS_PER_TOKEN = 3
"""Of ASCII text, on the safe side; any other character counts as a token."""
_TEMPLATE_TOKENS, _PROMPT_STEP, _STEP = 128, 256, 256
_ROOM = {"exact_match": 512, "regex": 768}
_ROOM_TO_THINK = 1_024
_MAX_TOKENS = 32_768
_BATCHES = (128, 64, 32, 16, 8, 4, 2, 1)
_STEPS_PER_EPOCH = 8


def task_fields(reading: Reading, plan: RewardPlan, folder: Path) -> dict[str, Any]:
    """Fields of task.yaml in their order; what is open is None.

    File names are absolute, below `folder`; the reward's code is expected beside task.yaml.
    """
    places = _places(reading.table.files, folder)
    prompt = None if reading.template is None else reading.template + _instruction(plan.instruction)
    fields = {
        "name": reading.name,
        "dir": f"data/{reading.name}",
        **places,
        **sizes(reading),
        "prompt": prompt,
        "answer": reading.answer,
        "choices": list(reading.choices) or None,
        "answer_form": reading.answer_form if reading.choices else None,
        "reward": _reward(plan),
        "licence": reading.licence,
    }
    return {name: value for name, value in fields.items() if value is not None or name in _NEEDED}


_NEEDED = ("prompt", "answer", "reward")


def _instruction(text: str) -> str:
    return "\n\n" + text.strip().replace("{", "{{").replace("}", "}}") if text.strip() else ""


def _places(files: tuple[str, ...], folder: Path) -> dict[str, list[str]]:
    """Files by the split that their names tell."""
    found: dict[str, list[str]] = {}
    for name in files:
        field = next((field for field, pattern in _SPLIT.items() if pattern.search(name)), "files")
        found.setdefault(field, []).append(str(folder.absolute() / name))
    if "files" not in found:  # nothing to train on: all rows may go anywhere
        return {"files": [place for places in found.values() for place in places]}
    return {field: found[field] for field in ("files", "val_files", "test_files") if field in found}


def sizes(reading: Reading) -> dict[str, int]:
    """Rows of each split: the usual ones, or what the table has."""
    held_out = max(1, min(_SIZES["n_val"], reading.table.n_rows // _HELD_OUT_SHARE))
    left = max(1, reading.table.n_rows - 2 * held_out)
    return {"n_train": min(_SIZES["n_train"], left), "n_val": held_out, "n_test": held_out}


def _reward(plan: RewardPlan) -> str | dict[str, Any] | None:
    if plan.kind is None:
        return None
    gold = {} if plan.gold is None else {"gold": plan.gold}
    if plan.kind == "python":
        return {"python": plan.function or f"{REWARD_FILE}:compute_score", **gold}
    if not plan.options and not gold:
        return plan.kind
    return {plan.kind: dict(plan.options), **gold}


# --- the search ---------------------------------------------------------------------------------------------


def facts_of(reading: Reading, plan: RewardPlan) -> TaskFacts:
    """What a recipe is chosen by."""
    rows = reading.table.rows
    answers = [as_text(row.get(reading.answer)) for row in rows] if reading.answer else []
    column = reading.table.column(reading.answer) if reading.answer else None
    return TaskFacts(
        n_train=sizes(reading)["n_train"],
        kind=plan.kind,
        prompt_tokens=max((_prompt_tokens(reading, row) for row in rows), default=0) + _TEMPLATE_TOKENS,
        answer_tokens=max(map(tokens_of, answers), default=0),
        n_labels=None if column is None else column.distinct,
    )


def tokens_of(text: str) -> int:
    """About how many tokens a text has, rather too many than too few."""
    plain = sum(character.isascii() for character in text)
    return -(-plain // _CHARS_PER_TOKEN) + len(text) - plain


def _prompt_tokens(reading: Reading, row: Row) -> int:
    if reading.template is None:
        return tokens_of(as_text(row))
    values = {name: as_text(row.get(name)) for name in template_fields(reading.template)}
    if reading.choices:
        shown = {str(n): as_text(row.get(name)) for n, name in enumerate(reading.choices)}
        values[OPTIONS_FIELD] = option_lines(shown)
    return tokens_of(fill_template(reading.template, values))


def response_tokens(facts: TaskFacts) -> int:
    """Cap of a rollout at the root: the longest answer twice, and room to think before it."""
    room = _ROOM.get(facts.kind or "", _ROOM_TO_THINK)
    return min(_MAX_TOKENS, _up(room + 2 * facts.answer_tokens, _STEP))


def search_fields(reading: Reading, facts: TaskFacts, ranking: Ranking) -> dict[str, Any]:
    """Fields of a search.yaml that trains on the task; the model is the user's to name.

    Raises:
        ConfigError: they do not fit together.
    """
    response = response_tokens(facts)
    longest = min(_MAX_TOKENS, 2 * response)
    batch = next((b for b in _BATCHES if b * _STEPS_PER_EPOCH <= facts.n_train), 1)
    fields = {
        "name": reading.name,
        "task": {"dir": f"data/{reading.name}"},
        "root": {"overrides": {**recipes()[ranking.names[0]].overrides, "batch": batch, "resp": response}},
        "eval": {"max_response_length": longest},
        "engine": {
            "max_prompt_length": min(_MAX_TOKENS, _up(facts.prompt_tokens, _PROMPT_STEP)),
            "max_response_length": longest,
        },
    }
    check_search(fields, facts.n_train)
    return fields


def check_search(fields: Mapping[str, Any], n_train: int) -> SearchConfig:
    """The configuration, once its root can be trained.

    Raises:
        ConfigError: it cannot; says why.
    """
    config = parse_config(fields)
    root_hyperparameters(config, n_train)
    return config


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
