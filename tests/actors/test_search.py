"""Whole searches on real actors with the scripted engine, and what happens when parts of them die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from llmzero_ray.coordinator import check_decisions, replay
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.records import PhaseFailure, ResumeFrom
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.storage.metric_files import load_curves, load_items
from llmzero_ray.storage.presence import owner, request
from tests.fakes import score_of
from tests.waiting import wait_until

from .conftest import Search, left_over, pids_of

MakeSearch = Callable[..., Search]


def test_a_search_runs_to_its_end_and_leaves_nothing_running(make_search: MakeSearch) -> None:
    """Its decisions can be taken again, and metrics and items of its phases are on the disk."""
    search = make_search(final={"test": True, "default_recipe": True}).start()
    core = search.wait()
    assert core.finished.reason == "budget"
    assert [run.status for node, run in core.runs.items() if node != REFERENCE] == ["completed"] * 3
    assert [e.what for e in search.events(ev.FinalScored)] == ["base", "best", "reference"]
    assert core.problem is None, core.problem
    assert search.storage.paths.strategy.is_file()
    assert left_over(search) == []
    assert owner(search.root) is None
    checks = list(check_decisions(search.follower.events, search.root))
    assert [check.recorded.action for check in checks][:1] == ["root"]
    assert [check.differences for check in checks if check.differences] == []
    curves = load_curves(search.storage, 0)
    assert curves.steps == tuple(range(1, 11))
    assert curves.val_steps == (5, 10)
    assert curves.start_score == 0.25
    items = load_items(search.storage, 0)
    assert sorted(items) == [0, 5, 10]
    assert len(items[5]) == 32
    # The phase's result has the paired gain of its best step.
    outcome = core.runs[0].outcome
    solved = {step: sum(item.acc for item in items[step]) for step in items}
    assert outcome.gain == pytest.approx((solved[outcome.best_step] - solved[0]) / 32)
    assert outcome.gain_error > 0
    assert (search.storage.paths.node(0) / "metrics.parquet").is_file()


@pytest.mark.slow
def test_phases_that_fail_are_told_apart_and_the_search_goes_on(make_search: MakeSearch) -> None:
    """An exception of the training, one of the engine itself, a lost process of the engine, and a phase that
    kills every runner. In the end no policy can be scored."""
    script = {"fail": [0], "lost": [1], "bug": [2], "die_always": [3], "unscorable": True}
    search = make_search(script, budget={"runs": 5}, final={"test": True}).start()
    core = search.wait()
    assert core.finished.reason == "budget"
    failed, child = core.runs[0], core.runs[1]
    assert (failed.status, failed.outcome.failure_class) == ("failed", "engine")
    assert (child.kind, child.on) == ("debug", 0)
    assert (child.status, child.attempt) == ("completed", 1)  # it was repeated
    assert isinstance(core.runs[2].outcome, PhaseFailure)
    assert core.runs[2].outcome.cause == "ValueError: scripted bug"
    outcome = core.runs[3].outcome
    assert isinstance(outcome, PhaseFailure)
    assert outcome.failure_class == "resource"
    assert outcome.steps_done == 3
    assert len([event for event in search.events(ev.RunnerLost) if event.node == 3]) == 2
    assert {e.what for e in search.events(ev.FinalFailed)} == {"base", "best"}


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_phase_by_the_hard_rule(make_search: MakeSearch) -> None:
    script = {"nan": [0], "hold": [0], "hold_at": 20}  # it waits there for the stop
    search = make_search(script, budget={"runs": 2}, phase={"n_steps": 30})
    core = search.start().wait()
    assert core.runs[0].status == "early_stopped"
    assert "non_finite" in core.runs[0].outcome.stop_reason


# --- processes that die -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_coordinator_killed_while_it_confirms_the_winner_goes_on_with_what_is_left(
    make_search: MakeSearch,
) -> None:
    final = {"test": "best", "default_recipe": False}
    search = make_search({"evaluate_s": 1.0}, confirm={"k": 3, "n": 48}, final=final).start()
    wait_until(lambda: search.events(ev.FinalScored), search.log)
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
    core = search.wait()
    scored = search.events(ev.FinalScored)
    fresh = {e.node: e.mean for e in scored if e.split == "confirm"}
    assert [(e.split, e.n) for e in scored] == [("confirm", 48)] * 3 + [("test", 64)] * 2
    assert set(fresh) == {0, 1, 2}
    assert [e.epoch for e in search.events(ev.CoordinatorStarted)] == [1, 2]
    assert core.finished.best == core.final.winner == max(fresh, key=lambda node: fresh[node])
    assert replay(search.follower.events, search.root).final.winner == core.final.winner
    assert "fresh items, which no split holds" in search.storage.paths.report.read_text()


@pytest.mark.slow
def test_a_coordinator_killed_again_and_again_comes_back_and_loses_nothing(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    script = {"hold": [0, 1, 2], "hold_until": str(tmp_path / "released-{node}")}
    search = make_search(script, phase={"n_steps": 20}).start()
    for node in range(3):
        search.until_step(node, 3)
        os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
        (tmp_path / f"released-{node}").touch()
    core = search.wait()
    assert core.finished.reason == "budget"
    assert [e.epoch for e in search.events(ev.CoordinatorStarted)] == [1, 2, 3, 4]
    assert search.events(ev.RunnerLost) == []
    assert [run.attempt for run in core.runs.values()] == [0, 0, 0]
    for node, run in core.runs.items():
        assert len(load_curves(search.storage, node).steps) == run.spec.n_steps


@pytest.mark.slow
def test_a_repeat_whose_start_was_damaged_meanwhile_takes_the_nearest_sound_adapter(
    make_search: MakeSearch,
) -> None:
    search = make_search(
        {"hold": [1], "hold_at": 7}, budget={"runs": 2}, checkpoints={"rolling_freq": 2}
    ).start()
    search.until_step(1, 7)
    assert search.core.runs[1].spec.resume_from == ResumeFrom(node=0, step=10)
    search.until(lambda: search.storage.restart_step(1, 0) == 6)  # from there the repeat would have gone on
    adapter = search.storage.paths.adapter(0, 10) / "adapter_model.safetensors"
    adapter.write_bytes(b"damaged")
    for pid in pids_of("PhaseRunner"):
        os.kill(pid, signal.SIGKILL)
    run = search.wait().runs[1]
    assert (run.status, run.attempt, run.losses) == ("completed", 1, 1)
    (corrupt,) = search.events(ev.CheckpointCorrupt)
    assert (corrupt.node, corrupt.step, corrupt.found_by) == (0, 10, 1)
    assert (run.spec.resume_from, run.spec.base_step) == (ResumeFrom(node=0, step=5), 5)
    curves = load_curves(search.storage, 1)
    assert (curves.base_step, curves.steps) == (5, tuple(range(1, run.spec.n_steps + 1)))
    assert run.outcome.start_score == score_of(str(search.storage.paths.adapter(0, 5)))


@pytest.mark.slow
def test_a_killed_stopper_comes_back_and_still_stops_a_hopeless_phase(make_search: MakeSearch) -> None:
    search = make_search(
        {"sink": [1], "step_s": 0.4, "slow": [1]},
        budget={"runs": 2},
        phase={"n_steps": 200, "max_steps": 200, "test_freq": 2},
        stopper={"interval_steps": 2, "min_steps": 12},
    ).start()
    search.until_step(1, 2)
    for pid in pids_of("StopperActor"):
        os.kill(pid, signal.SIGKILL)
    assert search.wait().runs[1].status == "early_stopped"


@pytest.mark.slow
def test_a_phase_that_does_not_stop_is_killed_and_has_failed(make_search: MakeSearch) -> None:
    search = make_search(
        {"deaf": [0], "nan": [0], "step_s": 0.1, "slow": [0]},
        budget={"runs": 2},
        phase={"n_steps": 4000, "max_steps": 4000},
    )
    search.config = search.config.model_copy(
        update={"engine": search.config.engine.model_copy(update={"stop_deadline_s": 1.0})}
    )
    search.start()
    search.until(lambda: 0 in search.core.runs and search.core.runs[0].outcome is not None)
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseFailure)
    assert outcome.failure_class == "timeout"
    request(search.root, "stop", "test")
    search.wait()


@pytest.mark.slow
def test_a_phase_whose_runner_and_coordinator_die_at_its_end_is_not_trained_again(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    script = {"hold": [0], "hold_at": 10, "hold_until": str(released)}
    search = make_search(script, budget={"runs": 2}, phase={"n_steps": 20}).start()
    search.until_step(0, 10)
    result = search.storage.paths.result(0, 0)
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGSTOP)  # it must not notice the end
    released.touch()
    search.until(result.is_file)
    for pid in (*pids_of("PhaseRunner"), search.events(ev.CoordinatorStarted)[-1].pid):
        os.kill(pid, signal.SIGKILL)
    core = search.wait()
    assert core.finished.reason == "budget"
    assert (core.runs[0].attempt, core.runs[0].losses) == (0, 0)
    # A runner that is dead at once is not even noticed.
    assert {e.node for e in search.events(ev.RunnerLost)} <= {None}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 60 MiB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_storage_that_fills_up_ends_the_work_with_a_message_and_the_search_goes_on_later(
    make_search: MakeSearch, small_disk: Path
) -> None:
    released = small_disk.parent / "released"
    search = make_search(
        {"hold": [0], "hold_until": str(released)},
        storage=str(small_disk),
        budget={"runs": 2},
        phase={"n_steps": 40},
    ).start()
    search.until_step(0, 3)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        for _ in range(64):
            file.write(b"x" * 2**20)
    released.touch()
    with pytest.raises(LlmzeroError, match="the storage is full") as error:
        search.wait()
    assert error.value.exit_code == 3
    assert left_over(search) == []
    assert owner(search.root) is None
    filler.unlink()
    core = search.start().wait()
    assert core.finished.reason == "budget"
    assert core.runs[0].status == "completed"


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("script", ["version_error", "cannot_start"])
def test_an_engine_that_cannot_start_aborts_the_search_which_can_be_resumed(
    make_search: MakeSearch, script: str
) -> None:
    """Of a wrong version at once, of any other kind after a second try."""
    search = make_search({script: "needs VeRL 0.9.1"}).start()
    core = search.wait()
    assert core.interrupted == ("needs VeRL 0.9.1", 5)
    assert left_over(search) == []
    assert search.core.runs[0].outcome is None


def test_a_person_can_stop_a_search_through_its_directory(make_search: MakeSearch) -> None:
    """Its actors and groups, which carry its name and their slots', go with it."""
    search = make_search({"hold": [0]}, slots={"count": 2}, phase={"n_steps": 40}).start()
    search.until_step(0, 3)
    name = search.on_cluster
    expected = {
        f"coordinator-{name}",
        f"stopper-{name}",
        f"runner-{name}-slot0",
        f"runner-{name}-slot1",
        f"slot-{name}-0-0",
        f"slot-{name}-1-0",
    }
    search.until(lambda: set(left_over(search)) == expected)
    request(search.root, "stop", "enough")
    core = search.wait()
    assert core.finished.reason == "user"
    assert core.runs[0].status == "completed"
    assert core.runs[0].outcome.stop_reason == "user"
    assert search.storage.paths.report.is_file()
    assert ray.util.list_named_actors(all_namespaces=True) == []
    assert left_over(search) == []


