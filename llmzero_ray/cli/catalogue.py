"""Subcommands of `llmzero`: location, purpose and examples of each.

An extension adds its own through the group `llmzero_ray.commands` of entry points: each names a table like
`BUILT_IN` in a module that imports nothing else. The examples are the last lines of each command's help and
of the command reference; a test parses them. Not here: parsing (main.py), what the commands do (the modules
beside this one).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from llmzero_ray.cli.subcommand import Subcommand
from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.plugins import extension, points

GROUP = "llmzero_ray.commands"


def _command(module: str, function: str, purpose: str, *examples: str, **more: Any) -> Subcommand:
    return Subcommand(f"llmzero_ray.cli.{module}", function, purpose, examples, **more)


BUILT_IN = {
    "init": _command(
        "init",
        "init",
        "write a search.yaml to begin with",
        "llmzero init --model 4b",
        "llmzero init --from run_qwen.sh --out search.yaml",
    ),
    "search": _command(
        "search",
        "search",
        "start a search, attach to it, or continue it",
        "llmzero search search.yaml --set budget.runs=12 seed=2",
        'llmzero search data/sums "Solve word problems" --set model.path=/models/qwen3-4b',
        "llmzero search search.yaml --dry-run",
        slow=True,
    ),
    "doctor": _command(
        "doctor.command",
        "doctor",
        "check the cluster against a configuration before anything is spent",
        "llmzero doctor search.yaml",
        slow=True,
    ),
    "resume": _command(
        "search",
        "resume",
        "continue a search from its directory",
        "llmzero resume demo --set budget.runs=24",
        slow=True,
    ),
    "serve": _command(
        "serve",
        "serve",
        "serve a model for the agents; after --: options of `vllm serve`",
        "llmzero serve /models/qwen3-32b --gpus 2 --cpus 8 -- --max-model-len 32768",
        slow=True,
    ),
    "status": _command(
        "status",
        "status",
        "show a search from its journal, running or not",
        "llmzero status demo --log",
    ),
    "list": _command("listing", "list_searches", "list the searches of a storage", "llmzero list"),
    "show": _command(
        "results", "show", "show one node: its start, changes, reasons and scores", "llmzero show demo 3"
    ),
    "diff": _command(
        "results", "diff", "compare two nodes (demo:0 demo:3) or two searches", "llmzero diff demo:0 demo:3"
    ),
    "report": _command(
        "results", "report", "write the report of a search again", "llmzero report demo", slow=True
    ),
    "stop": _command(
        "stop",
        "stop",
        "end a search: outcome written, actors and hardware given back",
        'llmzero stop demo --reason "good enough"',
    ),
    "pause": _command(
        "steering",
        "pause",
        "end a search's processes, give hardware back; resume continues",
        "llmzero pause demo",
    ),
    "hint": _command(
        "steering", "hint", "tell the proposer something", 'llmzero hint demo "try a higher temperature"'
    ),
    "veto": _command(
        "steering",
        "veto",
        "close a node with all below it",
        'llmzero veto demo 4 --reason "answers are too long"',
    ),
    "clone": _command(
        "steering",
        "clone",
        "continue a node with changes of your own",
        "llmzero clone demo 3 --set lr=5e-4 n=12 --at-step 10",
    ),
    "budget": _command(
        "steering",
        "budget",
        "change limits of a search at work: --set runs=24",
        "llmzero budget demo --set runs=24 gpu_hours=100",
    ),
    "set": _command(
        "steering",
        "configure",
        "change settings of a search at work",
        "llmzero set demo slots.count=3 agents.deadline_s=120",
    ),
    "export": _command(
        "export",
        "export",
        "write the strategy of a search as scripts of plain VeRL",
        "llmzero export demo --verl demo-scripts",
    ),
    "replay": _command(
        "replay",
        "replay",
        "train a found strategy again: other seeds, another task or model",
        "llmzero replay runs/demo/strategy.yaml --seeds 3",
        slow=True,
    ),
    "push": _command(
        "push",
        "push",
        "send the best adapter and its card to the Hugging Face Hub",
        "llmzero push demo ann/demo-adapter --base-model Qwen/Qwen3-4B",
        "llmzero push demo ann/demo-adapter --yes --public",
    ),
    "merge": _command(
        "merge",
        "merge",
        "merge the best adapter into its base model",
        "llmzero merge demo --out demo-merged",
    ),
    "explain": _command(
        "explain",
        "explain",
        "say why: for a search directory or a history",
        "llmzero explain runs/demo",
    ),
    "completion": _command(
        "completion",
        "completion",
        "print a shell's completion script",
        'eval "$(llmzero completion bash)"',
    ),
}
"""The core's, in the order of `llmzero --help`."""


@cache
def subcommands() -> dict[str, Subcommand]:
    """All commands by name, each where help shows it.

    Raises:
        ConfigError: an extension's table cannot be loaded, or names a command that there is already.
    """
    found = dict(BUILT_IN)
    for name, point in points(GROUP).items():
        table: Mapping[str, Subcommand] = extension(GROUP, name)
        for command, one in table.items():
            if command in found:
                raise ConfigError(
                    f"{point.value} adds a command {command!r}, which there is already. Uninstall its "
                    "package, or give the command another name."
                )
            names = list(found)
            at = names.index(one.after) + 1 if one.after in found else len(names)
            names.insert(at, command)
            found = {name: one if name == command else found[name] for name in names}
    return found


def subcommand(name: str) -> Subcommand | None:
    """The command of that name; extensions are looked at only where the core has none."""
    return BUILT_IN.get(name) or subcommands().get(name)
