"""Untrusted text made safe for a prompt: bounded, without control characters, quoted as data.

Logs, metric names, data sources, causes of failures and texts of earlier agents all pass through here.
"""

from __future__ import annotations

import math
import re

from llmzero_ray.utils.files import text_digest
from llmzero_ray.utils.text import CUT, clean

CHARS_PER_TOKEN = 3.6
"""Estimated mean number of characters per token in prompts."""
_NAME = re.compile(r"[^\w./@:+-]+", re.ASCII)


def tokens(text: str) -> float:
    """Estimated number of tokens in a text."""
    return len(text) / CHARS_PER_TOKEN


def safe_name(name: str, limit: int = 64) -> str:
    """Name with only letters, digits and ./@:+-_; each run of other characters becomes one underscore."""
    found = _NAME.sub("_", clean(name)).strip("_") or "unnamed"
    return found if len(found) <= limit else found[: limit - 1] + CUT


def quote(text: str, *, label: str, max_lines: int = 40, max_chars: int = 3000, width: int = 300) -> str:
    """The end of a text as a fenced block of data, with a bar before each line.

    The fence contains a digest of the text, so that the text cannot close it. The first line gives the number
    of omitted lines.
    """
    lines = [line.rstrip() for line in clean(text).splitlines()]
    lines = [line for line in lines if line]
    kept: list[str] = []
    room = max_chars
    for line in reversed(lines[-max_lines:]):
        short = line if len(line) <= width else line[: width - 1] + CUT
        if len(short) > room:
            break
        kept.insert(0, short)
        room -= len(short)
    missing = len(lines) - len(kept)
    notes = [f"({missing} earlier lines left out)"] if missing else []
    if not lines:
        notes = ["(empty)"]
    mark = f"{safe_name(label)} {text_digest(text)[:12]}"
    body = "\n".join(f"| {line}" for line in (*notes, *kept))
    return f"<<<data {mark}\n{body}\n>>>end {mark}"


def middle_cut(text: str, max_chars: int) -> str:
    """Cleaned text of at most `max_chars` characters: its beginning and its end, where a question may be."""
    text = clean(text).strip()
    if len(text) <= max_chars:
        return text
    half = (max_chars - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def score(value: float | None) -> str:
    """Validation score with three decimals, or `none`."""
    return "none" if value is None or not math.isfinite(value) else f"{value:.3f}"
