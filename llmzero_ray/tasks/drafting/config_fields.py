"""Fields of task.yaml and search.yaml for a task and its reward, and the features that rank recipes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmzero_ray.config import parse_config
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.tasks.drafting.base import RecipeRanking, RewardSpec, Row, TaskFeatures, TaskSpec
from llmzero_ray.tasks.drafting.recipes import recipes
from llmzero_ray.tasks.sources.base import as_text, option_lines, text_of
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, fill_template, template_fields

REWARD_FILE = "reward.py"
_SIZES = {"n_train": 5_000, "n_val": 500, "n_test": 500}
_HELD_OUT_SHARE = 10
"""If there are few rows, validation and test each get one row in this many."""
_SPLIT = {
    "test_files": re.compile(r"(?:^|[/_.-])(?:test|eval|evaluation)(?:[/_.-]|$)", re.IGNORECASE),
    "val_files": re.compile(r"(?:^|[/_.-])(?:val|valid|validation|dev)(?:[/_.-]|$)", re.IGNORECASE),
}
_CHARS_PER_TOKEN = 3
"""ASCII characters per token, a conservative estimate. Any other character counts as one token."""
_TEMPLATE_TOKENS, _PROMPT_STEP, _STEP = 128, 256, 256
_EXTRA_TOKENS = {"exact_match": 512, "regex": 768}
_REASONING_TOKENS = 1_024
_MAX_TOKENS = 32_768
_FAR_LONGER = 4
"""A prompt is far longer than the others above this multiple of their 99th percentile."""
_BATCHES = (128, 64, 32, 16, 8, 4, 2, 1)
_STEPS_PER_EPOCH = 8


def task_fields(spec: TaskSpec, reward: RewardSpec, folder: Path) -> dict[str, Any]:
    """Fields of task.yaml in order; an open field is None.

    File names are absolute, below `folder`; the reward's code is expected next to task.yaml.
    """
    places = _files_by_split(spec.table.files, folder)
    prompt = None if spec.template is None else spec.template + _instruction(reward.instruction)
    fields = {
        "name": spec.name,
        "dir": f"data/{spec.name}",
        **places,
        **sizes(spec),
        "prompt": prompt,
        "answer": spec.answer,
        "choices": list(spec.choices) or None,
        "answer_form": spec.answer_form if spec.choices else None,
        "reward": _reward(reward),
        "licence": spec.licence,
    }
    return {name: value for name, value in fields.items() if value is not None or name in _NEEDED}


_NEEDED = ("prompt", "answer", "reward")


def _instruction(text: str) -> str:
    return "\n\n" + text.strip().replace("{", "{{").replace("}", "}}") if text.strip() else ""


def _files_by_split(files: tuple[str, ...], folder: Path) -> dict[str, list[str]]:
    """Files by the split that their names indicate."""
    found: dict[str, list[str]] = {}
    for name in files:
        field = next((field for field, pattern in _SPLIT.items() if pattern.search(name)), "files")
        found.setdefault(field, []).append(str(folder.absolute() / name))
    if "files" not in found:  # nothing to train on, so all rows may go to any split
        return {"files": [place for places in found.values() for place in places]}
    return {field: found[field] for field in ("files", "val_files", "test_files") if field in found}


def sizes(spec: TaskSpec) -> dict[str, int]:
    """Rows of each split: the usual number, or as many as the table has."""
    held_out = max(1, min(_SIZES["n_val"], spec.table.n_rows // _HELD_OUT_SHARE))
    left = max(1, spec.table.n_rows - 2 * held_out)
    return {"n_train": min(_SIZES["n_train"], left), "n_val": held_out, "n_test": held_out}


def _reward(reward: RewardSpec) -> str | dict[str, Any] | None:
    if reward.kind is None:
        return None
    gold = {} if reward.gold is None else {"gold": reward.gold}
    if reward.kind == "python":
        return {"python": reward.function or f"{REWARD_FILE}:compute_score", **gold}
    if not reward.options and not gold:
        return reward.kind
    return {reward.kind: dict(reward.options), **gold}


# --- the search ---------------------------------------------------------------------------------------------


def task_features(spec: TaskSpec, reward: RewardSpec, response_cap: int | None = None) -> TaskFeatures:
    """The features by which recipes are ranked."""
    answers = [text_of(row, spec.answer) for row in spec.table.rows] if spec.answer else []
    column = spec.table.column(spec.answer) if spec.answer else None
    return TaskFeatures(
        n_train=sizes(spec)["n_train"],
        kind=reward.kind,
        prompt_tokens=spec.longest_prompt + _TEMPLATE_TOKENS,
        answer_tokens=max(map(tokens_of, answers), default=0),
        n_labels=None if column is None else column.distinct,
        response_cap=response_cap,
    )


def tokens_of(text: str) -> int:
    """Conservative estimate of a text's tokens."""
    plain = len(text.encode("ascii", "ignore"))
    return -(-plain // _CHARS_PER_TOKEN) + len(text) - plain


def prompt_room(lengths: Sequence[int]) -> int:
    """Tokens of the longest of some prompts that a search should have room for: of all, except one in a
    hundred (at least one) that are far longer than the others."""
    if not lengths:
        return 0
    n_apart = -(-len(lengths) // 100)
    usual = sorted(lengths)[max(0, len(lengths) - 1 - n_apart)] + _TEMPLATE_TOKENS
    limit = min(_FAR_LONGER * usual, _MAX_TOKENS) - _TEMPLATE_TOKENS
    return max((length for length in lengths if length <= limit), default=limit)


def prompt_of(spec: TaskSpec, row: Row) -> str:
    """The prompt made from a row. Its options are numbered, however the task labels them."""
    if spec.template is None:
        return as_text(row)
    values = {name: text_of(row, name) for name in template_fields(spec.template)}
    if spec.choices:
        shown = {str(n): text_of(row, name) for n, name in enumerate(spec.choices)}
        values[OPTIONS_FIELD] = option_lines(shown)
    return fill_template(spec.template, values)


def response_tokens(features: TaskFeatures) -> int:
    """Cap of a rollout at the root, in tokens: the user's cap, otherwise twice the longest answer plus tokens
    for reasoning."""
    if features.response_cap is not None:
        return features.response_cap
    room = _EXTRA_TOKENS.get(features.kind or "", _REASONING_TOKENS)
    return min(_MAX_TOKENS, _up(room + 2 * features.answer_tokens, _STEP))


def search_fields(spec: TaskSpec, features: TaskFeatures, ranking: RecipeRanking) -> dict[str, Any]:
    """Fields of a search.yaml for the task; the user adds the model.

    Raises:
        ConfigError: the root cannot be trained.
    """
    response = response_tokens(features)
    longest = min(_MAX_TOKENS, 2 * response)
    batch = next((b for b in _BATCHES if b * _STEPS_PER_EPOCH <= features.n_train), 1)
    fields = {
        "name": spec.name,
        "task": {"dir": f"data/{spec.name}"},
        "root": {"overrides": {**recipes()[ranking.names[0]].overrides, "batch": batch, "resp": response}},
        "eval": {"max_response_length": longest},
        "engine": {
            "max_prompt_length": min(_MAX_TOKENS, _up(features.prompt_tokens, _PROMPT_STEP)),
            "max_response_length": longest,
        },
    }
    root_hyperparameters(parse_config(fields), features.n_train)
    return fields


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
