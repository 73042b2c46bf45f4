"""What a runner finds in a phase's answers when the phase has ended."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from actors.runner import PhaseRunner
from llmzero_ray.config import parse_config
from llmzero_ray.engines.base import Slot
from llmzero_ray.records import PhaseResult, from_json, to_json
from llmzero_ray.storage import SearchStorage
from tests.builders import Driver
from tests.fakes import BEST_LR, LR
from tests.searches import scripted_search


def ended(root: Path, task_dir: Path, script: dict[str, list[int]]) -> PhaseResult:
    """The result of a root phase whose score rises, as the runner gives it."""
    config = parse_config(scripted_search(root, task_dir, script))
    storage = SearchStorage(config.storage, config.name)
    slot = Slot(search="demo", index=0, placement_groups=("00",), gpus_per_node=1, cpus_per_gpu=1)
    spec = Driver(config).core.planner.root_phase()
    found = PhaseRunner(config.to_json(), config.storage, slot).run(
        dataclasses.replace(
            spec,
            n_steps=30,
            hyperparameters={**spec.hyperparameters, LR: BEST_LR},
            checkpoint_dir=str(storage.paths.checkpoints(0)),
        )
    )
    assert isinstance(found, PhaseResult)
    assert storage.result(0, 0) == found
    return found


def test_a_score_that_rises_on_answers_cut_off_is_in_doubt_when_the_phase_ends(
    tmp_path: Path, task_dir: Path
) -> None:
    result = ended(tmp_path, task_dir, {"restates": [0]})
    assert result.doubts is not None
    cut_off, alike = result.doubts
    assert "were cut off at the cap of 32 tokens and rewarded all the same" in cut_off
    assert '"To answer question 0, we need to"' in alike
    assert from_json(to_json(result)) == result


def test_a_score_that_rises_on_answers_that_end_is_not(tmp_path: Path, task_dir: Path) -> None:
    result = ended(tmp_path, task_dir, {})
    assert result.doubts == ()
    assert result.best_score is not None and result.start_score is not None
    assert result.best_score > result.start_score + 0.2
