"""Subcommands of `llmzero`: location, purpose and examples of each.

An extension adds its own through the group `llmzero_ray.commands` of entry points: each names a table like
`BUILT_IN` in a module that imports nothing else. The examples are the last lines of each command's help and
of the command reference; a test parses them. Not here: parsing (main.py), what the commands do (the modules
next to this one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from llmzero_ray.cli.subcommand import GROUPS, Group, Subcommand
from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.plugins import extension, points

GROUP = "llmzero_ray.commands"


def _command(place: str, group: Group, purpose: str, *examples: str, slow: bool = False) -> Subcommand:
    module, _, function = place.partition(":")
    return Subcommand(f"llmzero_ray.cli.{module}", function or module, purpose, examples, group, slow)


BUILT_IN = {
    "init": _command(
        "init",
        "start",
        "write a search.yaml to begin with",
        "llmzero init",
        "llmzero init --model 4b budget.runs=24",
        "llmzero init --from run_qwen.sh --out search.yaml",
    ),
    "doctor": _command(
        "doctor.command:doctor",
        "start",
        "check the cluster against a configuration before anything is spent",
        "llmzero doctor search.yaml",
        slow=True,
    ),
    "search": _command(
        "search",
        "start",
        "start a search, attach to it, or continue it",
        "llmzero search search.yaml",
        "llmzero search search.yaml budget.runs=12 lr=1e-4",
        'llmzero search data/sums "Solve word problems" model.path=/models/qwen3-4b',
        "llmzero search search.yaml --dry-run",
        slow=True,
    ),
    "resume": _command(
        "search:resume",
        "start",
        "continue a search from its directory",
        "llmzero resume demo budget.runs=24",
        slow=True,
    ),
    "stop": _command(
        "stop",
        "start",
        "end a search: outcome written, actors and hardware given back",
        'llmzero stop demo --reason "good enough"',
    ),
    "list": _command("listing:list_searches", "look", "list the searches of a storage", "llmzero list"),
    "status": _command(
        "status",
        "look",
        "show a search from its journal, running or not",
        "llmzero status",
        "llmzero status demo --log",
    ),
    "show": _command(
        "results:show",
        "look",
        "show one node: its start, changes, reasons and scores",
        "llmzero show demo:3",
        "llmzero show best",
    ),
    "diff": _command(
        "results:diff",
        "look",
        "compare two nodes or two searches",
        "llmzero diff demo:0 demo:best",
        "llmzero diff demo 0 3",
    ),
    "explain": _command("explain", "look", "say why a search decided as it did", "llmzero explain demo"),
    "report": _command(
        "results:report",
        "look",
        "write report.md and report.html of a search again",
        "llmzero report demo",
        slow=True,
    ),
    "logs": _command(
        "logs", "look", "print the log of a search or of a node", "llmzero logs demo:3 --follow"
    ),
    "hint": _command(
        "steering:hint",
        "steer",
        "tell the proposer something",
        'llmzero hint demo "try a higher temperature"',
    ),
    "veto": _command(
        "steering:veto",
        "steer",
        "close a node with all below it",
        'llmzero veto demo:4 --reason "answers are too long"',
    ),
    "clone": _command(
        "steering:clone",
        "steer",
        "continue a node with changes of your own",
        "llmzero clone demo:3 lr=5e-4 n=12 --at-step 10",
    ),
    "approve": _command(
        "steering:approve",
        "steer",
        "accept, edit or refuse a proposal that waits for you",
        "llmzero approve demo:4 lr=5e-4",
        'llmzero approve demo:4 --refuse --reason "answers are too long"',
    ),
    "pause": _command(
        "steering:pause",
        "steer",
        "end a search's processes for a while, give hardware back",
        "llmzero pause demo",
    ),
    "set": _command(
        "steering:configure",
        "steer",
        "change limits and settings of a running search",
        "llmzero set demo runs=24 slots.count=3",
    ),
    "export": _command(
        "export",
        "keep",
        "write a search for other tools: VeRL scripts, a Perfetto trace, an Optuna study",
        "llmzero export demo --verl demo-scripts",
        "llmzero export demo --perfetto trace.json --optuna sqlite:///study.db",
    ),
    "retrain": _command(
        "retrain",
        "keep",
        "train a found strategy again: other seeds, another task or model",
        "llmzero retrain runs/demo/strategy.yaml --seeds 3",
        slow=True,
    ),
    "merge": _command(
        "merge",
        "keep",
        "merge the best adapter into its base model",
        "llmzero merge demo --out demo-merged",
    ),
    "push": _command(
        "push",
        "keep",
        "send the best adapter and its card to the Hugging Face Hub",
        "llmzero push demo ann/demo-adapter --base-model Qwen/Qwen3-4B",
        "llmzero push demo ann/demo-adapter --yes --public",
    ),
    "rm": _command("remove:rm", "keep", "delete a search with its checkpoints", "llmzero rm demo"),
    "serve": _command(
        "serve",
        "data",
        "serve a model for the agents on the cluster",
        "llmzero serve /models/qwen3-32b --gpus 2 --cpus 8 -- --max-model-len 32768",
        slow=True,
    ),
    "completion": _command(
        "completion",
        "start",
        "print a shell's completion script",
        'eval "$(llmzero completion bash)"',
    ),
}
"""Commands of the core."""
OLD_NAMES = {"replay": "retrain", "budget": "set"}
"""Command name of version 0.1 -> current name. Version 0.2 accepts both."""


@cache
def subcommands() -> dict[str, Subcommand]:
    """All commands by name, in the order of `llmzero --help`: by group. A command of an extension follows the
    one that it names in `after`, or comes last.

    Raises:
        ConfigError: an extension's table cannot be loaded, is no table, or names a command that there is
            already.
    """
    found = dict(BUILT_IN)
    for name, point in points(GROUP).items():
        table: Mapping[str, Subcommand] = extension(GROUP, name)
        if not isinstance(table, Mapping) or not all(isinstance(one, Subcommand) for one in table.values()):
            raise ConfigError(
                f"{point.value}, an entry point of {GROUP}, is a {type(table).__name__}; must be a table, "
                "name -> Subcommand. Repair or uninstall its package."
            )
        for command, one in table.items():
            if command in found:
                raise ConfigError(
                    f"{point.value} adds a command {command!r}, which there is already. Uninstall its "
                    "package, or give the command another name."
                )
            near, there = found.get(one.after), list(found.items())
            group = one.group or (near.group if near else None) or GROUPS[-1]
            at = list(found).index(one.after) + 1 if near else len(there)
            found = dict([*there[:at], (command, replace(one, group=group)), *there[at:]])
    return {name: one for group in GROUPS for name, one in found.items() if one.group == group}


def subcommand(name: str) -> Subcommand | None:
    """The command of that name. Extensions are only loaded if the core has no such command."""
    name = OLD_NAMES.get(name, name)
    return BUILT_IN.get(name) or subcommands().get(name)
