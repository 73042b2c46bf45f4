"""Options of a generic reward: VeRL's `reward_kwargs`, or a JSON object next to each row.

A row carries its options as JSON text in `extra_info["reward_options"]`, so that all rows keep one Arrow
schema and a task needs no extra file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from llmzero_ray.utils.text import json_or_none

ROW_KEY = "reward_options"
_MAX_CHARS = 10_000


def options_of_row(extra_info: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name. `given`, the keyword arguments of the call, take precedence over those of the row."""
    text = extra_info.get(ROW_KEY) if isinstance(extra_info, Mapping) else None
    own = _parsed(text) if isinstance(text, str) and len(text) <= _MAX_CHARS else {}
    return {**own, **given}


@lru_cache(maxsize=256)
def _parsed(text: str) -> Mapping[str, Any]:
    held = json_or_none(text)
    return held if isinstance(held, dict) else {}
