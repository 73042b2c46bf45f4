"""The command line. Each command imports what it needs when it runs.

An error of this project is one message on standard error and the exit code of its class, never a traceback.
Not here: what the commands do (commands.py, inspection.py), wiring (app.py).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

import llmzero_ray
from llmzero_ray.errors import LlmzeroError

_INTERRUPTED = 130
_OWN = {
    "draft": (".drafting", "draft task.yaml and its reward from a folder and a sentence"),
    "explain": ("llmzero_ray.explain", "say why: for a search directory or a history"),
    "score": (".scoring", "score answers of a JSONL file with a reward"),
}
"""Commands that read their options themselves: name -> module, and what they do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0 done, 1 other, 2 wrong input, 3 storage, 4 capacity, 5 engine, 130
    interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given and given[0] in _OWN:
            return int(importlib.import_module(_OWN[given[0]][0], __package__).main(given[1:]))
        own = given[: given.index("--")] if "--" in given else given
        arguments = _parser().parse_args(own)
        arguments.passed_on = given[len(own) + 1 :]
        module = importlib.import_module(f".{arguments.module}", __package__)
        code: int = getattr(module, arguments.function)(arguments)
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

    def command(name: str, module: str, told: str, function: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=told)
        added.set_defaults(module=module, function=function or name)
        return added

    _starting(command)
    _looking(command)
    _steering(command)
    for name, (_, told) in _OWN.items():
        commands.add_parser(name, help=f"{told} ({name} --help)", add_help=False)
    return parser


Command: TypeAlias = Callable[..., argparse.ArgumentParser]


def _starting(command: Command) -> None:
    prepare = command("prepare", "commands", "make the task of a configuration: data, reward, tiny model")
    search = command("search", "commands", "start a search, attach to it, or go on with it")
    prepare.add_argument("config", metavar="CONFIG", help="task.yaml, or a search.yaml with a task.family")
    prepare.add_argument("--ray", action="store_true", help="read the rows of a task.yaml on the Ray cluster")
    search.add_argument("config", metavar="CONFIG", help="search.yaml")
    search.add_argument("--resume", action="store_true", help="CONFIG may be a search's directory or name")
    search.add_argument("--dry-run", action="store_true", help="estimate hours, dollars, disk; start nothing")
    search.add_argument("--seconds-per-step", type=float, metavar="S", help="--dry-run: measured elsewhere")
    search.add_argument("--like", metavar="SEARCH", help="--dry-run: take the seconds of another search")
    checked = "check the cluster against a configuration before anything is spent"
    doctor = command("doctor", "doctor.command", checked)
    doctor.add_argument("config", metavar="CONFIG", help="search.yaml")
    doctor.add_argument("--no-step", action="store_true", help="leave out the training steps")
    resume = command("resume", "commands", "go on with a search from its directory")
    resume.add_argument("config", metavar="SEARCH", help="directory, name or configuration of a search")
    resume.add_argument("--storage", default="runs", help="where names are looked up (default: runs)")
    warm_start = command("warm-start", "warming", "teach a base model a task's gold answers", "warm_start")
    warm_start.add_argument("config", metavar="CONFIG", help="warm_start.yaml")
    for added in (prepare, search, resume, doctor, warm_start):
        _settable(added, "set a field, such as budget.runs=8")
    serve = command("serve", "serving", "serve a model for the agents; after --: options of `vllm serve`")
    serve.add_argument("model", metavar="MODEL", help="directory or name of the model")
    serve.add_argument("--name", default="", help="what it is called (default: the directory's name)")
    serve.add_argument("--gpus", type=int, default=0, help="GPUs of one machine; 0: on its CPUs")
    serve.add_argument("--cpus", type=int, default=1, help="CPUs reserved for it")
    serve.add_argument("--timeout", type=float, default=900.0, help="seconds until it must answer")
    serve.add_argument("--log", default="model-server.log", help="file for vLLM's log")


def _looking(command: Command) -> None:
    status = command("status", "inspection", "show a search from its journal, running or not")
    status.add_argument("--log", action="store_true", help="one line per event as well")
    status.add_argument(
        "--offline", action="store_true", help="journal alone: do not look whether anybody is at work"
    )
    stop = command("stop", "inspection", "end a search: outcome written, actors and hardware given back")
    stop.add_argument("--reason", default="llmzero stop", help="kept in the journal")
    stop.add_argument("--now", action="store_true", help="do not wait for the phases' next step")
    stop.add_argument(
        "--deadline", type=float, help="seconds after which phases that have not ended are killed"
    )
    for added in (status, stop):
        _named(added)


def _steering(command: Command) -> None:
    pause = command("pause", "steering", "end a search's processes, give hardware back; resume goes on")
    hint = command("hint", "steering", "tell the proposer something")
    veto = command("veto", "steering", "close a node with all below it")
    clone = command("clone", "steering", "continue a node with changes of your own")
    budget = command("budget", "steering", "change limits of a search at work: --set runs=24")
    settings = command("set", "steering", "change settings of a search at work", "configure")
    for added in (pause, hint, veto, clone, budget, settings):
        _named(added)
    for added in (pause, veto):
        added.add_argument("--reason", default="", help="kept in the journal")
    hint.add_argument("text", metavar="TEXT", help="what it should know")
    for added in (veto, clone):
        added.add_argument("node", metavar="NODE", type=int, help="number of the node")
    clone.add_argument("--at-step", type=int, help="saved step to go on from (default: the best one)")
    clone.add_argument("--steps", type=int, help="training steps (default: phase.n_steps)")
    _settable(clone, "hyper-parameter, such as lr=5e-4")
    _settable(budget, "limit, such as runs=24 or gpu_hours=100")
    settings.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="such as slots.count=3")


def _named(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("search", metavar="SEARCH", help="directory, name or configuration of a search")
    parser.add_argument("--storage", default="runs", help="where names are looked up (default: runs)")


def _settable(parser: argparse.ArgumentParser, told: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=told)


if __name__ == "__main__":
    sys.exit(main())
