"""The page as HTML from one template: all inline in one file, or with style and script from the server."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.ui.view import view
from llmzero_ray.utils.text import clean

_HERE = Path(__file__).parent


def report_html(facts: SearchFacts) -> str:
    """report.html: the page of a search in one file that loads nothing."""
    style, script = asset("page.css"), asset("page.js")
    made: str = _template().render(
        inline=True,
        title=facts.name,
        data=data_text(view(facts)),
        style=style,
        script=script,
        style_hash=_digest(style),
        script_hash=_digest(script),
    )
    return made


def served_page(data: Mapping[str, Any], title: str, base: str | None = None) -> str:
    """The page that loads style and script from the server. `base` is the URL path of a followed search."""
    made: str = _template().render(inline=False, title=title, data=data_text(data), base=base)
    return made


def data_text(data: Any) -> str:
    """JSON that is safe inside a script element: strings without control characters, finite numbers."""
    return json.dumps(_plain(data), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def asset(name: str) -> str:
    """Text of the style or the script."""
    return (_HERE / name).read_text(encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=False, trim_blocks=True
    )
    return environment.get_template("page.html.j2")