@pytest.mark.slow
def test_wall_clock_ends_the_search_at_the_next_step(make_search: MakeSearch) -> None:
    search = make_search(
        {"step_s": 0.2}, budget={"wall_clock_hours": 10}, phase={"n_steps": 2000, "max_steps": 2000}
    ).start()
    search.until_step(0, 3)  # slots and runners take as long as the machine needs
    request(search.root, "set", changes={"budget.wall_clock_hours": 1e-6})
    core = search.wait()
    assert core.finished.reason == "wall_clock"
    assert core.runs[0].outcome.stop_reason == "budget: wall_clock"


def test_hardware_that_is_not_there_is_refused_with_the_numbers_and_nothing_stays_reserved(
    make_search: MakeSearch,
) -> None:
    search = make_search(slots={"gpus_per_node": 8, "timeout_s": 1.0}).start()
    core = search.wait()
    reason, exit_code = core.interrupted
    assert exit_code == 4
    assert "asked: 1 slot(s) of 1 machine(s) with 8 GPUs and 24 CPUs each" in reason
    assert "4 GPUs, 16 CPUs" in reason
    assert left_over(search) == []


# --- several slots ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_slots_train_at_once_and_one_lost_runner_does_not_disturb_the_other(
    make_search: MakeSearch, tmp_path: Path
) -> None:
    script = {"hold": [1], "hold_until": str(tmp_path / "released"), "die": [2]}
    search = make_search(script, budget={"runs": 5}, slots={"count": 2}, phase={"n_steps": 20}).start()
    search.until(lambda: bool(search.events(ev.RunnerLost)))
    (tmp_path / "released").touch()
    core = search.wait()
    assert core.finished.reason == "budget"
    assert {run.slot for run in core.runs.values()} == {0, 1}
    assert core.runs[2].attempt == 1
    assert sum(run.attempt for run in core.runs.values()) == 1
    assert [
        c.differences for c in check_decisions(search.follower.events, search.root) if c.differences
    ] == []
