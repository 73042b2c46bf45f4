"""The command `llmzero`: its subcommands, each imported when it runs, and its exit codes.

An error of this project, or of the command line itself, is one message on standard error, never a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer._completion_classes import completion_init
from typer.core import TyperGroup

from llmzero_ray import version
from llmzero_ray.cli.catalogue import OLD_NAMES, subcommand, subcommands
from llmzero_ray.cli.grammar import GrammarCommand
from llmzero_ray.cli.subcommand import GROUPS, Subcommand
from llmzero_ray.errors import ConfigError, LlmzeroError, StorageError
from llmzero_ray.utils.logs import show_warnings_plainly
from llmzero_ray.utils.plugins import load
from llmzero_ray.utils.text import clean, collapse_whitespace, nearest, one_line

_USAGE = 2
_INTERRUPTED = 130
COMPLETE = "_LLMZERO_COMPLETE"
"""Environment variable with which a shell asks for completions."""
_FIRST = ("init", "doctor", "search", "status")
"""Commands of the short help."""
_BOUNDS = {"greater_than_equal": ("ge", ">="), "less_than_equal": ("le", "<=")}
"""Error type of pydantic -> (name of the bound in the error, sign to print)."""
_PATHS = ("CONFIG", "DIR", "F", "FILE", "FOLDER", "H.json", "PLACE", "PLAN", "R.json", "RUN.SH")
"""Metavars of arguments and options that take a path. Addresses are rejected before the command runs."""
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
"""Errors of a write, which do not name the file."""
# Help is plain text: importing rich takes longer than everything else that `llmzero --help` needs.
_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class _Subcommands(TyperGroup):
    """Subcommands, each imported only when it runs. Listing them imports none."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is Typer's
        return list(subcommands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        place = subcommand(cmd_name)
        if place is None:
            return None
        function = load(f"{place.module}:{place.function}", f"{cmd_name} is a command")
        app = typer.Typer(**_PLAIN)
        app.command(cmd_name, cls=GrammarCommand, help=_help(place, function), epilog=_examples(place))(
            function
        )
        command = typer.main.get_command(app)
        for param in command.params:
            if param.metavar in _PATHS:
                param.callback = _path
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and subcommand(args[0]) is None:
            near = nearest(args[0], subcommands())
            hint = f"; did you mean {near!r}?" if near else "."
            raise ConfigError(f"no such command: {args[0]!r}{hint} `llmzero --help` lists all.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        width = max(map(len, subcommands()))
        for group in GROUPS:
            with formatter.section(group.capitalize()):
                rows = [(name, one.help) for name, one in subcommands().items() if one.group == group]
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 other, 2 wrong input, 3 storage, 4 capacity, 5
    engine, 130 interrupted."""
    command = _command()
    show_warnings_plainly()
    try:
        _open_streams()
        given = _words(list(sys.argv[1:] if argv is None else argv))
        if not given and COMPLETE not in os.environ:
            typer.echo(_short_help(), err=True)
            return _USAGE
        if argv is None and COMPLETE in os.environ:
            completion_init()
            command.main(args=given, prog_name="llmzero", complete_var=COMPLETE)  # prints words, and exits
        if given[:1] and given[0] in OLD_NAMES:
            old, new = given[0], OLD_NAMES[given[0]]
            typer.echo(f"`{old}` is called `{new}` since 0.2; 0.3 refuses the old name.", err=True)
        if sys.stdout.isatty() and given[:1] and not {"-h", "--help"} & set(given):
            named = subcommand(given[0])
            if named is not None and named.slow:
                typer.echo(f"{given[0]}: loading ...")
        with command.make_context("llmzero", given) as context:
            code = int(command.invoke(context))
            sys.stdout.flush()
            return code
    except typer.Exit as end:  # --help and --version
        return end.exit_code
    except typer.TyperException as error:
        typer.echo(clean(f"llmzero: {_usage_text(error, given)}"), err=True)
        return _USAGE
    except LlmzeroError as error:
        typer.echo(clean(f"llmzero: {error}"), err=True)
        return error.exit_code
    except OSError as error:  # a path that the system rejects, wherever it is first used
        if error.filename is None:
            if error.errno not in _UNWRITABLE:
                raise
            _drop_output()
            if error.errno == errno.EPIPE:  # `| head` has what it wants
                return 1
            error.filename = "standard output or a file cannot be written"
        typer.echo(clean(f"llmzero: {one_line(str(error.filename))}: {error.strerror}"), err=True)
        return _USAGE if error.errno == errno.ENAMETOOLONG else StorageError.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _open_streams() -> None:
    """Replace a closed standard input or error stream by the null device, so that no file gets its
    descriptor. Standard output replaces characters that its encoding lacks.

    Raises:
        StorageError: standard output is closed.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - open to the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise StorageError("standard output is closed. Send it to a file, or to /dev/null.")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Discard what standard output still holds, because Python would fail to flush it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


def _path(_context: Any, _param: Any, given: Any) -> Any:
    from llmzero_ray.config.yaml_text import (
        local_path,  # imports pydantic, which listing commands does not need
    )

    return None if given is None else type(given)(local_path(str(given)))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmzero {version.__version__}")
        raise typer.Exit


def _words(given: list[str]) -> list[str]:
    """The words, with `help COMMAND` and `version` replaced by the equivalent options."""
    match given[:2]:
        case ["version"]:
            return ["--version"]
        case ["help"]:
            return ["--help"]
        case ["help", name]:
            return [name, "--help"]
    return given


def _short_help() -> str:
    """First steps of a search, in four commands."""
    shown = {name: subcommands()[name] for name in _FIRST}
    lines = [f"  {one.examples[0]:<28} {one.help}" for one in shown.values()]
    return "\n".join(
        (
            "Usage: llmzero COMMAND ...",
            "",
            *lines,
            "",
            "`llmzero --help` lists all commands, `llmzero help COMMAND` explains one.",
        )
    )


def _usage_text(error: typer.TyperException, words: Sequence[str]) -> str:
    """Usage error on one line, with the command that prints help."""
    # Typer gives the context to its usage errors, and validates values with pydantic.
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    named = f"llmzero {words[0]}" if words and subcommand(words[0]) else "llmzero"
    path = named if context is None else context.command_path
    message = collapse_whitespace(error.format_message()).rstrip(".")
    problems: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if message.startswith("Missing") and param is not None:
        name = f"{param.opts[0]} " if param.opts[0].startswith("-") else ""
        message = f"{name}{param.metavar} is missing ({param.help})"
    elif message.startswith("No such option") and context is not None:
        given = getattr(error, "option_name", "")
        known = {name.lstrip("-"): name for one in context.command.get_params(context) for name in one.opts}
        near = nearest(given.lstrip("-"), known)
        how = f"; did you mean {known[near]}?" if near else ""
        if "set" in known and not near:
            how = f"; a setting is written {given.lstrip('-').replace('-', '_')}=VALUE"
        message = f"no such option: {given}{how}"
    elif param is not None and problems and problems[0]["type"] in ("int_parsing", "float_parsing"):
        kind = "a whole number" if "int" in problems[0]["type"] else "a number"
        name = param.opts[0] if param.opts[0].startswith("-") else param.metavar
        message = f"{name} is {problems[0]['input']!r}; must be {kind}"
    elif param is not None and problems and problems[0]["type"] in _BOUNDS:
        bound, sense = _BOUNDS[problems[0]["type"]]
        message = f"{param.opts[0]} is {problems[0]['input']}; must be {sense} {problems[0]['ctx'][bound]}"
    elif message.endswith("requires an argument"):
        message = f"{getattr(error, 'option_name', 'an option')} needs a value"
    elif message.startswith("Got unexpected extra argument"):
        pieces = " ".join(context.command.collect_usage_pieces(context)) if context else ""
        message = f"unexpected: {message.partition('(s) (')[2].rstrip(')')}; it takes {pieces}"
    name = path.removeprefix("llmzero").strip()
    message = message.replace("Value error, ", "").rstrip("?")
    return f"{f'{name}: ' if name else ''}{message}. See `{path} --help`."


def command_help(name: str) -> str:
    """Help of a command, as `llmzero NAME --help` prints it."""
    commands = _command()
    parent = commands.context_class(commands, info_name="llmzero")
    command = commands.get_command(parent, name)
    text: str = command.get_help(command.context_class(command, info_name=name, parent=parent))
    return text


def _help(place: Subcommand, function: Any) -> str:
    """Purpose of the command, and the docstring of its function between its first paragraph and `Raises:`."""
    doc = inspect.cleandoc(function.__doc__ or "").partition("Raises:")[0].partition("\n\n")[2]
    return f"{place.help[0].upper()}{place.help[1:]}.\n\n{doc}".strip()


def _examples(place: Subcommand) -> str:
    title = "Example:" if len(place.examples) == 1 else "Examples:"
    return "\b\n" + "\n  ".join([title, *place.examples])  # \\b: its line ends are kept


if __name__ == "__main__":
    sys.exit(main())
