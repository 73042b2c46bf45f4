"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from llmzero_ray.cli.completion import searches

SearchYaml = Annotated[str, typer.Argument(metavar="CONFIG", help="search.yaml")]
Search = Annotated[
    str,
    typer.Argument(
        metavar="SEARCH", help="directory, name or configuration of a search", autocompletion=searches
    ),
]
Storage = Annotated[str, typer.Option(metavar="DIR", help="where names are looked up")]
Node = Annotated[int, typer.Argument(metavar="NODE", help="number of the node")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for other programs instead of text")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="kept in the journal", show_default=False)]


def settings_option(help_text: str) -> typer.models.OptionInfo:
    """Option `--set KEY=VALUE`, any number of times, each with any number of values (main.py), as a list of
    texts."""
    made: typer.models.OptionInfo = typer.Option(
        "--set", metavar="KEY=VALUE ...", help=help_text, default_factory=list, show_default=False
    )
    return made


Settings = Annotated[list[str], settings_option("set a field, such as budget.runs=8")]

# --- of a draft ---------------------------------------------------------------------------------------------

OptionsField = Annotated[
    list[str],
    typer.Option(
        metavar="COLUMN",
        help="holds the options, or one of them: give it again for each",
        default_factory=list,
        show_default=False,
    ),
]
TableNumber = Annotated[int | None, typer.Option(metavar="N", help="which files, where their columns differ")]
QuestionField = Annotated[str | None, typer.Option(metavar="COLUMN", help="holds the question")]
AnswerField = Annotated[str | None, typer.Option(metavar="COLUMN", help="holds the right answer")]
AnswerForm = Annotated[
    Literal["letter", "text", "index"] | None, typer.Option(help="with options: what it holds")
]
Reward = Annotated[
    str | None,
    typer.Option(metavar="R", help="exact_match, mcq, math, regex=PATTERN, FILE.py:function"),
]
Repairs = Annotated[int, typer.Option(metavar="N", help="how often a reward is repaired")]
