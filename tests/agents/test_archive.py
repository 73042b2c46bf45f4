"""Lessons of earlier searches: what is read, what is left out and why, and that a request carries them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.agents.archive import archive_facts
from llmzero_ray.agents.backend import check_agents
from llmzero_ray.agents.base import ProposalRequest
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import build_request
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters.table import LR
from llmzero_ray.metrics import Curves
from llmzero_ray.records import from_json, to_json
from tests.builders import Driver, make_config
from tests.report.builder import Phase, SearchBuilder, proposal

TASK: dict[str, Any] = {
    "name": "toy", "n_train": 512, "n_val": 100, "data_sources": ["toy"], "model_path": "models/tiny",
    "sha256": {"train": "a", "val": "b", "test": "c"},
}  # fmt: skip


def finished(runs: Path, name: str, task: Mapping[str, Any] = TASK) -> Path:
    """A search of three runs: node 1 gained 10 points of 100 at half the rate, node 2 lost 8 unchanged."""
    search = SearchBuilder(runs, config=make_config(name=name, budget={"runs": 3}), task=task)
    search.answers = {1: proposal(resume=(0, 20), lr=5e-4), 2: proposal(resume=(1, 20), n_steps=10, kl=0.002)}
    search.phases = {
        0: Phase(val={0: 40, 10: 50, 20: 60}),
        1: Phase(val={0: 60, 10: 66, 20: 70}),
        2: Phase(val={0: 70, 10: 62}),
    }
    search.ready().play()
    return search.root


def beginning(runs: Path) -> SearchConfig:
    return make_config(name="new", storage=str(runs), agents={"archive": str(runs), "proposer": "local"})


def test_every_resumed_phase_on_the_same_rows_and_model_is_a_lesson_with_its_paired_gain(
    tmp_path: Path,
) -> None:
    finished(tmp_path, "before")
    facts = archive_facts(beginning(tmp_path), TASK)
    assert facts["archive"] == []
    first, second = facts["lessons"]
    assert (first["search"], first["node"], first["start_step"]) == ("before", 1, 20)
    assert first["changes"][LR][1] == 5e-4
    assert first["gain"] == pytest.approx(0.10)  # the later half of 66, 70
    assert second["gain"] == pytest.approx(-0.08)
    assert second["error"] > 0


def test_searches_of_another_task_or_model_and_damaged_ones_are_named_with_the_reason(tmp_path: Path) -> None:
    finished(tmp_path, "kept")
    finished(tmp_path, "other-rows", {**TASK, "sha256": {"train": "x", "val": "b"}})
    finished(tmp_path, "other-model", {**TASK, "model_path": "models/large"})
    damaged = finished(tmp_path, "damaged")
    for path in (damaged / "journal").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b'"Decided"', b'"DecidedInAnotherVersion"'))
    (tmp_path / "notes").mkdir()
    facts = archive_facts(beginning(tmp_path), TASK)
    assert {lesson["search"] for lesson in facts["lessons"]} == {"kept"}
    damaged_note, model, rows = facts["archive"]
    assert damaged_note.startswith("damaged: cannot be read (")
    assert model == "other-model: another base model: large, here tiny"
    assert rows == "other-rows: another task: its train rows (toy) are not those of toy"


def test_without_an_archive_there_is_nothing_and_a_missing_one_is_refused() -> None:
    assert archive_facts(make_config(), TASK) == {}
    with pytest.raises(ConfigError, match="is no directory"):
        check_agents(make_config(agents={"archive": "/nowhere"}))


def test_lessons_are_frozen_in_the_journal_and_every_request_carries_them(tmp_path: Path) -> None:
    finished(tmp_path, "before")
    facts = archive_facts(beginning(tmp_path), TASK)
    search = Driver(make_config(budget={"runs": 3}))
    started = search.core.started
    assert started is not None
    again = from_json(to_json(ev.SearchStarted(**{**vars(started), "agents": facts})))
    search.core.started = again
    search.ready()
    search.train(0, score=0.5)
    request = build_request(search.core, search.only(cmd.Propose), lambda _: Curves())
    assert isinstance(request, ProposalRequest)
    assert [lesson.name for lesson in request.lessons] == ["node 1 of before", "node 2 of before"]
    assert request.lessons[0].changes[LR][1] == 5e-4
