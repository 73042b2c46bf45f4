"""Contract of every engine, as tests that any implementation can run.

    class TestMyEngine(EngineContract):
        @pytest.fixture(scope="class")
        def case(self, tmp_path_factory): ...  # yields an EngineCase

The tests run in order on one engine; the last one closes it. They use only the protocol in engines/base.py.
Not here: whether the engine learns anything.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, get_args

import pytest

from llmzero_ray.engines.base import Engine, Stage
from llmzero_ray.errors import EngineError
from llmzero_ray.hyperparameters.compute import amount, tokens_of
from llmzero_ray.records import (
    Checkpoint,
    ComputeLimit,
    FailureClass,
    ItemOutcome,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    TokenCost,
)
from llmzero_ray.storage.manifests import problem_of

Phase: TypeAlias = tuple[PhaseResult, list[MetricPoint]]
"""(result of a phase, its points in the order in which they were reported)."""


@dataclass(frozen=True, kw_only=True)
class EngineCase:
    """An idle engine, and callbacks that make phases for tests."""

    engine: Engine
    make_spec: Callable[[int], PhaseSpec]
    """Callback that returns a phase of that many steps from the base model: always the same, except for its
    directories."""
    failing: Callable[[], PhaseSpec]
    """Callback that returns a phase that must fail."""
    val_parquet: str
    n_val: int
    test_parquet: str
    n_test: int
    max_tokens: int
    """Maximum tokens of an answer in validations."""

    def outcome_of(
        self, spec: PhaseSpec, each: Callable[[MetricPoint], None] = lambda _: None
    ) -> tuple[PhaseResult | PhaseFailure, list[MetricPoint]]:
        """Outcome and points of a phase. `each` is called with every point, on the engine's thread."""
        points: list[MetricPoint] = []

        def on_metric(point: MetricPoint) -> None:
            points.append(point)
            each(point)

        return self.engine.run(spec, on_metric), points

    def run(self, spec: PhaseSpec, each: Callable[[MetricPoint], None] = lambda _: None) -> Phase:
        """Like `outcome_of`, for a phase that must not fail."""
        outcome, points = self.outcome_of(spec, each)
        assert isinstance(outcome, PhaseResult), outcome
        return outcome, points


