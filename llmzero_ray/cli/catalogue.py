"""The subcommands of `llmzero`: where each is, what it does, and an example of it.

The examples are the last lines of each command's help and of the command reference; a test parses them. Not
here: parsing (main.py), what the commands do (the modules beside this one).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Subcommand:
    """One command: its function below `llmzero_ray.cli`, its purpose in half a sentence, examples."""

    module: str
    function: str
    help: str
    examples: tuple[str, ...]


def _command(module: str, function: str, purpose: str, *examples: str) -> Subcommand:
    return Subcommand(module, function, purpose, examples)


SUBCOMMANDS = {
    "init": _command(
        "init",
        "init",
        "write a search.yaml to begin with",
        "llmzero init --model 4b",
        "llmzero init --from run_qwen.sh --out search.yaml",
    ),
    "prepare": _command(
        ".tasks.commands.prepare",
        "prepare",
        "make the task of a configuration: data, reward, tiny model",
        "llmzero prepare task.yaml",
    ),
    "search": _command(
        "search",
        "search",
        "start a search, attach to it, or go on with it",
        "llmzero search search.yaml --set budget.runs=12 seed=2",
        'llmzero search data/sums "Solve word problems" --set model.path=/models/qwen3-4b',
        "llmzero search search.yaml --dry-run",
    ),
    "doctor": _command(
        "doctor.command",
        "doctor",
        "check the cluster against a configuration before anything is spent",
        "llmzero doctor search.yaml",
    ),
    "resume": _command(
        "search",
        "resume",
        "go on with a search from its directory",
        "llmzero resume demo --set budget.runs=24",
    ),
    "warm-start": _command(
        ".tasks.commands.warm_start",
        "warm_start",
        "teach a base model a task's gold answers",
        "llmzero warm-start warm_start.yaml",
    ),
    "serve": _command(
        "serve",
        "serve",
        "serve a model for the agents; after --: options of `vllm serve`",
        "llmzero serve /models/qwen3-32b --gpus 2 --cpus 8 -- --max-model-len 32768",
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
    "report": _command("results", "report", "write the report of a search again", "llmzero report demo"),
    "stop": _command(
        "stop",
        "stop",
        "end a search: outcome written, actors and hardware given back",
        'llmzero stop demo --reason "good enough"',
    ),
    "pause": _command(
        "steering",
        "pause",
        "end a search's processes, give hardware back; resume goes on",
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
    "draft": _command(
        ".tasks.commands.draft",
        "draft",
        "draft task.yaml and its reward from a folder and a sentence",
        'llmzero draft data/sums "Solve word problems" --out draft',
    ),
    "compare": _command(
        "compare.command",
        "compare",
        "compare search methods on tasks and seeds",
        "llmzero compare compare.yaml",
    ),
    "tables": _command(
        "tables",
        "tables",
        "the paper's tables and figures from searches",
        "llmzero tables runs/demo runs/demo-2 --out tables",
    ),
    "prompt-eval": _command(
        "prompt_eval",
        "prompt_eval",
        "put recorded requests to the agents' model and score its answers",
        "llmzero prompt-eval --set budget.dollars=1 --out answers.json",
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
    "score": _command(
        ".tasks.commands.score",
        "score",
        "score answers of a JSONL file with a reward",
        "llmzero score --jsonl answers.jsonl --reward math",
    ),
    "completion": _command(
        "completion",
        "completion",
        "print a shell's completion script",
        'eval "$(llmzero completion bash)"',
    ),
}
"""In the order of `llmzero --help`."""
STARTS = (
    *("search", "resume", "replay", "doctor", "warm-start", "serve"),
    *("prepare", "compare", "tables", "report"),
)
"""Commands that load for more than a moment: on a terminal they say so at once."""
