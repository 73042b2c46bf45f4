"""Text formatting: nearest names, durations, sizes, numbers, and untrusted text on one line."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeGuard

GIB = 2**30
"""Bytes."""
CUT = "…"
"""Mark at the place where a text was cut."""
_REASON = 300
"""Length at which older versions cut off the reason of a lost runner, in the middle of a word."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_NOT_PLAIN = re.compile(r"[^ -~\n]")


_SYNONYMS = {
    "llmzero": "mcts uct tree",
    "tpe": "bayes bayesian bo optuna",
    "asha": "hyperband sha halving",
    "math": "maths mathematics",
    "exact_match": "accuracy em",
    "mcq": "multiple_choice choice",
    "claude": "anthropic",
    "wall_clock_hours": "hours time max_hours",
    "runs": "trials num_samples max_trials iterations",
    "dollars": "usd cost price money",
    "n_steps": "steps max_iters",
    "gpus_per_node": "n_gpus num_gpus",
    "backends": "notify alerts trackers loggers wandb mlflow tensorboard",
    "key_file": "api_key key",
    "init": "new create template",
    "search": "run start train tune fit optimize launch",
    "resume": "continue restart",
    "doctor": "check verify preflight",
    "stop": "kill cancel abort end terminate",
    "list": "ls ps searches",
    "status": "watch top progress state",
    "show": "node info describe inspect",
    "explain": "why reasons",
    "report": "summary results html",
    "logs": "log tail journal",
    "ui": "web page dashboard open",
    "hint": "tell say note",
    "veto": "close prune",
    "clone": "fork branch copy",
    "approve": "accept refuse reject confirm answer",
    "set": "change edit update configure",
    "rm": "delete remove del clean prune_search",
    "export": "save download scripts",
    "push": "upload publish",
    "prepare": "data dataset task",
    "score": "grade evaluate eval",
}
"""Name in this project -> what users of other tools may call it."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Known name that `name` probably means, for "did you mean". None if none is close."""
    return next(iter(nearest_names(name, known, 1)), None)


def nearest_names(name: str, known: Iterable[str], n: int) -> list[str]:
    """Up to `n` known names that `name` may mean: first by synonyms, then by similar spelling."""
    names = {own.lower(): own for own in known}
    found = [own for own in names.values() if name.lower() in _SYNONYMS.get(own, "").split()]
    found += [names[near] for near in get_close_matches(name.lower(), names, n)]
    return list(dict.fromkeys(found))[:n]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a number. Booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
    """A number with about three significant digits: `0.0312`, `1630`, `5.2e-5`, `nan`."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 999.5:
        return f"{value:.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    if 0 < abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.3g}"


def plain(value: float, *, places: int = 0) -> str:
    """A number with three significant digits, at least `places` decimals and no exponent: `0.0123`,
    `1,250`."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(places, digits), 6)}f}"


def duration(seconds: float) -> str:
    """A duration as text: `4.2 s`, `42 s`, `12 min 05 s`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def short_duration(seconds: float) -> str:
    """A duration as short text: `48 s`, `12.4 min`, `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(n_bytes: float) -> str:
    """A number of bytes as text: `1.5 GiB`, `50 MiB`, `8 KiB`."""
    if n_bytes >= GIB:
        return f"{n_bytes / GIB:.1f} GiB"
    return f"{n_bytes / 2**20:.0f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.0f} KiB"


def plural(n: int, singular: str) -> str:
    """A count with its noun: `1 run`, `2 runs`."""
    return f"{n} {singular if n == 1 else singular + 's'}"


def json_or_none(text: str | bytes) -> Any:
    """Value of a JSON text. None if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def clean(text: str) -> str:
    """The text without terminal sequences and without control and invisible characters. Tabs become spaces,
    and lines end in \\n."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return _NOT_PLAIN.sub(lambda found: _shown(found[0]), text)


def collapse_whitespace(text: str) -> str:
    """The text, trimmed, with each run of white space as one space."""
    return " ".join(text.split())


def whole_sentences(reason: str) -> str:
    """Reason why a process was lost, on one line, without a truncated last sentence and without Ray's list of
    possible causes."""
    text = re.split(
        r" There are some potential root causes| Some common causes", collapse_whitespace(reason)
    )[0]
    whole = (
        text
        if len(text) < _REASON or text.endswith(" ...")
        else text[: text.rfind(". ") + 1] or f"{text} ..."
    )
    return whole.rstrip().removesuffix(".")


def one_line(text: str, limit: int | None = 200) -> str:
    """The cleaned text on one line of at most `limit` characters."""
    line = collapse_whitespace(clean(text))
    return line if limit is None or len(line) <= limit else line[: limit - 1].rstrip() + CUT


def first_words(text: str, limit: int) -> str:
    """The cleaned text on one line of at most `limit` characters, cut between words."""
    line = collapse_whitespace(clean(text))
    if len(line) <= limit:
        return line
    kept, space, _ = line[: limit - 3].rpartition(" ")
    return f"{kept if space else line[: limit - 4]} ..."


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if character == "\n" or category in ("Zl", "Zp"):
        return "\n"
    if category == "Zs":
        return " "
    return "" if category.startswith("C") else character


def number_ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in increasing order as text, evenly spaced ones as a range: `5 to 40 by 5, 43`."""
    found = sorted(set(numbers))
    parts: list[str] = []
    while found:
        gap = found[1] - found[0] if len(found) > 1 else 1
        n = 1
        while n < len(found) and found[n] - found[n - 1] == gap:
            n += 1
        if n < 3:
            n = 1
        by = f" by {gap}" if gap > 1 else ""
        parts.append(f"{found[0]} to {found[n - 1]}{by}" if n > 1 else str(found[0]))
        found = found[n:]
    return ", ".join(parts)
