"""Two real GRPO steps on every slot at once, through the placement groups, runners and engine of a search.

The engine reads back its settings and rejects a difference. The saved adapter is loaded again and must
reproduce its score. Everything is removed at the end, also after an interrupt.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmzero_ray.cli.doctor.rows import CheckFinding, Row, Status
from llmzero_ray.cli.doctor.scratch import scratch_of
from llmzero_ray.cli.step_times import step_seconds, validation_seconds
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.dynamics.incumbent import base_problem
from llmzero_ray.errors import CapacityError, LlmzeroError
from llmzero_ray.estimate import Estimate
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.launch import actors
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import ItemOutcome, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.records.metrics import mean_score
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_items, load_points

STEPS = 2
_NAME_CHARS = 56
"""Maximum characters taken from a search's name, so that the name of the doctor's search is not too long."""
_STAGES = 5
"""Number of stages, each of which may take as long as one that hangs: two validations, two steps, and the
scoring of the adapter."""
_TODO = {
    "oom": "lower engine.gpu_memory_utilization, batch or response length, or take more GPUs a slot",
    "mismatch": "the training differs from the configuration: use the versions that this engine supports",
    "config": "correct root.overrides or engine.overrides",
    "reward": "correct the reward and prepare the task again, or install what it lacks on every machine",
}

_MOST_CHANGED = 0.1
"""Maximum share of validation items whose accuracy may change due to rounding between runs."""


def trial_of(config: SearchConfig) -> SearchConfig:
    """The search under another name, with separate files."""
    name = f"{config.name[:_NAME_CHARS]}-doctor"
    return config.model_copy(update={"name": name, "storage": str(scratch_of(config))})


def reserve(config: SearchConfig, *, private_head: bool) -> CheckFinding:
    """Reserve the hardware of all slots, as a search does; `give_back` releases it.

    An autoscaler adds missing machines, so afterwards all machines of the search are up.
    """
    trial = trial_of(config)
    _clean_up(trial)  # what a killed doctor left
    began = time.monotonic()
    try:
        asyncio.run(_pool(trial, private_head=private_head).reserve())
    except CapacityError as error:
        return CheckFinding("FAIL", str(error))
    took_s = time.monotonic() - began
    return CheckFinding("ok", f"{config.slots.count} slot(s) reserved in {took_s:.1f} s")


def give_back(config: SearchConfig) -> None:
    """End all processes on the slots and release their hardware."""
    with _uninterrupted():
        _clean_up(trial_of(config))


def _clean_up(trial: SearchConfig) -> None:
    actors.app.clean_up(SearchStorage(trial.storage, trial.name).paths.root)


def train_on_all_slots(
    config: SearchConfig, task: PreparedTask, *, private_head: bool
) -> tuple[list[Row], list[dict[str, float]], dict[str, str]]:
    """Rows of steps and adapters on the reserved slots, seconds of each slot that trained (`seconds_of`), and
    the log of each slot that failed."""
    trial = trial_of(config)
    trials = asyncio.run(_train_all(trial, task, private_head=private_head))
    rows = [row for each in trials for row in rows_of(trial, each)]
    seconds = [seconds_of(trial, each) for each in trials if isinstance(each.result, PhaseResult)]
    return rows, seconds, {str(each.slot): each.failure.log_tail for each in trials if each.failure}


def _pool(trial: SearchConfig, *, private_head: bool) -> actors.runner_pool.RunnerPool:
    return actors.runner_pool.RunnerPool(
        trial.name, trial.storage, lambda: trial, fixed_capacity=private_head
    )


async def _train_all(trial: SearchConfig, task: PreparedTask, *, private_head: bool) -> list[SlotTrial]:
    """Results of each slot."""
    pool = _pool(trial, private_head=private_head)
    specs = [_spec(trial, task, slot) for slot in range(trial.slots.count)]
    limits = Estimate(trial, task).time_limits(specs[0].hyperparameters)
    limit_s = trial.engine.start_timeout_s + _STAGES * limits.hang_s
    try:
        trials = await asyncio.gather(*(_train_one(pool, trial, task, spec, limit_s) for spec in specs))
    except BaseException:
        await pool.close_all(at_once=True)
        raise
    await pool.close_all(at_once=False)
    return trials


async def _train_one(
    pool: actors.runner_pool.RunnerPool,
    trial: SearchConfig,
    task: PreparedTask,
    spec: PhaseSpec,
    limit_s: float,
) -> SlotTrial:
    import ray

    slot, result = spec.node, None
    try:
        async with asyncio.timeout(limit_s):
            await pool.start(slot)
            result = await pool.runner(slot).run.options(name=f"doctor-slot{slot}").remote(spec)
            if isinstance(result, PhaseFailure) or not result.checkpoints:
                return SlotTrial(slot=slot, result=result)
            began, adapter = time.monotonic(), result.checkpoints[-1].path
            scoring = pool.runner(slot).evaluate.remote(adapter, task.val, trial.eval.max_response_length)
            items = await scoring
            return SlotTrial(slot=slot, result=result, items=items, scoring_s=time.monotonic() - began)
    except (ray.exceptions.RayError, LlmzeroError) as error:
        problem = str(getattr(error, "cause", None) or error).strip()
    except TimeoutError:
        problem = f"not done within {limit_s:g} s{await _stage(pool, slot)}"
    return SlotTrial(slot=slot, result=problem if result is None else result, items=problem)


async def _stage(pool: actors.runner_pool.RunnerPool, slot: int) -> str:
    with contextlib.suppress(Exception):
        health: dict[str, Any] = await asyncio.wait_for(pool.health(slot), 5.0)
        if health.get("stage"):
            return f", in {health['stage']['name']} for {health['stage']['since_s']:.0f} s"
    return ""


def _spec(trial: SearchConfig, task: PreparedTask, slot: int) -> PhaseSpec:
    """Spec of the root for two steps. The slot's number serves as the node's."""
    paths, root = SearchStorage(trial.storage, trial.name).paths, root_hyperparameters(trial, task.n_train)
    planner = Planner(config=trial, n_train=task.n_train, root=root, runs={})
    return dataclasses.replace(
        planner.root_phase(),
        node=slot,
        n_steps=STEPS,
        test_freq=STEPS,
        save_freq=STEPS,
        checkpoint_dir=str(paths.checkpoints(slot)),
    )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Context in which a second Ctrl-C does not leave hardware reserved."""
    known = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)


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
    """Rows of one slot: its steps, its adapter, and a base model that cannot learn in the first."""
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
    if config.engine.backend == "verl":  # it trains with nothing else
        found += "; the effective configuration is the one asked for"
    rows = [
        Row(name=step, kind="engine", status="ok", found=found),
        _adapter_row(adapter, config, trial, result),
    ]
    if trial.slot == 0 and (problem := base_problem(result.start_score)):
        rows.append(Row(name="base model", kind="config", status="warn", found=problem))
    return rows


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
