"""A runner that was given up may be alive: it writes and deletes nothing that the present one relies on."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.runner import PhaseRunner
from llmzero_ray.config import parse_config
from llmzero_ray.coordinator import replay
from llmzero_ray.engines.base import Slot
from llmzero_ray.journal import Journal
from llmzero_ray.records import PhaseFailure, PhaseResult, PhaseSpec, to_json
from llmzero_ray.records import events as ev
from llmzero_ray.report.finalize import finalize
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.manifests import problem_of
from llmzero_ray.storage.metric_files import load_points
from tests.builders import Driver
from tests.fakes import LR, score_of
from tests.searches import scripted_search
from tests.waiting import PATIENCE_S, wait_until


class Attempt(threading.Thread):
    """One attempt at the root's phase by a runner of its own, which waits after `hold_at` until it is
    released."""

    def __init__(
        self, root: Path, task_dir: Path, attempt: int, *, hold_at: int, lr: float, script: Any = None
    ) -> None:
        super().__init__(daemon=True)
        self.released = root / f"released-{attempt}"
        held = {"hold": [0], "hold_at": hold_at, "hold_attempts": [attempt], "hold_until": str(self.released)}
        self.config = scripted_search(root, task_dir, held | (script or {}))
        config = parse_config(self.config)
        self.storage = SearchStorage(config.storage, config.name)
        slot = Slot(search="demo", index=attempt, placement_groups=("00",), gpus_per_node=1, cpus_per_gpu=1)
        self.runner = PhaseRunner(config.to_json(), config.storage, slot)
        spec = Driver(config).core.planner.root_phase()
        self.spec: PhaseSpec = dataclasses.replace(
            spec,
            attempt=attempt,
            restore=attempt > 0,
            hyperparameters={**spec.hyperparameters, LR: lr},
            checkpoint_dir=str(self.storage.paths.checkpoints(0)),
            rolling_dir=str(self.storage.paths.rolling(0, attempt)),
            rolling_freq=2,
        )
        self.outcome: Any = None

    def run(self) -> None:
        self.outcome = self.runner.run(self.spec)

    def until_step(self, step: int) -> None:
        wait_until(lambda: self.runner.health()["step"] == step)

    def end(self) -> PhaseResult:
        self.released.touch()
        self.join(PATIENCE_S)
        assert isinstance(self.outcome, PhaseResult)
        return self.outcome


@pytest.fixture
def attempt(tmp_path: Path, task_dir: Path) -> Callable[..., Attempt]:
    def make(number: int, **how: Any) -> Attempt:
        made = Attempt(tmp_path, task_dir, number, **how)
        made.start()
        return made

    return make


def test_an_earlier_attempt_that_goes_on_disturbs_nothing_of_the_present_one(
    attempt: Callable[..., Attempt],
) -> None:
    earlier = attempt(0, hold_at=3, lr=1e-3)
    earlier.until_step(3)
    present = attempt(1, hold_at=7, lr=5e-4)  # another learning rate stands for what no repeat has equal
    present.until_step(7)
    storage = present.storage
    earlier.end()
    assert storage.restart_step(0, 1) == 6
    present.end()
    assert [(point.step, point.attempt) for point in load_points(storage, 0)] == [
        *((step, 0) for step in range(3)),
        *((step, 1) for step in range(3, 11)),
    ]
    for kept in present.outcome.checkpoints:
        assert problem_of(Path(kept.path)) is None
        assert score_of(kept.path) == kept.val_score, f"the adapter of step {kept.step} was overwritten"
    assert storage.result(0, 1) == present.outcome


def test_an_earlier_attempt_that_ends_after_the_present_one_changes_nothing(
    attempt: Callable[..., Attempt],
) -> None:
    earlier = attempt(0, hold_at=3, lr=1e-3)
    earlier.until_step(3)
    present = attempt(1, hold_at=7, lr=5e-4)
    present.until_step(7)
    outcome = present.end()
    points = load_points(present.storage, 0)
    earlier.end()
    assert load_points(present.storage, 0) == points
    assert [score_of(kept.path) for kept in outcome.checkpoints] == [
        kept.val_score for kept in outcome.checkpoints
    ]


@pytest.mark.parametrize("script", [{"nan_score": [0]}, {"nan_score": [0], "numpy": [0]}])
def test_a_validation_score_that_is_not_finite_fails_the_phase(
    tmp_path: Path, task_dir: Path, script: dict[str, Any]
) -> None:
    attempt = Attempt(tmp_path, task_dir, 0, hold_at=1000, lr=1e-3, script=script)
    attempt.run()
    outcome = attempt.outcome
    assert isinstance(outcome, PhaseFailure) and outcome.failure_class == "nan"
    assert outcome.cause == "NonFiniteError: step 10: the validation score is nan"


def test_numbers_of_numpy_end_where_an_engine_reports_them(tmp_path: Path, task_dir: Path) -> None:
    attempt = Attempt(tmp_path, task_dir, 0, hold_at=1000, lr=1e-3, script={"numpy": [0]})
    attempt.run()
    outcome = attempt.outcome
    assert isinstance(outcome, PhaseResult) and type(outcome.best_score) is float
    assert attempt.storage.result(0, 0) == outcome
    json.dumps(to_json(outcome))


def test_a_phase_that_had_ended_when_the_search_was_paused_is_not_trained_again(
    attempt: Callable[..., Attempt],
) -> None:
    """The journal does not have its end, so it counts as given up and gets a further attempt."""
    outcome = attempt(0, hold_at=3, lr=1e-3).end()
    again = attempt(1, hold_at=1, lr=1e-3)
    assert again.end() == outcome
    assert {point.attempt for point in load_points(again.storage, 0)} == {0}
    assert again.storage.result(0, 1) is None


def test_a_phase_that_had_ended_when_the_search_was_paused_counts_when_it_is_stopped_for_good(
    attempt: Callable[..., Attempt],
) -> None:
    ended = attempt(0, hold_at=3, lr=1e-3)
    outcome, storage = ended.end(), ended.storage
    config = parse_config(ended.config)
    search, journal = Driver(config), Journal(storage.paths.journal)
    search.ready()
    search.start(0)
    search.post(ev.SearchPaused(reason="Ctrl-C"))
    for event in search.journal:
        journal.append(event)
    storage.adopt_config(config)
    finalize(storage, "enough")
    core = replay(Journal(storage.paths.journal).history, storage.paths.root)
    assert core.runs[0].outcome == outcome
    assert core.finished is not None
