"""The command line: prepare, search, status, explain, stop, serve. Each imports what it needs when it runs.

An error of this project is one message on standard error and the exit code of its class, never a traceback.
Not here: what the commands do (commands.py, inspection.py), wiring (app.py).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import llmzero_ray
from llmzero_ray.errors import LlmzeroError

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0 done, 1 other, 2 wrong input, 3 storage, 4 capacity, 5 engine, 130
    interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given[:1] == ["explain"]:
            from llmzero_ray import explain

            return explain.main(given[1:])
        own = given[: given.index("--")] if "--" in given else given
        arguments = _parser().parse_args(own)
        arguments.passed_on = given[len(own) + 1 :]
        place = {"status": "inspection", "stop": "inspection", "serve": "serving"}
        module = importlib.import_module(f".{place.get(arguments.command, 'commands')}", __package__)
        code: int = getattr(module, arguments.command)(arguments)
    except LlmzeroError as error:
        print(f"llmzero: {error}", file=sys.stderr)  # noqa: T201 - the command line speaks to a person
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmzero",
        description="Search for a multi-stage RL training strategy: a tree of GRPO phases on VeRL and Ray.",
    )
    parser.add_argument("--version", action="version", version=f"llmzero {llmzero_ray.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepare = commands.add_parser(
        "prepare", help="make the task that a configuration names: data, reward, tiny model"
    )
    search = commands.add_parser("search", help="start a search, attach to it, or go on with it")
    for command in (prepare, search):
        command.add_argument("config", metavar="CONFIG", help="search.yaml")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="set a field, such as budget.runs=8",
        )
    status = commands.add_parser("status", help="show a search from its journal, running or not")
    status.add_argument("--log", action="store_true", help="one line per event as well")
    status.add_argument(
        "--offline", action="store_true", help="journal alone: do not look whether anybody is at work"
    )
    stop = commands.add_parser("stop", help="end a search: outcome written, actors and hardware given back")
    stop.add_argument("--reason", default="llmzero stop", help="kept in the journal")
    for command in (status, stop):
        command.add_argument("search", metavar="SEARCH", help="directory, name or configuration of a search")
        command.add_argument("--storage", default="runs", help="where names are looked up (default: runs)")
    serve = commands.add_parser(
        "serve", help="serve a model for the agents; after --: options of `vllm serve`"
    )
    serve.add_argument("model", metavar="MODEL", help="directory or name of the model")
    serve.add_argument("--name", default="", help="what it is called (default: the directory's name)")
    serve.add_argument("--gpus", type=int, default=0, help="GPUs of one machine; 0: on its CPUs")
    serve.add_argument("--cpus", type=int, default=1, help="CPUs reserved for it")
    serve.add_argument("--timeout", type=float, default=900.0, help="seconds until it must answer")
    serve.add_argument("--log", default="model-server.log", help="file for vLLM's log")
    commands.add_parser(
        "explain", help="say why: for a search directory or a history (explain --help)", add_help=False
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
