"""Text of others made fit to be shown to an agent: bounded, without control characters, marked as data.

Logs, metric names, data sources, causes of failures and words of earlier agents all pass through here. Not
here: which of them an agent is shown (briefing.py).
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_NAME = re.compile(r"[^\w./@:+-]+", re.ASCII)
CUT = "…"


def clean(text: str) -> str:
    """Without terminal sequences, control and invisible characters; tabs become blanks, lines end in \\n."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return "".join(_shown(c) for c in text)


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if character == "\n" or category in ("Zl", "Zp"):
        return "\n"
    if category == "Zs":
        return " "
    return "" if category.startswith("C") else character


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line of at most `limit` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + CUT


def safe_name(name: str, limit: int = 64) -> str:
    """A name of letters, digits and ./@:+-_ only: other characters become one underscore each run."""
    found = _NAME.sub("_", clean(name)).strip("_") or "unnamed"
    return found if len(found) <= limit else found[: limit - 1] + CUT


def quote(text: str, *, label: str, max_lines: int = 40, max_chars: int = 3000, width: int = 300) -> str:
    """The end of a text as a block that is recognisably data: fenced, every line behind a bar.

    The fence carries a digest of the text, so that a text cannot hold its own end. What was left out is
    counted at the top.
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
    told = [f"({missing} earlier lines left out)"] if missing else []
    if not lines:
        told = ["(empty)"]
    mark = f"{safe_name(label)} {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}"
    body = "\n".join(f"| {line}" for line in (*told, *kept))
    return f"<<<data {mark}\n{body}\n>>>end {mark}"


def number(value: float) -> str:
    """A number with three digits that count: `0.0312`, `1630`, `5.2e-05`, `nan`."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    if 0 < abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.3g}"


def score(value: float | None) -> str:
    """A validation score with three decimals, or `none`."""
    return "none" if value is None or not math.isfinite(value) else f"{value:.3f}"
