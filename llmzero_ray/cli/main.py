"""The command `llmzero`: its subcommands, each imported when it runs, and its exit codes.

An error of this project, or of the command line itself, is one message on standard error, never a traceback.
Not here: what the commands do (the modules beside this one).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llmzero_ray import version
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.text import clean, collapse_whitespace, nearest

_USAGE = 2
_INTERRUPTED = 130
# Help is plain text: rich's takes longer to import than everything that `llmzero --help` needs.
_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


@dataclass(frozen=True)
class _Subcommand:
    """Where the function of a subcommand is, below `llmzero_ray.cli`, and what it does."""

    module: str
    function: str
    help: str


SUBCOMMANDS = {
    "prepare": _Subcommand(
        "prepare", "prepare", "make the task of a configuration: data, reward, tiny model"
    ),
    "search": _Subcommand("search", "search", "start a search, attach to it, or go on with it"),
    "doctor": _Subcommand(
        "doctor.command", "doctor", "check the cluster against a configuration before anything is spent"
    ),
    "resume": _Subcommand("search", "resume", "go on with a search from its directory"),
    "warm-start": _Subcommand("warm_start", "warm_start", "teach a base model a task's gold answers"),
    "serve": _Subcommand("serve", "serve", "serve a model for the agents; after --: options of `vllm serve`"),
    "status": _Subcommand("status", "status", "show a search from its journal, running or not"),
    "list": _Subcommand("results", "list_searches", "list the searches of a storage"),
    "show": _Subcommand("results", "show", "show one node: its start, changes, reasons and scores"),
    "diff": _Subcommand("results", "diff", "compare two nodes (demo:0 demo:3) or two searches"),
    "report": _Subcommand("results", "report", "write the report of a search again"),
    "stop": _Subcommand("stop", "stop", "end a search: outcome written, actors and hardware given back"),
    "pause": _Subcommand("steering", "pause", "end a search's processes, give hardware back; resume goes on"),
    "hint": _Subcommand("steering", "hint", "tell the proposer something"),
    "veto": _Subcommand("steering", "veto", "close a node with all below it"),
    "clone": _Subcommand("steering", "clone", "continue a node with changes of your own"),
    "budget": _Subcommand("steering", "budget", "change limits of a search at work: --set runs=24"),
    "set": _Subcommand("steering", "configure", "change settings of a search at work"),
    "draft": _Subcommand("draft", "draft", "draft task.yaml and its reward from a folder and a sentence"),
    "compare": _Subcommand("compare.command", "compare", "compare search methods on tasks and seeds"),
    "prompt-eval": _Subcommand(
        "prompt_eval", "prompt_eval", "put recorded requests to the agents' model and score its answers"
    ),
    "export": _Subcommand("export", "export", "write the strategy of a search as scripts of plain VeRL"),
    "replay": _Subcommand(
        "replay", "replay", "train a found strategy again: other seeds, another task or model"
    ),
    "explain": _Subcommand("explain", "explain", "say why: for a search directory or a history"),
    "score": _Subcommand("score", "score", "score answers of a JSONL file with a reward"),
}
"""In the order of `llmzero --help`."""


class _Subcommands(TyperGroup):
    """Subcommands that are imported when they run; the list of all needs none of them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is Typer's
        return list(SUBCOMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in SUBCOMMANDS:
            return None
        place = SUBCOMMANDS[cmd_name]
        function = getattr(importlib.import_module(f"llmzero_ray.cli.{place.module}"), place.function)
        app = typer.Typer(**_PLAIN)
        app.command(cmd_name, help=_sentence(place.help))(function)
        return typer.main.get_command(app)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], SUBCOMMANDS)
            hint = f"; did you mean {near!r}?" if near else "."
            raise ConfigError(f"no such command: {args[0]!r}{hint} Commands: {', '.join(SUBCOMMANDS)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in SUBCOMMANDS.items()])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0 done, 1 other, 2 wrong input, 3 storage, 4 capacity, 5 engine, 130
    interrupted."""
    command = _command()
    try:
        given = list(sys.argv[1:] if argv is None else argv)
        with command.make_context("llmzero", given) as context:
            return int(command.invoke(context))
    except typer.Exit as end:  # --help and --version
        return end.exit_code
    except typer.TyperException as error:
        typer.echo(clean(f"llmzero: {_usage_text(error)}"), err=True)
        return _USAGE
    except LlmzeroError as error:
        typer.echo(clean(f"llmzero: {error}"), err=True)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _command() -> Any:
    app = typer.Typer(cls=_Subcommands, **_PLAIN)

    @app.callback(
        help="Search for a multi-stage RL training strategy: a tree of GRPO phases on VeRL and Ray.",
        subcommand_metavar="COMMAND ...",
    )
    def options(
        version: Annotated[
            bool,
            typer.Option(
                "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
            ),
        ] = False,
    ) -> None: ...

    return typer.main.get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmzero {version.__version__}")
        raise typer.Exit


def _usage_text(error: typer.TyperException) -> str:
    """A usage error on one line, with the command that prints help."""
    # Typer gives the context to its usage errors, and validates values with pydantic.
    context = getattr(error, "ctx", None)
    path = "llmzero" if context is None else context.command_path
    message = collapse_whitespace(error.format_message()).rstrip(".")
    if path == "llmzero" and message == "Missing command":
        message = f"Missing COMMAND, one of {', '.join(SUBCOMMANDS)}"
    invalid = getattr(error.__cause__, "errors", list)
    given = "".join(f" (given: {problem['input']!r})" for problem in invalid())
    subcommand = path.removeprefix("llmzero").strip()
    return f"{f'{subcommand}: ' if subcommand else ''}{message}{given}. See `{path} --help`."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    sys.exit(main())
