"""What the page's data says while a search runs, and of one that has ended."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import llmzero_ray
from llmzero_ray.coordinator.follow import Follower, run_status
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import RunPhase
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.metric_files import compact
from llmzero_ray.storage.presence import SearchLock
from llmzero_ray.ui.followed import Followed
from llmzero_ray.ui.page import data_text
from llmzero_ray.ui.view import Live, thinned, view
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder, items
from tests.report.conftest import METRICS, Written, ended_late, scripted
from tests.ui.large import Large


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[SearchBuilder, SearchLock]]:
    """A search that somebody is at work on, after its first phase."""
    made = scripted(tmp_path)
    made.now = time.time() - 500
    made.ready().play(phases=1)
    lock = SearchLock(made.root)
    lock.acquire(private_head=True)
    yield made, lock
    lock.release()


def begin(search: SearchBuilder, phase: Phase) -> RunPhase:
    """Begin the phase that waits, with its first six points."""
    command = next(one for one in search.waiting.values() if isinstance(one, RunPhase))
    search.start(command)
    search.write_points(command.spec, phase, until=6)
    return command


def test_the_same_journal_gives_the_same_view(search: SearchBuilder) -> None:
    assert data_text(view(SearchFacts(search.storage))) == data_text(view(SearchFacts(search.storage)))


def test_a_validation_has_one_error_everywhere(search: SearchBuilder) -> None:
    nodes = view(SearchFacts(search.storage))["nodes"]
    scored = [node for node in nodes if node["score"] is not None]
    for node in scored:
        (best,) = [one for one in node["validations"] if one["global_step"] == node["global_step"]]
        assert best["error"] == node["error"] > 0
    assert len(scored) == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [scripted, Large])
def test_facts_that_follow_earlier_ones_give_the_view_of_a_whole_reading(
    kind: Callable[[Path], SearchBuilder], tmp_path: Path
) -> None:
    search = kind(tmp_path).ready()
    follower, facts = Follower(search.storage), None
    for n in range(10):  # 8 nodes are the first whose 500 steps are thinned
        if n == 3:
            search.post(ev.NodeVetoed(node=2, reason="too long", source="user:1"))
        search.play(phases=1)
        for until in (3, 6):
            for command in search.waiting.values():
                if isinstance(command, RunPhase):
                    search.start(command)
                    search.write_points(command.spec, Phase(val={0: 60}, metrics=METRICS), until=until)
            follower.poll()
            facts = SearchFacts(follower, before=facts)
            assert data_text(view(facts)) == data_text(view(SearchFacts(search.storage)))


def test_an_extended_search_is_measured_again_in_facts_that_follow_earlier_ones(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2).ready().play()
    search.finish()
    follower = Follower(search.storage)
    follower.poll()
    facts = SearchFacts(follower)
    before = view(facts)
    search.finals = {what: items(40, first=30) for what in search.finals}
    search.phases[-1] = Phase(val={0: 40, 10: 45, 20: 50})
    more = ev.SearchExtended(changes={"budget.runs": 6}, before={"budget.runs": 2})
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2), more)
    search.ready().play()
    follower.poll()
    after = view(SearchFacts(follower, before=facts))
    assert data_text(after) == data_text(view(SearchFacts(search.storage)))
    for part in ("tables", "reference", "strategy"):
        assert after[part] != before[part]


def test_failures_and_losses_are_told_apart(finished: Written, tmp_path: Path) -> None:
    failed = view(SearchFacts(finished.search.storage))
    assert [row[0] for row in failed["tables"]["failures"]["rows"]] == ["3"]
    assert failed["losses"] == []
    lost = SearchBuilder(tmp_path).ready()
    command = next(one for one in lost.waiting.values() if hasattr(one, "spec"))
    lost.start(command)
    lost.post(ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="its machine went away"))
    data = view(SearchFacts(lost.storage))
    assert "failures" not in data["tables"]
    assert data["losses"] == ["Slot 0 lost its runner while node 0 trained: its machine went away."]
    assert data["slots"][0]["lost"]


def test_best_so_far_never_falls_and_grows_with_what_was_spent(search: SearchBuilder) -> None:
    progress = view(SearchFacts(search.storage))["progress"]
    scores, hours = ([one[name] for one in progress] for name in ("score", "gpu_hours"))
    assert scores == sorted(scores)
    assert hours == sorted(hours)
    assert progress[-1]["steps"] == 20 + 20 + 20 + 7 + 20 + 12


def test_a_phase_whose_outcome_came_late_and_again_counts_once(tmp_path: Path) -> None:
    search = ended_late(tmp_path)
    assert [one["steps"] for one in view(SearchFacts(search.storage))["progress"]] == [20]
    assert Followed(search.root, steering=False).row()["scores"] == [0.6]


def test_a_view_follows_the_journal_the_metrics_and_the_coordinator(
    growing: tuple[SearchBuilder, SearchLock],
) -> None:
    search, lock = growing
    followed = Followed(search.root, steering=False)
    first = followed.view()
    assert (first["stage"], [node["node"] for node in first["nodes"]]) == ("searching", [0, 1])
    assert first["needs"] == []
    assert first["left_s"] > 0
    (ends,) = [one["name"] for one in first["budgets"] if one["ends"]]
    assert ends == "runs"
    search.play(phases=1)
    command = begin(search, Phase(val={0: 70}, metrics=METRICS))
    second = followed.view()
    assert second["nodes"][1]["score"] == 0.7
    assert second["series"]["2"]["critic/score/mean"][0][-1] == command.spec.base_step + 6
    lock.release()
    silent = followed.view()
    assert silent["stage"] == "interrupted"
    assert "silent" in silent["needs"][0]["text"]
    assert "llmzero resume" in silent["needs"][0]["text"]
    assert followed.view() is silent


def test_a_view_while_a_phase_is_compacted_stays_readable(
    growing: tuple[SearchBuilder, SearchLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    search, _ = growing
    command = begin(search, Phase(val={0: 70}, metrics=METRICS))
    followed, given = Followed(search.root, steering=False), Path.stat

    def late(path: Path, **options: bool) -> os.stat_result:
        if path.parent.name == "parts":
            monkeypatch.undo()
            compact(search.storage, command.spec.node, 0)
        return given(path, **options)

    monkeypatch.setattr(Path, "stat", late)
    assert followed.view()["stage"] == "searching"


def test_the_limit_that_ends_the_search_is_that_of_the_time_left(tmp_path: Path) -> None:
    config = make_config(budget={"runs": 4, "wall_clock_hours": 400 / 3600})
    search = SearchBuilder(tmp_path, config=config).ready().play(phases=1)
    follower = Follower(search.storage)
    follower.poll()
    live = Live(now=search.now, status=replace(run_status(follower), stage="searching"), steering=False)
    data = view(SearchFacts(follower), live)
    budgets = {one["name"]: one for one in data["budgets"]}
    assert budgets["runs"]["share"] > budgets["hours"]["share"]  # though two whole phases are to come
    assert [name for name, one in budgets.items() if one["ends"]] == ["hours"]
    assert data["left_s"] == pytest.approx(400 - budgets["hours"]["used"] * 3600, rel=0.01)


def test_while_nobody_is_at_work_nothing_is_spent_and_nothing_trains(tmp_path: Path) -> None:
    config = make_config(budget={"runs": 4, "wall_clock_hours": 1.0, "gpu_hours": 1.0})
    search = SearchBuilder(tmp_path, config=config).ready().play(phases=1)
    search.start(next(one for one in search.waiting.values() if hasattr(one, "spec")))
    data = Followed(search.root, steering=False).view()  # years later, without a coordinator
    assert data["stage"] == "interrupted"
    assert {one["name"]: one["share"] < 0.2 for one in data["budgets"]} == {
        "runs": False,
        "hours": True,
        "GPU hours": True,
    }
    assert data["left_s"] is None
    assert [node["status"] for node in data["nodes"]] == ["completed", "interrupted"]


def test_a_search_begun_anew_under_its_name_is_shown_in_place_of_the_old_one(
    search: SearchBuilder, tmp_path: Path
) -> None:
    root = tmp_path / "again"
    fresh = SearchBuilder(tmp_path / "other").ready().play(phases=1)

    def put(made: SearchBuilder | None) -> None:
        shutil.rmtree(root, ignore_errors=True)
        if made is not None:
            shutil.copytree(made.root, root)

    put(search)
    followed = Followed(root, steering=False)
    assert len(followed.view()["nodes"]) == 6
    put(None)
    assert "there is no search here" in followed.view()["sentence"]
    put(fresh)
    assert [node["node"] for node in followed.view()["nodes"]] == [0, 1]
    put(search)  # longer than the one that was read
    assert (len(followed.row()["scores"]), len(followed.view()["nodes"])) == (5, 6)


def test_the_page_of_a_copy_has_the_name_of_its_directory(search: SearchBuilder, tmp_path: Path) -> None:
    shutil.copytree(search.root, tmp_path / "before")
    assert view(SearchFacts(tmp_path / "before"))["name"] == "before"


def test_what_a_running_phase_shows_needs_a_person(growing: tuple[SearchBuilder, SearchLock]) -> None:
    search, _ = growing
    bad = {**METRICS, "actor/kl_loss": [float("nan")] * 20}
    begin(search, Phase(val={0: 60}, metrics=bad))
    (need,) = Followed(search.root, steering=False).view()["needs"]
    assert need["node"] == 1
    assert "actor/kl_loss in 6 of 6 steps" in need["text"]


def test_signs_of_a_running_phase_are_judged_by_the_number_of_its_validation_items(
    growing: tuple[SearchBuilder, SearchLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    search, _ = growing
    begin(search, Phase(val={0: 60}, metrics=METRICS))
    used: list[int] = []

    def annotate(_: object, *, n_val: int = 500) -> tuple[str, ...]:
        used.append(n_val)
        return ()

    monkeypatch.setattr("llmzero_ray.ui.view.annotate", annotate)
    Followed(search.root, steering=False).view()
    assert used == [SearchFacts(search.storage).n_val]


def test_thinning_keeps_the_extremes_in_their_order() -> None:
    points = [(step, float(step == 333) - float(step == 77)) for step in range(1000)]
    kept = thinned(points, 40)
    assert len(kept) <= 40
    assert kept == sorted(kept)
    assert {(333, 1.0), (77, -1.0)} <= set(kept)


def test_a_notebook_shows_the_page_in_a_frame(search: SearchBuilder) -> None:
    shown = llmzero_ray.open(search.root)._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "<script" not in shown
