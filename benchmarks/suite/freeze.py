"""Make the tiny model of a suite's task, once: python -m benchmarks.suite.freeze TASK ...

Processors add floating-point numbers in different orders, so the same warm start gives another model on
another processor: base models of one pair differed by .11 in accuracy between two processors, and so did the
headroom. Each model is therefore kept in models/FAMILY and is part of the task's digest. `made.json` next to
the weights has the results of its training. An existing model is not made again: remove it after you change
its family.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.suite.tasks import MADE, TASKS, SuiteTask, model_of, spec_of, task_named
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.prepared.directory import no_progress
from llmzero_ray.prepared.manifest import read_manifest
from llmzero_ray.tasks.prepare import write_task


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="*", default=[task.name for task in TASKS])
    given = parser.parse_args()
    try:
        for name in given.tasks:
            print(f"{name}: {freeze(task_named(name))}")
    except LlmzeroError as error:
        sys.exit(f"freeze: {error}")


def freeze(task: SuiteTask) -> Path:
    """The directory of the task's model, which is made if it does not exist; that takes minutes.

    Raises:
        TaskError: it cannot be made.
    """
    target = model_of(task)
    if (target / MADE).is_file():
        return target
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        write_task(made, spec_of(task), no_progress)
        known = read_manifest(made)
        assert known.model is not None
        found = {
            "params": known.model.params,
            "greedy_val_accuracy": known.model.greedy_val_accuracy,
            "max_prompt_tokens": known.max_prompt_tokens,
            "max_answer_tokens": known.max_answer_tokens,
            "made_with": known.made_with,
        }
        shutil.copytree(made / known.model.path, target, dirs_exist_ok=True)
    (target / MADE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return target


if __name__ == "__main__":
    main()
