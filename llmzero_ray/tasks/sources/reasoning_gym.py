"""Tasks of the reasoning-gym package, by name. The generator gives the rows and the verifier gives the
reward.

Validation and test rows have their own generator seeds, far from those of the training rows, and no prompt is
in two splits.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import Problem
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.splits import CONFIRM, SPLITS, distinct_problems
from llmzero_ray.tasks.rewards.reasoning_gym import STREAM_LENGTH, dataset_of
from llmzero_ray.tasks.sources.base import (
    DatasetAdapter,
    OnlySplit,
    Record,
    Rejection,
    TaskExample,
    slug,
)
from llmzero_ray.tasks.sources.readers import SourceFile
from llmzero_ray.utils.text import nearest_names

_BOUND: Mapping[str, OnlySplit] = {"train": "", "val": "val", "test": "test"}
INSTRUCTION = "Give the final answer, and nothing else, between <answer> and </answer>."


class GymTask(DatasetAdapter):
    """`options` are fields of the generator's configuration, such as `min_terms`."""

    licence = "Apache-2.0"
    ability = "reasoning"
    required = ("problem",)
    optional = ()
    reward = RewardEntry(module="llmzero_ray.tasks.rewards.reasoning_gym")

    def __init__(self, task: str, options: Mapping[str, Any], seed: int) -> None:
        self.name = f"reasoning_gym_{slug(task)}"
        self._task, self._options, self._seed = task, dict(options), seed

    def options(self) -> dict[str, Any]:
        """Settings that determine the generator's output, with the package's version, since versions generate
        different problems."""
        made_by = {
            "reasoning_gym": version("reasoning-gym"),
            "task": self._task,
            "generator_seed": self._seed,
        }
        return made_by | {f"options.{key}": value for key, value in self._options.items()}

    def check(self) -> None:
        """Check that the package is installed, has the task, and accepts the options."""
        try:
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise TaskError(
                f"reasoning_gym: the package cannot be imported ({error}); install llmzero-ray[tasks]"
            ) from error
        if self._task not in DATASETS:
            near = nearest_names(self._task, DATASETS, 3)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {len(DATASETS)}"
            raise TaskError(f"reasoning_gym: no task is called {self._task!r}; {hint}")
        if reserved := {"seed", "size"} & self._options.keys():
            raise TaskError(f"reasoning_gym: options holds {min(reserved)}; use the fields seed and n_train")
        try:
            dataset_of(self._task, json.dumps(self._options, sort_keys=True))[0]
        except Exception as error:  # a generator may raise anything
            raise TaskError(
                f"reasoning_gym: {self._task} refuses the options {self._options}: {error}"
            ) from error

    def generate(self, directory: Path, sizes: Mapping[str, int]) -> list[SourceFile]:
        """Write the problems of each split into files that `adapt` reads.

        Raises:
            TaskError: the generator has too few different problems.
            OSError: they cannot be written.
        """
        self.check()
        seen: set[str] = set()
        files = []
        for split in reversed(SPLITS):
            path = directory / f"{split}.jsonl"
            problems = distinct_problems(self, split, sizes[split], self._seed, seen)
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines(json.dumps({"problem": problem.answer}) + "\n" for problem in problems)
            files.append(SourceFile(path=str(path), name=path.name, only_split=_BOUND[split]))
        return [*files, *self._fresh(directory, sizes.get(CONFIRM, 0), seen)]

    def _fresh(self, directory: Path, n: int, seen: set[str]) -> list[SourceFile]:
        """A file of up to `n` further problems, drawn after all others."""
        path, found = directory / f"{CONFIRM}.jsonl", []
        with contextlib.suppress(TaskError):  # too few different problems: keep those found
            for problem in distinct_problems(self, CONFIRM, n, self._seed, seen):
                found.append(json.dumps({"problem": problem.answer}) + "\n")
        if not found:
            return []
        path.write_text("".join(found), encoding="utf-8")
        return [SourceFile(path=str(path), name=path.name, only_split=CONFIRM)]

    def problems(self, seed: int) -> Iterator[Problem]:
        """Entries of generators with that seed and following ones; `answer` is the entry as JSON.

        Most generators seed entry i with seed + i, so the stream equals that of one long generator.
        """
        options = json.dumps(self._options, sort_keys=True)
        for start in itertools.count(seed, STREAM_LENGTH):
            dataset = dataset_of(self._task, options, start)
            for index in range(STREAM_LENGTH):
                entry = dataset[index]
                yield Problem(prompt=entry["question"], answer=json.dumps(entry, default=str))

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:  # noqa: ARG002
        """Example of one problem. Its ground truth holds everything that the verifier reads."""
        entry = json.loads(record["problem"])
        truth = {"task": self._task, "options": self._options, "entry": entry}
        return TaskExample(
            data_source=self.name,
            prompt=f"{entry['question'].strip()}\n\n{INSTRUCTION}",
            ground_truth=json.dumps(truth, sort_keys=True),
            label="" if entry["answer"] is None else str(entry["answer"]),
            extra={"task": self._task},
        )

    def gold_response(self, data_source: str, ground_truth: str) -> str | None:  # noqa: ARG002
        """Generator's answer in the answer tags. None for tasks without one."""
        answer = json.loads(ground_truth)["entry"]["answer"]
        return None if answer is None else f"<answer>{answer}</answer>"