class EngineContract:
    """Tests of the engine protocol. Subclass it and define the class-scoped fixture `case`."""

    @pytest.fixture(scope="class")
    def case(self) -> EngineCase:
        """The engine under test."""
        raise NotImplementedError("give a fixture `case` that yields an EngineCase")

    @pytest.fixture(scope="class")
    def first(self, case: EngineCase) -> Phase:
        """Four steps from the base model, validated every 2 and saved every 4."""
        return case.run(dataclasses.replace(case.make_spec(4), test_freq=2, save_freq=4))

    # --- an undisturbed phase

    def test_every_step_is_reported_once_and_in_order_after_the_validation_at_step_zero(
        self, first: Phase
    ) -> None:
        """Steps count inside the phase; global steps add `base_step`."""
        outcome, points = first
        assert [point.step for point in points] == [0, 1, 2, 3, 4]
        assert [point.global_step for point in points] == [0, 1, 2, 3, 4]
        assert {(point.node, point.attempt) for point in points} == {(outcome.node, 0)}
        assert [point.wall_s for point in points] == sorted(point.wall_s for point in points)
        assert all(point.metrics for point in points[1:])

    def test_a_validation_travels_in_the_point_of_its_step_with_one_outcome_per_row(
        self, case: EngineCase, first: Phase
    ) -> None:
        """The score is the mean accuracy of the rows, within half a row."""
        validated = [point for point in first[1] if point.val_score is not None]
        assert [point.step for point in validated] == [0, 2, 4]
        for point in validated:
            assert [item.index for item in point.items] == list(range(case.n_val))
            assert point.val_score == pytest.approx(accuracy(point.items), abs=0.5 / case.n_val)

    def test_a_phase_that_took_all_its_steps_is_completed_and_step_zero_is_no_score(
        self, first: Phase
    ) -> None:
        """The best step is the best of the executed steps; step 0 is the policy that the phase started
        from."""
        outcome, points = first
        assert (outcome.status, outcome.stop_reason, outcome.steps_done) == ("completed", "n_steps", 4)
        assert outcome.start_score == points[0].val_score
        scores = {point.step: point.val_score for point in points[1:] if point.val_score is not None}
        assert outcome.best_step is not None and outcome.best_score == max(scores.values())
        assert scores[outcome.best_step] == outcome.best_score
        assert outcome.final_score == scores[4]
        assert 0 <= outcome.train_wall_s <= outcome.wall_s

    def test_the_best_step_and_the_last_are_saved_whole(self, first: Phase) -> None:
        """An adapter is a directory with a manifest, and carries the score of its step."""
        outcome, points = first
        assert {outcome.best_step, 4} <= {saved.step for saved in outcome.checkpoints}
        scores = {point.step: point.val_score for point in points}
        for saved in outcome.checkpoints:
            assert problem_of(Path(saved.path)) is None
            assert saved.val_score == scores[saved.step]

    def test_the_same_phase_again_gives_the_same_scores(self, case: EngineCase, first: Phase) -> None:
        """Training in between has no effect."""
        _, points = case.run(dataclasses.replace(case.make_spec(4), test_freq=2, save_freq=4))
        assert [point.val_score for point in points] == [point.val_score for point in first[1]]

    # --- what comes after it

    def test_a_child_begins_with_the_policy_of_the_checkpoint_it_was_given(
        self, case: EngineCase, first: Phase
    ) -> None:
        """Its validation at step 0 equals its parent's at that step, and its steps continue from there."""
        saved = last(first[0])
        spec = dataclasses.replace(case.make_spec(1), adapter=saved.path, base_step=saved.step)
        _, points = case.run(spec)
        assert points[0].val_score == saved.val_score
        assert [point.global_step for point in points] == [4, 5]

    def test_evaluating_gives_one_outcome_per_row_and_the_scores_of_validations(
        self, case: EngineCase, first: Phase
    ) -> None:
        """The rule holds for the base model and for an adapter, on any split."""
        assert [item.index for item in self.scored(case, None, case.test_parquet)] == list(range(case.n_test))
        half = 0.5 / case.n_val
        base = accuracy(self.scored(case, None, case.val_parquet))
        assert base == pytest.approx(first[0].start_score, abs=half)
        saved = last(first[0])
        assert accuracy(self.scored(case, saved.path, case.val_parquet)) == pytest.approx(
            saved.val_score, abs=half
        )

    def scored(self, case: EngineCase, adapter: str | None, parquet: str) -> tuple[ItemOutcome, ...]:
        """Outcomes of a policy on a split."""
        return case.engine.evaluate(adapter, parquet, case.max_tokens)

    # --- stopping

    def test_a_stop_ends_the_phase_at_a_step_boundary_with_its_last_checkpoint(
        self, case: EngineCase
    ) -> None:
        """A stop may come from any thread, any number of times; the first reason counts."""

        def from_other_threads() -> None:
            for reason in ("verdict: no hope", "user"):
                thread = threading.Thread(target=case.engine.stop, args=(reason,))
                thread.start()
                thread.join()

        outcome, points = case.run(
            case.make_spec(50), lambda point: from_other_threads() if point.step == 2 else None
        )
        assert (outcome.status, outcome.stop_reason) == ("early_stopped", "verdict: no hope")
        assert 2 <= outcome.steps_done == points[-1].step <= 4
        assert last(outcome).step == outcome.steps_done

    def test_a_stop_that_is_no_verdict_leaves_a_completed_phase(self, case: EngineCase) -> None:
        """A reader may request the adapter of a point's step at once."""
        outcome, _ = case.run(
            case.make_spec(50), lambda point: case.engine.stop("user") if point.step == 1 else None
        )
        assert (outcome.status, outcome.stop_reason) == ("completed", "user")
        assert outcome.steps_done < 50

    def test_a_stop_without_a_phase_does_nothing(self, case: EngineCase) -> None:
        """It does not affect the next phase either."""
        case.engine.stop("verdict: nobody is there")
        outcome, _ = case.run(case.make_spec(2))
        assert (outcome.status, outcome.stop_reason, outcome.steps_done) == ("completed", "n_steps", 2)

    def test_a_phase_ends_at_the_first_step_after_its_limit_of_seconds(self, case: EngineCase) -> None:
        """The phase counts as completed, with its result."""
        outcome, _ = case.run(dataclasses.replace(case.make_spec(50), max_wall_s=1e-6))
        assert (outcome.status, outcome.stop_reason) == ("completed", "max_hours")
        assert 1 <= outcome.steps_done < 50 and last(outcome).step == outcome.steps_done

    def test_a_phase_ends_with_the_step_that_brings_it_nearest_to_its_compute(self, case: EngineCase) -> None:
        """Its last step is validated and saved like any other last step."""
        limit = ComputeLimit(amount=self._of_steps(case, 3))
        outcome, points = case.run(dataclasses.replace(case.make_spec(50), test_freq=50, compute=limit))
        assert (outcome.status, outcome.stop_reason) == ("completed", "compute")
        assert 2 <= outcome.steps_done <= 4 and last(outcome).step == outcome.steps_done
        assert points[-1].val_score == outcome.final_score

    @staticmethod
    def _of_steps(case: EngineCase, n_steps: int) -> float:
        """Tokens of a phase of `n_steps` steps that is validated at its start and its end."""
        spec = dataclasses.replace(case.make_spec(n_steps), test_freq=n_steps)
        _, points = case.run(spec)
        tokens = [tokens_of(spec.hyperparameters, point.metrics) for point in points]
        return sum(amount(one, TokenCost()) for one in tokens)

    def test_a_stage_is_told_while_there_is_one(self, case: EngineCase) -> None:
        """An idle engine has no stage. An engine that does not know stages may always return None."""
        stages: list[Stage | None] = []
        case.run(case.make_spec(1), lambda _: stages.append(case.engine.stage()))
        assert all(stage is None or (stage.name and stage.since_s >= 0) for stage in stages)
        assert case.engine.stage() is None

    # --- failing

    def test_a_failed_phase_is_returned_and_the_engine_can_be_used_again(self, case: EngineCase) -> None:
        """A failure has a class, a one-line cause, and the checkpoints saved before it."""
        spec = case.failing()
        outcome, _ = case.outcome_of(spec)
        assert isinstance(outcome, PhaseFailure)
        assert outcome.node == spec.node and outcome.failure_class in get_args(FailureClass)
        assert outcome.cause and "\n" not in outcome.cause
        assert all(problem_of(Path(saved.path)) is None for saved in outcome.checkpoints)
        case.run(case.make_spec(1))

    def test_a_damaged_adapter_is_not_trained_on_and_not_scored(
        self, case: EngineCase, first: Phase, tmp_path: Path
    ) -> None:
        """Its phase fails before any step, and scoring it raises."""
        damaged = copy_of(last(first[0]), tmp_path)
        next(path for path in sorted(damaged.iterdir()) if path.name != "manifest.json").write_bytes(b"")
        outcome, points = case.outcome_of(dataclasses.replace(case.make_spec(1), adapter=str(damaged)))
        assert isinstance(outcome, PhaseFailure) and outcome.failure_class == "config"
        assert str(damaged) in outcome.cause and points == []
        with pytest.raises(EngineError):
            self.scored(case, str(damaged), case.val_parquet)

    def test_a_repeat_goes_on_from_the_full_checkpoint(self, case: EngineCase, tmp_path: Path) -> None:
        """Steps in the checkpoint are not reported again, later steps are, and the result covers all of
        them."""
        spec = dataclasses.replace(case.make_spec(6), test_freq=2, save_freq=2)
        spec = dataclasses.replace(spec, rolling_dir=str(tmp_path / "rolling"), rolling_freq=2)
        begun, before = case.run(spec, lambda point: case.engine.stop("user") if point.step == 2 else None)
        assert begun.steps_done < 6
        outcome, points = case.run(dataclasses.replace(spec, restore=True, attempt=1))
        assert [point.step for point in points] == list(range(points[0].step, 7))
        assert 3 <= points[0].step <= before[-1].step + 1
        assert {point.attempt for point in points} == {1}
        assert (outcome.steps_done, outcome.start_score) == (6, before[0].val_score)
        assert {2, 6} <= {saved.step for saved in outcome.checkpoints}

    def test_closing_may_be_repeated(self, case: EngineCase) -> None:
        """Last test, because it closes the engine."""
        case.engine.close()
        case.engine.close()


def accuracy(items: tuple[ItemOutcome, ...]) -> float:
    """Mean accuracy of the rows."""
    return sum(item.acc for item in items) / len(items)


def last(outcome: PhaseResult) -> Checkpoint:
    """The checkpoint of the latest step."""
    return max(outcome.checkpoints, key=lambda saved: saved.step)


def copy_of(saved: Checkpoint, directory: Path) -> Path:
    """The checkpoint's files in `directory`, under the same name."""
    place = directory / Path(saved.path).name
    place.mkdir()
    for path in Path(saved.path).iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place
