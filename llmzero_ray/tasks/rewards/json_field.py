"""The answer field of a response that should be a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llmzero_ray.tasks.rewards.extraction import last_tagged

_TRAILING_COMMA = re.compile(r",\s*([}\]])")
_MAX_OBJECTS = 500
"""Maximum objects that are parsed, from the last one."""
_MAX_TRIES = 20
"""Maximum occurrences of `"key":` that are tried, from the last one."""
_DECODER = json.JSONDecoder(strict=False)


def answer_field(text: str, keys: Sequence[str]) -> str | None:
    """Value of the first of `keys` in the visible text, as trimmed text; None when nothing is marked.

    Looked for in this order: the last parsable top-level `{...}` that holds one of the keys, the last
    `"key": value`, the last `<answer>`. Lists are joined with a dot, as molecules are. Prose never counts.
    """
    wanted = [_plain(key) for key in keys]
    for span in reversed(_top_level(text)[-_MAX_OBJECTS:]):
        held = _parsed(text[slice(*span)])
        by_key = {_plain(key): value for key, value in held.items()} if held else {}
        for key in wanted:
            if key in by_key:
                return as_text(by_key[key])
    found = _keyed_value(text, tuple(keys))
    if found is not None:
        return found
    tagged = last_tagged(text)
    return None if tagged is None else tagged.strip()


def as_text(value: Any) -> str:
    """A JSON value as one text: lists joined with a dot; empty for an object, null or truth value."""
    if isinstance(value, list):
        return ".".join(part.strip() for part in value if isinstance(part, str) and part.strip())
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    try:
        return str(value).strip()
    except ValueError:  # an integer beyond Python's limit of digits
        return ""


def _plain(key: str) -> str:
    return "".join(letter for letter in key.casefold() if letter.isalnum())


def _top_level(text: str) -> list[tuple[int, int]]:
    """Spans of balanced braces that lie within no other balanced braces, in order."""
    opened: list[int] = []
    spans: list[tuple[int, int]] = []
    for brace in re.finditer(r"[{}]", text):
        if brace.group() == "{":
            opened.append(brace.start())
        elif opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, brace.end()))
    return spans


def _parsed(text: str) -> Mapping[str, Any] | None:
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        try:
            held = _DECODER.decode(candidate)
        except (ValueError, RecursionError):
            continue
        return held if isinstance(held, dict) else None
    return None


def _keyed_value(text: str, keys: tuple[str, ...]) -> str | None:
    starts = [found.end() for found in _key_pattern(keys).finditer(text)]
    for start in reversed(starts[-_MAX_TRIES:]):
        try:
            value, _ = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            return as_text(value)
    return None


@lru_cache(maxsize=64)
def _key_pattern(keys: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(key) for key in keys)
    return re.compile(rf'"(?:{names})"\s{{0,20}}:\s{{0,20}}', re.IGNORECASE)
