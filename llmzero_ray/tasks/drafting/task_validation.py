"""Validate a drafted task: prepare it from sampled rows exactly as `llmzero prepare` will.

Reward code runs in the sandbox only. Not here: the checks of a reward (prepared/reward_validation), retries
after findings (draft.py).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.errors import LlmzeroError
from llmzero_ray.prepared.reward_validation import GOLD_SHARE
from llmzero_ray.prepared.sandbox import find_isolation
from llmzero_ray.tasks.drafting.base import RewardSpec, TaskSpec
from llmzero_ray.tasks.drafting.config_fields import REWARD_FILE
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.sources.summary import Summary
from llmzero_ray.tasks.task_yaml import parse_task_file
from llmzero_ray.utils.text import clean

MAX_ROWS = 200
_SAMPLE = "rows.jsonl"
_HELD_OUT = 4
_LOST_SHARE = 0.2
"""Largest share of unusable rows."""
_EXPECTED_LOSSES = ("duplicate prompt", "not needed", "its group is in another split")
_MAX_CHARS = 4_000


@dataclass(frozen=True, kw_only=True)
class TaskValidation:
    """Result of preparing a task from sampled rows."""

    n_rows: int
    findings: tuple[str, ...]
    """Problems to fix. Empty if the draft works."""
    accuracies: Mapping[str, float | None]
    """Mean reward of gold, empty and garbage answers. Empty if preparation failed first."""
    fixable: bool = True
    """False if no other reward would change the findings."""
    warnings: tuple[str, ...] = ()
    """Checks that could not be made."""


def validate_task(fields: Mapping[str, Any], spec: TaskSpec, reward: RewardSpec) -> TaskValidation:
    """The validation of a task without open fields."""
    if reward.kind == "python" and not (isolation := find_isolation()).full:
        finding = (
            f"the reward is code and was not tried: this machine has no sandbox for it ({isolation.why})"
        )
        return TaskValidation(n_rows=0, findings=(finding,), accuracies={}, fixable=False)
    step = max(1, len(spec.table.rows) // MAX_ROWS)
    rows = spec.table.rows[::step][:MAX_ROWS]
    with tempfile.TemporaryDirectory(prefix="llmzero-draft-") as scratch:
        place = Path(scratch)
        data = _on_sample(fields, place, len(rows))
        (place / _SAMPLE).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        if reward.code is not None:
            (place / REWARD_FILE).write_text(reward.code, encoding="utf-8")
            data["reward"] = {**data["reward"], "python": f"{place / REWARD_FILE}:compute_score"}
        try:
            summary = prepare_source(parse_task_file(data))
        except LlmzeroError as error:
            finding = _of_sample(clean(str(error)).replace(f"{scratch}/", ""))[:_MAX_CHARS]
            return TaskValidation(n_rows=len(rows), findings=(finding,), accuracies={})
    return _report(summary, len(rows))


def _of_sample(message: str) -> str:
    """A message on the sample without the name of its file, which the user does not have."""
    return message.replace(f"{_SAMPLE}, row ", "sampled row ")


def _on_sample(fields: Mapping[str, Any], place: Path, n_rows: int) -> dict[str, Any]:
    """The fields of the task with the sample as its data."""
    left_out = ("files", "val_files", "test_files", "dir")
    held_out = max(1, n_rows // _HELD_OUT)
    own = {"files": str(place / _SAMPLE), "dir": str(place / "task")}
    counts = {"n_train": n_rows, "n_val": held_out, "n_test": held_out}
    return {name: value for name, value in fields.items() if name not in left_out} | own | counts


def _report(summary: Summary, n_rows: int) -> TaskValidation:
    findings, trial = list[str](), summary.trial
    lost = {why: n for why, n in summary.dropped.items() if why not in _EXPECTED_LOSSES}
    n_lost, counts = sum(lost.values()), ", ".join(f"{n} {why}" for why, n in lost.items())
    if n_lost > _LOST_SHARE * n_rows:
        examples = _of_sample("; ".join(places[0] for places in summary.examples.values() if places))
        findings.append(f"{n_lost} of {n_rows} rows cannot be used: {counts}. {examples}")
    if trial is not None and trial.gold is not None and trial.gold < GOLD_SHARE:
        findings.append(
            f"the reward accepts {trial.gold:.1%} of {trial.n_rows} right answers; it must "
            f"accept {GOLD_SHARE:.0%}"
        )
    if trial is not None and max(trial.empty, trial.garbage) > 0:
        findings.append(
            f"the reward pays {trial.empty:.1%} of empty and {trial.garbage:.1%} of meaningless answers; "
            "it must pay none"
        )
    accuracies = {} if trial is None else {"gold": trial.gold, "empty": trial.empty, "garbage": trial.garbage}
    warnings = list[str]()
    if trial is not None and trial.gold is None:
        warnings.append("the reward was not tried with right answers: nothing says what one looks like")
    if lost and not findings:
        warnings.append(f"{n_lost} of {n_rows} sampled rows are left out: {counts}")
    return TaskValidation(
        n_rows=n_rows,
        warnings=tuple(warnings),
        findings=tuple(clean(each)[:_MAX_CHARS] for each in findings),
        accuracies=accuracies,
    )
