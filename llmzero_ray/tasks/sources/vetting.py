"""Vet the reward that came with a task.yaml on the rows it will judge, and keep what was found.

Not here: the gate (../gate.py), loading the reward as it was vetted (../rewards/vetted.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.gate import RewardCode, vet
from llmzero_ray.tasks.gate_report import GateReport
from llmzero_ray.tasks.making import Progress
from llmzero_ray.tasks.manifest import read_manifest, write_manifest
from llmzero_ray.tasks.rewards.targets import gold_response
from llmzero_ray.tasks.rewards.vetted import write_loader
from llmzero_ray.tasks.sources.base import Adapter
from llmzero_ray.tasks.sources.own import reward_file
from llmzero_ray.tasks.splits import SPLITS
from llmzero_ray.tasks.task_yaml import OwnReward

_MAX_ROWS = 500
"""Of each split."""
_COLUMNS = ["data_source", "reward_model", "extra_info"]
_VETTED_FROM, _VETTED = 0.96, 0.99
"""Share of the whole preparation that is finished before and after."""


def vet_reward(directory: Path, reward: OwnReward, progress: Progress) -> None:
    """Let the copy of the reward in a task's directory through the gate; then write its loader, and the
    report into the manifest.

    Raises:
        TaskError: it did not pass: which checks, with examples.
        OSError: loader or manifest cannot be written.
    """
    manifest = read_manifest(directory)
    path, digest = manifest.reward.path, manifest.source.reward_sha256 if manifest.source else None
    if path is None or digest is None:
        raise TaskError(f"{directory}: the manifest names no reward file with its sha256; nothing to vet")
    rows = [row for split in SPLITS for row in _rows(directory / f"{split}.parquet")]
    code = RewardCode(
        path=directory / path,
        name=manifest.reward.name,
        gold=reward.gold,
        allow_unsandboxed=reward.allow_unsandboxed,
    )
    report = vet(
        code,
        rows,
        progress=lambda doing, share: progress(doing, _VETTED_FROM + share * (_VETTED - _VETTED_FROM)),
    )
    if not report.passed:
        raise TaskError(_refusal(report, code, reward))
    write_loader(directory / path, manifest.reward.name, digest)
    write_manifest(manifest.model_copy(update={"gate": report.entry()}), directory)


def gold_responses(directory: Path, adapter: Adapter) -> Callable[[str, str], str | None]:
    """What a right answer looks like in a prepared task: in the form with which its reward was vetted, or as
    its adapter says."""
    gate = read_manifest(directory).gate
    if gate is None:
        return adapter.gold_response
    form = gate.gold_response
    return lambda _source, ground_truth: gold_response(form, ground_truth)


def _refusal(report: GateReport, code: RewardCode, reward: OwnReward) -> str:
    """Says the user's own file, not the copy."""
    text = report.text().replace(str(code.path), str(reward_file(reward)))
    if reward.gold is None and not report.found_gold:
        text += (
            "\nNo usual form of a right answer is accepted; correct the reward, or name the form as "
            "reward.gold, such as '<answer>{answer}</answer>'"
        )
    return f"{text}\nNothing was kept; correct the reward and prepare again"


def _rows(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(path).read(columns=_COLUMNS)
    rows: list[Mapping[str, Any]] = table.slice(0, _MAX_ROWS).to_pylist()
    return rows
