"""Results of the doctor's two training steps on a slot: rows of the table, and step times for estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmzero_ray.cli.doctor.rows import Row, Status
from llmzero_ray.cli.step_times import step_seconds, validation_seconds
from llmzero_ray.config import SearchConfig
from llmzero_ray.records import ItemOutcome, PhaseFailure, PhaseResult
from llmzero_ray.records.metrics import mean_score
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_items, load_points

_TODO = {
    "oom": "lower engine.gpu_memory_utilization, batch or response length, or take more GPUs a slot",
    "mismatch": "what trains is not what was asked for: use the versions this engine was written against",
    "config": "correct root.overrides or engine.overrides",
    "reward": "correct the reward and prepare the task again, or install what it lacks on every machine",
}

_MOST_CHANGED = 0.1
"""Maximum share of validation items whose accuracy may change due to rounding between runs."""


@dataclass(frozen=True, kw_only=True)
class SlotTrial:
    """Two steps of one slot."""

    slot: int
    result: PhaseResult | PhaseFailure | str
    """Result, or a text that explains why there is none."""
    items: tuple[ItemOutcome, ...] | str = ""
    """Outcomes of the saved adapter on the validation split, or why they are not known."""
    scoring_s: float = 0.0

    @property
    def failure(self) -> PhaseFailure | None:
        """The phase that failed, if one did."""
        return self.result if isinstance(self.result, PhaseFailure) else None


def rows_of(config: SearchConfig, trial: SlotTrial) -> list[Row]:
    """Rows of one slot: its steps, and its adapter."""
    step, adapter = f"step, slot {trial.slot}", f"adapter, slot {trial.slot}"
    result = trial.result
    if not isinstance(result, PhaseResult):
        failed = isinstance(result, PhaseFailure)
        found = f"{result.failure_class}: {result.cause}" if isinstance(result, PhaseFailure) else str(result)
        todo = _TODO.get(result.failure_class, "") if isinstance(result, PhaseFailure) else ""
        todo = todo or ("see the log in doctor.json" if failed else "see the message; start again")
        return [
            Row(name=step, kind="engine", status="FAIL", found=found, todo=todo),
            Row(name=adapter, kind="engine", status="skipped", found="skipped: nothing was trained"),
        ]
    seconds = seconds_of(config, trial)
    found = (
        f"{result.steps_done} steps of {seconds['step_s']:.3g} s, start {seconds['startup_s']:.3g} s, "
        f"validation {seconds['validation_s']:.3g} s"
    )
    if config.engine.backend == "verl":  # it refuses to train with anything else
        found += "; the effective configuration is the one asked for"
    return [
        Row(name=step, kind="engine", status="ok", found=found),
        _adapter_row(adapter, config, trial, result),
    ]


def seconds_of(config: SearchConfig, trial: SlotTrial) -> dict[str, float]:
    """`step_s`, `startup_s`, `validation_s` of a slot that trained.

    The last step counts, because the first one warms up. A validation that the engine did not time counts as
    long as scoring the adapter.
    """
    assert isinstance(trial.result, PhaseResult)
    points = load_points(SearchStorage(config.storage, config.name), trial.slot)
    steps, timed = step_seconds(points), validation_seconds(points)
    return {
        "slot": trial.slot,
        "step_s": steps[-1] if steps else trial.result.train_wall_s / max(1, trial.result.steps_done),
        "startup_s": trial.result.setup_s,
        "validation_s": timed[-1] if timed else trial.scoring_s,
    }


def _adapter_row(name: str, config: SearchConfig, trial: SlotTrial, result: PhaseResult) -> Row:
    """Row on whether the saved adapter, loaded again, reproduces the phase's own validation score."""

    def row(status: Status, found: str, todo: str = "") -> Row:
        return Row(name=name, kind="engine", status=status, found=found, todo=todo)

    if isinstance(trial.items, str) or not trial.items or result.final_score is None:
        what = "no adapter was saved" if not result.checkpoints else f"it could not be scored: {trial.items}"
        return row("FAIL", what, "see the engine's messages; nothing could be resumed from such an adapter")
    score = mean_score([item.acc for item in trial.items])
    again, error = score.mean, score.standard_error or 0.0
    validated = load_items(SearchStorage(config.storage, config.name), trial.slot).get(result.steps_done, ())
    before = {item.index: item for item in validated}
    pairs = [(before[item.index], item) for item in trial.items if item.index in before]
    same = sum(then.response == now.response for then, now in pairs)
    changed = sum(then.acc != now.acc for then, now in pairs)
    scores = f"scored {result.final_score:.4f} in its phase, {again:.4f} when loaded again"
    scores += f"; {same} of {len(trial.items)} answers are the same"
    if math.isclose(again, result.final_score, abs_tol=1e-9) and not changed:
        return row("ok", scores)
    scores += f", {changed} are judged otherwise"
    if abs(again - result.final_score) <= error and changed <= _MOST_CHANGED * len(trial.items):
        return row("warn", scores, "expected where generation is not bitwise repeatable")
    return row(
        "FAIL",
        scores,
        "the adapter on the disk is not the policy that was trained: check versions and storage",
    )
