"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from llmzero_ray.cli.completion import searches
from llmzero_ray.cli.grammar import BEST, ONLY, SEARCH, is_node
from llmzero_ray.errors import ConfigError
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find, missing

SearchYaml = Annotated[str, typer.Argument(metavar="CONFIG", help="search.yaml")]
Search = Annotated[
    str,
    typer.Argument(
        metavar=SEARCH,
        help="name, directory or configuration of a search; . or nothing: the only one",
        autocompletion=searches,
    ),
]
Storage = Annotated[str, typer.Option(metavar="DIR", help="where names are looked up")]
Node = Annotated[
    str, typer.Argument(metavar="NODE", help="number of the node, or best; also with its search: demo:3")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for other programs instead of text")]
Page = Annotated[bool, typer.Option("--ui", help="show it in a browser while this command follows it")]
PagePort = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="of the page; 0: any free one")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="kept in the journal", show_default=False)]


def settings_option(help_text: str, *, of_search: bool = False) -> typer.models.OptionInfo:
    """Option for any number of settings KEY=VALUE, with or without `--set` before each (grammar.py), as a
    list of texts. `of_search` expands short keys of search.yaml."""
    made: typer.models.OptionInfo = typer.Option(
        "--set",
        metavar="KEY=VALUE ...",
        help=f"{help_text}; --set may be left out",
        default_factory=list,
        show_default=False,
        callback=_with_whole_keys if of_search else None,
    )
    return made


def _with_whole_keys(settings: list[str]) -> list[str]:
    from llmzero_ray.cli.settings import with_whole_keys  # imports pydantic, which help does not need

    return with_whole_keys(settings) if settings else []


Settings = Annotated[
    list[str], settings_option("set a field, such as budget.runs=8, or lr=1e-4 of the root", of_search=True)
]

# --- searches and nodes -------------------------------------------------------------------------------------


def find_node(search: str, node: str, storage: str) -> tuple[SearchStorage, int]:
    """The search and the number of a node, named by `3`, `best` or `demo:3`.

    Raises:
        ConfigError: there is no such search or node.
    """
    if is_node(node.rpartition(":")[2]):
        place, number = find_named(node, storage, search)
        assert number is not None
        return place, number
    if search == ONLY:  # only a search was named, and it does not exist
        raise missing(find(node, storage).paths.root)
    raise ConfigError(f"NODE is {node!r}; must be a node's number or best, such as demo:3 or demo best.")


def find_named(text: str, storage: str, search: str = ONLY) -> tuple[SearchStorage, int | None]:
    """Search and node that SEARCH, SEARCH:NODE or NODE names. A bare NODE is one of `search`.

    Raises:
        ConfigError: there is no such search, or it has no best node yet.
    """
    named, _, node = text.rpartition(":")
    if not is_node(node):
        return find(text, storage), None
    place = find(named or search, storage)
    if node != BEST:
        return place, int(node)
    from llmzero_ray.coordinator.follow import Follower

    best = Follower.of(place).core.best
    if best is None:
        raise ConfigError(f"{place.name} has no best node yet: no phase has a validation score.")
    return place, best.node


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
    Literal["letter", "text", "index"] | None,
    typer.Option(metavar="KIND", help="with options, what it holds: letter, text or index"),
]
Reward = Annotated[
    str | None,
    typer.Option(metavar="R", help="exact_match, mcq, math, regex=PATTERN, FILE.py:function"),
]
Repairs = Annotated[int, typer.Option(metavar="N", help="how often a reward is repaired")]
REPAIRS = 2
"""Default number of repairs of a reward."""
