"""Commands that make tasks, for the group `llmzero_ray.commands` of entry points."""

from __future__ import annotations

from llmzero_ray.cli.subcommand import Subcommand

COMMANDS = {
    "prepare": Subcommand(
        "llmzero_ray.tasks.commands.prepare",
        "prepare",
        "make the task of a configuration: data, reward, tiny model",
        ("llmzero prepare task.yaml",),
        "data",
        slow=True,
    ),
    "warm-start": Subcommand(
        "llmzero_ray.tasks.commands.warm_start",
        "warm_start",
        "teach a base model a task's gold answers",
        ("llmzero warm-start warm_start.yaml",),
        "data",
        slow=True,
    ),
    "model": Subcommand(
        "llmzero_ray.tasks.commands.model",
        "model",
        "make a small pretrained model from a package",
        ("llmzero model smollm2 --out models/smollm2",),
        after="warm-start",
        slow=True,
    ),
    "draft": Subcommand(
        "llmzero_ray.tasks.commands.draft",
        "draft",
        "draft task.yaml and its reward from a folder and a sentence",
        ('llmzero draft data/sums "Solve word problems" --out draft',),
        "data",
    ),
    "score": Subcommand(
        "llmzero_ray.tasks.commands.score",
        "score",
        "score answers of a JSONL file with a reward",
        ("llmzero score --jsonl answers.jsonl --reward math",),
        "data",
    ),
}
