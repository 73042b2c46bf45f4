"""Jinja as all prompts are rendered with it. Not here: which texts there are (prompting.py, drafting/)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Load: TypeAlias = Callable[[str], str | tuple[str, str, None] | None]
"""Name of a template -> its text, alone or with the file that tracebacks are to name; None: there is none."""


def template_environment(load: Load) -> Any:
    """A `jinja2.Environment` for plain text, in Jinja's sandbox; a value that is not there is an error."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
