"""The command `ui`, for the group `llmzero_ray.commands` of entry points."""

from __future__ import annotations

from llmzero_ray.cli.subcommand import Subcommand

COMMANDS = {
    "ui": Subcommand(
        "llmzero_ray.ui.command",
        "ui",
        "show searches in a browser, also while they run",
        ("llmzero ui", "llmzero ui demo --allow-steering"),
        after="status",
        slow=True,
    ),
}
