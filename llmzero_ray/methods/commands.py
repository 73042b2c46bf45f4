"""Commands of this extension, for the entry-point group `llmzero_ray.commands`."""

from __future__ import annotations

from llmzero_ray.cli.subcommand import Subcommand

COMMANDS = {
    "compare": Subcommand(
        "llmzero_ray.methods.compare.command",
        "compare",
        "compare search methods on tasks and seeds",
        ("llmzero compare compare.yaml",),
        "research",
        slow=True,
    ),
    "tables": Subcommand(
        "llmzero_ray.methods.paper.command",
        "tables",
        "the paper's tables and figures from searches",
        ("llmzero tables runs/demo runs/demo-2 --out tables",),
        "research",
        slow=True,
    ),
    "prompt-eval": Subcommand(
        "llmzero_ray.methods.prompt_eval.command",
        "prompt_eval",
        "put recorded requests to the agents' model and score its answers",
        ("llmzero prompt-eval --set budget.dollars=1 --out answers.json",),
        "research",
    ),
}
