"""Facts about a task that a journal keeps, and whether they still hold when a search goes on.

Not here: checking the task itself (llmzero_ray.tasks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.files import file_digest
from llmzero_ray.tasks import PreparedTask


def task_facts(task: PreparedTask) -> dict[str, Any]:
    """Everything that is known of the task, with a hash of each split."""
    return {
        **asdict(task),
        "sha256": {split: file_digest(getattr(task, split)) for split in ("train", "val", "test")},
    }


def check_same_task(known: Mapping[str, Any], task: PreparedTask) -> None:
    """See that a search goes on with the data it was started with.

    Raises:
        TaskError: a split has changed.
    """
    for split, before in known.get("sha256", {}).items():
        if file_digest(getattr(task, split)) != before:
            raise TaskError(
                f"{getattr(task, split)}: has changed since the search was started ({split} split). Scores "
                "would not be comparable: restore it, or choose another `name`."
            )
