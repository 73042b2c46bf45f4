"""Steering a search while it runs, on real actors; phases that hang; adapters that go or are damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.coordinator import check_decisions
from llmzero_ray.coordinator.proposals import waiting
from llmzero_ray.records import PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.storage.metric_files import load_curves
from llmzero_ray.storage.presence import last_heartbeat, owner, request
from tests.actors.conftest import Search, left_over, pids_of
from tests.waiting import PATIENCE_S

MakeSearch = Callable[..., Search]


def llmzero(*words: object) -> int:
    """One command, in this process; for `stop`, which leaves the cluster, see `end`."""
    return main([str(word) for word in words])


def end(search: Search, deadline_s: float = 0.0) -> Any:
    """What `stop --now` and `stop --deadline` ask for; the state once that is done."""
    request(search.root, "stop", "the cluster is needed", deadline_s=deadline_s)
    return search.wait()


@pytest.mark.slow
def test_hints_vetoes_clones_and_budgets_are_taken_while_it_trains(
    make_search: MakeSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    search = make_search({"hold": [1]}, budget={"runs": 3}, phase={"n_steps": 20}).start()
    search.until_step(1, 3)
    assert llmzero("hint", search.root, "a higher lr was fine elsewhere") == 0
    assert "only a language model reads hints" in capsys.readouterr().out
    assert llmzero("budget", search.root, "--set", "runs=4") == 0
    assert "budget.runs 3 → 4" in capsys.readouterr().out
    assert llmzero("clone", search.root, 0, "--set", "lr=4e-4", "--at-step", 10, "--steps", 8) == 0
    assert llmzero("veto", search.root, 1, "--reason", "a waste") == 0
    core = search.wait()
    assert core.finished.reason == "budget"
    assert core.runs[1].outcome.stop_reason == "veto: a waste"
    assert core.runs[1].status == "completed"
    (cloned,) = [run for run in core.runs.values() if run.clone is not None]
    assert (cloned.spec.n_steps, cloned.spec.resume_from.step) == (8, 10)
    assert cloned.spec.hyperparameters["actor_rollout_ref.actor.optim.lr"] == 4e-4
    assert len(core.search.nodes) == 4
    config = search.storage.config()
    assert config is not None
    assert config.budget.runs == 4
    assert [
        c.differences for c in check_decisions(search.follower.events, search.root) if c.differences
    ] == []


@pytest.mark.slow
def test_a_proposal_waits_through_a_kill_of_the_coordinator_for_what_a_person_answers(
    make_search: MakeSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    search = make_search({}, budget={"runs": 3}, agents={"approve": True}).start()
    search.until(lambda: [run.node for run in waiting(search.core)] == [1])
    asked = search.core.runs[1].asked
    os.kill(search.events(ev.CoordinatorStarted)[-1].pid, signal.SIGKILL)
    search.until(lambda: len(search.events(ev.CoordinatorStarted)) == 2)
    search.until(lambda: search.core.slots[0].ready)
    assert llmzero("approve", search.root, 2) == 2
    assert "node 2 is unknown; these wait for approval: 1." in capsys.readouterr().err
    assert search.core.runs[1].asked == asked
    assert llmzero("approve", search.root, 1, "lr=4e-4", "--steps", 8, "--reason", "colder") == 0
    assert "node=1 proposal accepted with lr = 0.0004, 8 steps: colder" in capsys.readouterr().out
    search.until(lambda: [run.node for run in waiting(search.core)] == [2])
    assert llmzero("approve", search.root, 2, "--refuse", "--reason", "not that") == 0
    assert "node=2 proposal refused; it goes back to its author: not that" in capsys.readouterr().out
    search.until(lambda: search.core.runs[2].tries == 1 and search.core.runs[2].waits)
    assert llmzero("set", search.root, "agents.approve_hours=1e-9") == 0
    core = search.wait()
    assert core.finished.reason == "budget"
    spec = core.runs[1].spec
    assert (spec.n_steps, spec.hyperparameters["actor_rollout_ref.actor.optim.lr"]) == (8, 4e-4)
    assert [(e.node, e.source.partition(":")[0]) for e in search.events(ev.ApprovalAnswered)] == [
        (1, "user"), (2, "user"), (2, "timer")
    ]  # fmt: skip
    assert not any(check.differences for check in check_decisions(search.follower.events, search.root))


REFUSED: tuple[tuple[tuple[Any, ...], str], ...] = (
    (("clone", "ROOT", 7, "--set", "lr=1e-4"), "node 7 is unknown; the search has nodes 0"),
    (("clone", "ROOT", 0, "--at-step", 3), "step 3 of node 0 is not saved; saved are 5, 10"),
    (("hint", "ROOT", "x" * 2**20), "the hint has 1048576 characters; at most 2000"),
    (("veto", "ROOT", 0), "is the root"),
    (("set", "ROOT", "seed=4"), "seed: cannot be changed once a search has begun"),
    (("budget", "ROOT", "--set", "runs=1"), "budget.runs"),
    (("budget", "ROOT", "--set", "rums=9"), "did you mean 'runs'"),
    (("clone", "ROOT", 0, "--set", "lr"), "is not of the form key=value"),
)


@pytest.mark.slow
def test_a_paused_search_refuses_what_cannot_be_done_and_goes_on_with_what_changed_meanwhile(
    make_search: MakeSearch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a hint, other limits, and the adapter before one that was damaged."""
    from llmzero_ray.config.changes import with_changes

    released = tmp_path / "released"
    search = make_search({"hold": [1], "hold_until": str(released)}, budget={"runs": 8}).start()
    search.until(lambda: 0 in search.core.runs and search.core.runs[0].outcome is not None)
    request(search.root, "pause", "for a look")
    search.wait()

    n_events = len(search.follower.events)
    for words, output in REFUSED:
        assert llmzero(*(search.root if word == "ROOT" else word for word in words)) == 2
        error = capsys.readouterr().err
        assert output in error
        assert "Traceback" not in error
        assert len(error) < 1000
    search.follower.poll()
    assert len(search.follower.events) == n_events
    assert list((search.root / "requests").glob("*")) == []

    assert llmzero("hint", search.root, "more steps") == 0
    for step in range(6, 11):
        place = search.storage.paths.adapter(0, step) / "adapter_model.safetensors"
        if place.parent.is_dir():
            place.write_bytes(b"damaged")
    edited = with_changes(search.config, {"budget.runs": 2, "slots.count": 2})
    path = tmp_path / "edited.yaml"
    path.write_text(edited.to_yaml())
    released.touch()
    done = subprocess.run(
        [sys.executable, "-m", "jobs.search", str(path)],
        env={**os.environ, "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "settings changed: " in done.stdout
    core = search.core
    assert core.hints == ["more steps"]
    assert (len(core.search.nodes), core.config.slots.count) == (2, 2)
    (corrupt,) = search.events(ev.CheckpointCorrupt)
    assert (corrupt.node, corrupt.step) == (0, 10)
    assert "adapter_model.safetensors" in corrupt.problem
    spec = core.runs[1].spec
    assert (spec.resume_from.node, spec.resume_from.step, spec.base_step) == (0, 5, 5)
    assert load_curves(search.storage, 1).base_step == 5

    path.write_text(edited.model_copy(update={"seed": 9}).to_yaml())
    assert llmzero("search", path) == 2
    assert "  seed: 1 -> 9" in capsys.readouterr().err


@pytest.mark.slow
def test_stop_now_does_not_wait_for_the_next_step_and_charges_no_failure(make_search: MakeSearch) -> None:
    search = make_search({"step_s": 1.0, "hang": [0]}, phase={"n_steps": 40}).start()
    search.until_step(0, 3)
    core = end(search)
    outcome = core.runs[0].outcome
    assert isinstance(outcome, PhaseResult)
    assert outcome.status == "completed"
    assert outcome.steps_done == 3
    assert left_over(search) == []
    assert owner(search.root) is None


@pytest.mark.slow
def test_a_stop_with_a_deadline_kills_what_does_not_obey_it(make_search: MakeSearch) -> None:
    search = make_search({"step_s": 0.05, "deaf": [0]}, phase={"n_steps": 9000, "max_steps": 9000}).start()
    search.until_step(0, 2)
    assert end(search, deadline_s=1.0).runs[0].outcome.stop_reason.startswith("user")
    assert left_over(search) == []


@pytest.mark.slow
def test_pause_gives_everything_back_and_resume_goes_on_from_the_full_checkpoint(
    make_search: MakeSearch,
) -> None:
    search = make_search({"hold": [0], "hold_at": 12}, budget={"runs": 2}, phase={"n_steps": 30}).start()
    search.until_step(0, 12)
    assert llmzero("pause", search.root, "--reason", "the night") == 0
    assert search.wait().interrupted == ("the night", 0)
    assert left_over(search) == []
    request(search.root, "pause", "asked again, when nobody was there any more")
    core = search.start().wait()
    assert core.finished.reason == "budget"
    assert (core.runs[0].attempt, core.runs[0].losses) == (1, 0)
    (interrupted,) = search.events(ev.PhaseInterrupted)
    assert (interrupted.phase_attempt, interrupted.salvaged.steps_done) == (1, 12)
    points = load_curves(search.storage, 0)
    assert points.steps == tuple(range(1, 31))
    assert core.runs[0].outcome.steps_done == 30
    assert core.runs[0].outcome.start_score == 0.25
    assert [c.step for c in core.runs[0].checkpoints] == [5, 10, 15, 20, 25, 30]


@pytest.mark.slow
def test_slots_are_added_and_given_back_while_it_runs(make_search: MakeSearch, tmp_path: Path) -> None:
    released = tmp_path / "released"
    script = {"hold": [1, 2, 3], "hold_until": str(released)}
    search = make_search(script, budget={"runs": 9}, phase={"n_steps": 20}).start()
    search.until_step(0, 2)
    assert llmzero("set", search.root, "slots.count=3") == 0
    search.until(lambda: sum(run.started and run.active for run in search.core.runs.values()) >= 2)
    search.until(lambda: f"runner-{search.on_cluster}-slot2" in left_over(search))
    assert llmzero("set", search.root, "slots.count=1") == 0
    released.touch()
    search.until(lambda: len(search.events(ev.SlotClosed)) == 2)
    left = left_over(search)
    assert f"runner-{search.on_cluster}-slot0" in left
    assert f"runner-{search.on_cluster}-slot2" not in left
    assert f"slot-{search.on_cluster}-2-0" not in left
    assert search.wait().finished.reason == "budget"
    assert left_over(search) == []


@pytest.mark.slow
def test_slots_that_wait_for_hardware_hold_nothing_up_and_are_taken_back(make_search: MakeSearch) -> None:
    search = make_search(
        {"step_s": 0.1},
        budget={"runs": 60},
        phase={"n_steps": 5000, "max_steps": 5000},
        slots={"gpus_per_node": 4, "cpus_per_gpu": 1, "timeout_s": 1e6},
    ).start()
    search.until_step(0, 2)
    assert llmzero("set", search.root, "slots.count=40") == 0  # more than any default pool has threads
    search.until(lambda: sum(name.startswith("slot-") for name in left_over(search)) == 40)
    before = last_heartbeat(search.root)
    assert before is not None
    search.until(lambda: (last_heartbeat(search.root) or 0.0) > before)
    assert llmzero("hint", search.root, "still there?") == 0
    assert llmzero("set", search.root, "slots.count=3") == 0
    search.until(lambda: sum(name.startswith("slot-") for name in left_over(search)) == 3)
    assert f"slot-{search.on_cluster}-0-0" in left_over(search)
    assert end(search).finished.reason == "user"
    assert left_over(search) == []


@pytest.mark.slow
def test_a_search_that_waits_for_its_first_hardware_can_be_stopped(make_search: MakeSearch) -> None:
    search = make_search(slots={"gpus_per_node": 8, "timeout_s": 1e6}).start()
    search.until(lambda: f"slot-{search.on_cluster}-0-0" in left_over(search))
    assert end(search).finished.reason == "user"
    assert left_over(search) == []


@pytest.mark.slow
def test_a_malformed_request_is_refused_and_holds_no_later_one_up(make_search: MakeSearch) -> None:
    search = make_search({"step_s": 0.1}, phase={"n_steps": 5000, "max_steps": 5000}).start()
    search.until_step(0, 2)
    body = {"kind": "clone", "reason": "", "node": 0, "of": 0, "changes": [["lr", 1]]}
    (search.root / "requests").mkdir(exist_ok=True)
    (search.root / "requests" / "0.json").write_text(json.dumps(body))
    search.until(lambda: search.events(ev.RequestRefused) != [])
    (refused,) = search.events(ev.RequestRefused)
    assert (refused.source, refused.kind) == ("user:0", "clone")
    assert "changes: Input should be a valid dictionary" in refused.message
    assert "request 0 (clone) is refused" in search.log()
    assert end(search).finished.reason == "user"


# --- hangs and checkpoints ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_phase_that_hangs_and_a_runner_that_is_stopped_dead_are_killed_and_repeated(
    make_search: MakeSearch,
) -> None:
    """From their full checkpoints."""
    search = make_search(
        {"step_s": 0.05, "hang": [0], "hold": [1], "hold_at": 4},
        budget={"runs": 2},
        engine={"hang_min_s": 10.0},
        checkpoints={"rolling_freq": 2},
    ).start()
    search.until_step(1, 4)
    search.until(lambda: search.storage.restart_step(1, 0) == 4)
    for pid in pids_of("PhaseRunner"):
        os.kill(pid, signal.SIGSTOP)
    core = search.wait()
    assert [(e.node, e.stage) for e in search.events(ev.RunnerSilent)] == [(0, "rollout"), (1, "runner")]
    lost = search.events(ev.RunnerLost)
    assert [(e.node, e.restart_step) for e in lost] == [(0, 2), (1, 4)]
    assert "no sign of life in stage rollout" in lost[0].reason
    for node, run in core.runs.items():
        assert (run.status, run.attempt, run.losses) == ("completed", 1, 1)
        assert load_curves(search.storage, node).steps == tuple(range(1, run.spec.n_steps + 1))
        assert not search.storage.paths.rolling(node, 0).parent.exists()


@pytest.mark.slow
def test_adapters_are_thinned_when_they_take_too_much_room(make_search: MakeSearch) -> None:
    search = make_search(
        {"adapter_kib": 1024},
        budget={"runs": 4},
        phase={"n_steps": 20, "max_steps": 40, "test_freq": 5, "save_freq": 1},
        checkpoints={"max_gib": 30 / 1024},
    ).start()
    core = search.wait()
    assert core.finished.reason == "budget", core.interrupted
    deleted = [(i.node, i.step) for e in search.events(ev.CheckpointsDeleted) for i in e.items]
    assert deleted != []
    on_disk = set(search.storage.adapter_sizes())
    assert not on_disk & set(deleted)
    best = core.best
    assert (best.node, best.outcome.best_step) in on_disk


@pytest.mark.slow
def test_pinned_adapters_above_the_limit_end_the_work_with_a_message_and_a_higher_limit_goes_on(
    make_search: MakeSearch,
) -> None:
    search = make_search(
        {"adapter_kib": 1024}, budget={"runs": 2}, checkpoints={"max_gib": 0.5 / 1024}
    ).start()
    reason, exit_code = search.wait().interrupted
    assert exit_code == 3
    assert "checkpoints.max_gib is 0.000488281" in reason
    request(search.root, "set", changes={"checkpoints.max_gib": 1.0})
    assert search.start().wait().finished.reason == "budget"
