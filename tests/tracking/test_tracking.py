"""Searches in experiment trackers: recorded ones, sent by the tracker through VeRL's real `Tracking`."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from llmzero_ray.cli.optuna_study import mirror
from llmzero_ray.config import TrackingConfig, parse_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import RunPhase
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_points, lost_phase
from llmzero_ray.storage.trackers import make_trackers
from llmzero_ray.tracking import TrackerProcess, backend_process, tracker, tracker_keys
from llmzero_ray.tracking.backend_process import RunOpening, last_step
from llmzero_ray.tracking.runs import TrackedPoint, node_run, summary_points
from llmzero_ray.tracking.tracker import SearchTracker, track
from llmzero_ray.utils.api_key import TRACKER_KEYS, key_hidden, remove_key_file, tracker_key_file
from tests.blackbox.inputs import copy_of
from tests.report.builder import Phase, SearchBuilder
from tests.report.conftest import ended_late
from tests.waiting import PATIENCE_S, wait_until


def send(root: Path, *backends: str, **settings: Any) -> bool:
    """Send a recorded search whole; whether everything was taken."""
    found = TrackingConfig(backends=backends, **settings)  # type: ignore[arg-type]

    async def whole() -> bool:
        ended = asyncio.Event()
        ended.set()
        return await track(root, {}, ended, found)

    return asyncio.run(whole())


def file_points(root: Path) -> dict[str, list[tuple[int, Mapping[str, float]]]]:
    """Run -> points that the backend `file` wrote, all its files together."""
    found: dict[str, list[tuple[int, Mapping[str, float]]]] = {}
    for path in sorted((root / "tracking/file").rglob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found.setdefault(path.name.split(".")[0], []).extend((row["step"], row["data"]) for row in rows)
    return found


def test_a_run_carries_its_place_in_the_tree_and_what_it_changed(tmp_path: Path) -> None:
    core = SearchFacts(copy_of("two_slots", tmp_path / "runs")).core
    root, child = node_run(core, 0), node_run(core, 2)
    assert root.config["llmzero"]["parent"] is None and root.config["llmzero"]["changes"] == {}
    lineage = child.config["llmzero"]
    assert (lineage["parent"], lineage["resume_node"], lineage["resume_step"]) == (0, 0, 10)
    assert lineage["first_global_step"] == 10
    assert (root.forks, child.forks, child.forks_at) == (None, "node-0000", 10)
    before, after = core.runs[0].spec.hyperparameters, core.runs[2].spec.hyperparameters
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert set(lineage["changes"]) == changed != set()
    lr = "actor_rollout_ref.actor.optim.lr"
    assert child.config["actor_rollout_ref"]["actor"]["optim"]["lr"] == after[lr]


def test_the_search_is_a_run_with_one_point_per_phase(tmp_path: Path) -> None:
    facts = SearchFacts(copy_of("two_slots", tmp_path / "runs"))
    points = list(summary_points(facts.core, facts.events))
    assert [point.step for point in points] == list(range(1, 9))
    assert sorted(point.values["search/node"] for point in points) == list(range(8))
    best = [point.values["search/best_score"] for point in points]
    assert best == sorted(best)
    assert facts.best is not None and best[-1] == facts.best.score


@pytest.mark.slow
def test_each_node_is_a_run_over_global_steps_and_a_second_start_adds_nothing(tmp_path: Path) -> None:
    root = copy_of("finished", tmp_path / "runs")
    assert send(root, "file")
    first = file_points(root)
    facts = SearchFacts(root)
    names = {node: "reference" if node == -1 else f"node-{node:04d}" for node in facts.core.runs}
    assert set(first) == {"search", *names.values()}
    for node, name in names.items():
        base = facts.core.runs[node].base_step
        points = load_points(facts.storage, node)
        assert [step for step, _ in first[name]] == [base + point.step for point in points]
        last = points[-1]
        for key, value in last.metrics.items():
            assert first[name][-1][1][key] == pytest.approx(value, nan_ok=True)
    assert send(root, "file")
    assert file_points(root) == first


def test_a_phase_whose_outcome_came_late_and_again_is_one_point(tmp_path: Path) -> None:
    facts = SearchFacts(ended_late(tmp_path).storage)
    (point,) = summary_points(facts.core, facts.events)
    assert (point.values["search/node"], point.values["search/gpu_hours"]) == (0, facts.core.gpu_hours)


def test_a_phase_that_was_lost_and_ends_as_it_was_is_a_run_with_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = SearchBuilder(tmp_path).ready()
    search.play(phases=0)
    (command,) = (one for one in search.waiting.values() if isinstance(one, RunPhase))
    search.start(command)
    search.write_points(command.spec, Phase(val={0: 40, 10: 50}), until=12)
    salvaged = lost_phase(search.storage, 0, "gone", n_gpus=1, attempt=0)
    search.post(
        ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="gone", salvaged=salvaged, restart_step=10),
        ev.UserStop(reason="enough"),
    )
    assert (search.core.runs[0].status, search.core.runs[0].started) == ("completed", False)
    feeds: dict[str, list[int]] = {}

    class Feed:
        def __init__(self, opening: RunOpening, *_: Any) -> None:
            self.name = opening.name

        def offer(self, points: Iterable[TrackedPoint]) -> None:
            feeds[self.name] = [point.step for point in points]

        def close(self) -> None: ...

    monkeypatch.setattr(tracker, "RunFeed", Feed)
    SearchTracker(search.storage, {}, TrackingConfig(backends=("file",))).look()
    name = search.config.name
    assert feeds == {f"{name}/0": list(range(13)), name: [1]}


def test_a_damaged_file_of_one_node_costs_the_points_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_of("two_slots", tmp_path / "runs")
    (root / "nodes/0000/metrics.parquet").write_bytes(b"damaged")
    opened: list[str] = []

    class Feed(SimpleNamespace):
        def __init__(self, opening: RunOpening, *_: Any) -> None:
            opened.append(opening.name)
            done = asyncio.create_task(asyncio.sleep(0))
            super().__init__(offer=list, close=int, task=done, missing=0, failed=False)

    monkeypatch.setattr(tracker, "RunFeed", Feed)
    assert not send(root, "file")
    others = {f"two_slots/{node}" for node in SearchFacts(root).runs if node != 0}
    assert {*opened} == {*others, "two_slots"}
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("the points of node 0 cannot be read: ")


@pytest.mark.slow
def test_a_run_whose_process_is_killed_goes_on_without_a_point_twice(tmp_path: Path) -> None:
    state = tmp_path / "state" / "node-0001.file.json"
    opening = RunOpening(
        backend="file", project="p", group="g", name="g/1", config={"trainer": {}}, state=str(state),
        outputs=str(tmp_path / "tracking"), variables={},
    )  # fmt: skip
    for begin, end, kill in ((0, 40, True), (0, 80, True), (0, 100, False)):
        process = subprocess.Popen(
            [sys.executable, "-m", "llmzero_ray.tracking.backend_process"], stdin=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(opening)) + "\n")
        process.stdin.writelines(json.dumps([step, {"x": step}]) + "\n" for step in range(begin, end))
        if kill:
            process.stdin.flush()
            wait_until(lambda end=end: last_step(state) >= end - 20, lambda: str(last_step(state)))
            process.kill()
        process.stdin.close()
        assert process.wait() == (-signal.SIGKILL if kill else 0)
    steps = Counter(step for step, _ in file_points(tmp_path)["node-0001"])
    assert max(steps.values()) == 1
    assert len(steps) >= 98  # a kill between the note and the writing loses that point
    assert last_step(state) == 99


@pytest.mark.slow
def test_a_tracker_that_takes_nothing_leaves_a_message_and_the_others_alone(tmp_path: Path) -> None:
    root = copy_of("demo", tmp_path / "runs")
    begun = time.monotonic()
    # No such package here; nothing of it is asked of the network.
    assert not send(root, "file", "clearml", finish_s=PATIENCE_S)
    assert time.monotonic() - begun < PATIENCE_S
    assert len(file_points(root)["node-0000"]) == 11
    (log,) = (root / "logs/trackers").glob("node-0000.clearml.log")
    assert "clearml" in log.read_text()


@pytest.mark.slow
def test_a_full_disk_leaves_the_search_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = copy_of("demo", tmp_path / "runs")
    assert not send(root, "file", variables={"VERL_FILE_LOGGER_ROOT": "/dev/full/x"}, finish_s=PATIENCE_S)
    assert "file, run demo/0 failed" in caplog.text
    assert "points are missing" in caplog.text


@pytest.mark.slow
def test_the_trackers_process_ends_with_its_owner(tmp_path: Path) -> None:
    facts = SearchFacts(copy_of("killed", tmp_path / "runs"))  # it has not ended: the tracker waits
    tracker = TrackerProcess(facts.storage, TrackingConfig(backends=("file",)), None)
    tracker.check()
    process = tracker._process
    assert process is not None
    wait_until(lambda: (facts.paths.root / "tracking/tracker.lock").exists(), lambda: "no lock")
    assert process.poll() is None
    assert process.stdin is not None
    process.stdin.close()  # as when the coordinator is killed
    wait_until(lambda: process.poll() is not None, lambda: "the tracker goes on")
    tracker.finish()


class Refusing:
    """VeRL's `Tracking` over a tracker that refuses some of its steps, each as often as it is listed, with a
    list for each opening of the run."""

    def __init__(self, refused: list[list[int]]) -> None:
        self.refused, self.taken = refused, list[int]()

    def open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the next run opened with it."""
        refused = self.refused.pop(0)

        def log(values: Mapping[str, float], step: int) -> None:
            if step in refused:
                refused.remove(step)
                raise ConnectionError("502 Bad Gateway")
            self.taken.append(step)

        tracking = SimpleNamespace(logger={"file": None}, log=log, finish=lambda: None)
        module = SimpleNamespace(
            logger=logging.getLogger("of.verl"), Tracking=lambda *given: given and tracking
        )
        monkeypatch.setattr(backend_process, "_verl_tracking", lambda: module)


@pytest.mark.parametrize(
    ("refused", "codes", "taken"),
    [
        ([[4, 4, 4, 5, 6], []], [3, 0], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),  # a while without a network
        ([[8, 8, 9], []], [3, 0], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),  # it ends before the tracker is back
        ([[0, 0, 0, 1, 2], [0, 0, 0, 1, 2], []], [3, 3, 0], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ([[5]], [0], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),  # a moment without a network
        ([[5, 5, 6]], [0], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ([[5, 6, 6]], [4], [0, 1, 2, 3, 4, 5, 7, 8, 9]),
        ([[5, 5]], [4], [0, 1, 2, 3, 4, 6, 7, 8, 9]),  # it takes later points: this one it does not want
    ],
)
def test_points_that_a_tracker_refuses_are_sent_again_unless_it_takes_later_ones(
    refused: list[list[int]],
    codes: list[int],
    taken: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = Refusing(refused)
    opening = RunOpening(
        backend="file", project="p", group="g", name="g/1", config={"trainer": {}},
        state=str(tmp_path / "state" / "node-0001.file.json"), outputs=str(tmp_path), variables={},
    )  # fmt: skip
    lines = [json.dumps(asdict(opening)), *(json.dumps([step, {"x": step}]) for step in range(10))]
    found = []
    for _ in codes:
        tracker.open(monkeypatch)
        found.append(backend_process.main(io.StringIO("\n".join(lines))))
    assert (found, tracker.taken) == (codes, taken)


@pytest.mark.parametrize(
    ("parent", "variables", "fork"),
    [
        ({"id": "parent", "step": 12}, {}, "parent?_step=10"),
        ({"id": "parent", "step": 9}, {}, None),  # W&B does not have the step yet
        ({}, {}, None),
        ({"id": "parent", "step": 12}, {"WANDB_MODE": "offline"}, None),
    ],
)
def test_a_phase_of_wandb_forks_the_run_that_it_resumes_when_it_is_first_opened(
    parent: dict[str, Any],
    variables: dict[str, str],
    fork: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks, opened = Forks(monkeypatch), []
    forks.can_fork = True
    for _ in range(2):
        assert forks.send(tmp_path, parent, variables) == 0
        opened += forks.opened()
    assert opened == [(fork, None if fork else "allow"), (None, "allow")]


def test_a_server_of_wandb_that_cannot_fork_gets_a_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = Forks(monkeypatch)
    assert forks.send(tmp_path, {"id": "parent", "step": 12}, {}) == 0
    assert forks.opened() == [("parent?_step=10", None), (None, "allow")]
    assert forks.taken == [10, 11]


class Forks:
    """VeRL's `Tracking` over a W&B server that forks runs, or refuses to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.can_fork, self.taken = False, list[int]()
        self._opened: list[tuple[str | None, str | None]] = []
        self._monkeypatch = monkeypatch
        module = SimpleNamespace(logger=logging.getLogger("of.verl"), Tracking=self._open)
        monkeypatch.setattr(backend_process, "_verl_tracking", lambda: module)
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(teardown=lambda: None))

    def opened(self) -> list[tuple[str | None, str | None]]:
        """(fork, resume) of each try to open a run since the last call."""
        found, self._opened = self._opened, []
        return found

    def send(self, directory: Path, parent: dict[str, Any], variables: dict[str, str]) -> int:
        """Exit code of a process that opens node 1, which resumes node 0 at step 10."""
        state = directory / "state"
        state.mkdir(exist_ok=True)
        (state / "node-0000.wandb.json").write_text(json.dumps(parent))
        opening = RunOpening(
            backend="wandb", project="p", group="g", name="g/1", config={"trainer": {}},
            state=str(state / "node-0001.wandb.json"), outputs=str(directory), variables=variables,
            forks=str(state / "node-0000.wandb.json"), forks_at=10,
        )  # fmt: skip
        lines = [json.dumps(asdict(opening)), *(json.dumps([step, {"x": step}]) for step in (10, 11))]
        with self._monkeypatch.context() as patched:
            for name in [name for name in os.environ if name.startswith("WANDB_")]:
                patched.delenv(name)
            environment = dict(os.environ)
            try:
                return backend_process.main(io.StringIO("\n".join(lines)))
            finally:
                os.environ.clear()
                os.environ.update(environment)

    def _open(self, *_: Any) -> Any:
        fork = os.environ.get("WANDB_FORK_FROM")
        self._opened.append((fork, os.environ.get("WANDB_RESUME")))
        if fork and not self.can_fork:
            raise RuntimeError("forks are not enabled for this account")
        return SimpleNamespace(
            logger={"wandb": None}, log=lambda _, step: self.taken.append(step), finish=lambda: None
        )


@pytest.mark.slow
def test_each_node_becomes_a_trial_of_a_study_once(tmp_path: Path) -> None:
    root = copy_of("two_slots", tmp_path / "runs")
    url = f"sqlite:///{root}/tracking/optuna.db"
    for _ in range(2):
        assert send(root, "optuna", finish_s=500)
        assert mirror(SearchFacts(SearchStorage.at(root)), url) == 0
    trials = optuna.load_study(study_name="two_slots", storage=url).trials
    facts = SearchFacts(SearchStorage.at(root))
    assert {trial.user_attrs["node"]: trial.value for trial in trials} == {
        node: run.score for node, run in facts.runs.items()
    }
    assert len(trials) == len(facts.runs) > 1


def test_a_study_goes_on_where_its_search_has_moved_and_takes_no_other_search(tmp_path: Path) -> None:
    root = copy_of("two_slots", tmp_path / "runs")
    url = f"sqlite:///{tmp_path}/study.db"
    assert (n := mirror(SearchFacts(root), url)) > 0
    with pytest.raises(ConfigError, match="its study 'two_slots' is not of"):
        mirror(SearchFacts(copy_of("two_slots", tmp_path / "copies")), url)
    moved = tmp_path / "elsewhere" / "two_slots"
    moved.parent.mkdir()
    root.rename(moved)
    assert mirror(SearchFacts(moved), url) == 0
    assert len(optuna.load_study(study_name="two_slots", storage=url).trials) == n
    again = SearchFacts(moved)  # deleted and begun again
    again.events = (dataclasses.replace(again.events[0], time=1.0), *again.events[1:])
    with pytest.raises(ConfigError, match="its study 'two_slots' is not of"):
        mirror(again, url)


def test_keys_of_trackers_reach_their_processes_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "w" * 40)
    with key_hidden(*TRACKER_KEYS):
        assert "WANDB_API_KEY" not in os.environ
    assert os.environ["WANDB_API_KEY"] == "w" * 40
    path = tracker_key_file(str(tmp_path), private_head=True)
    assert path is not None and tmp_path not in Path(path).parents
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert tracker_keys(path) == {"WANDB_API_KEY": "w" * 40}
    remove_key_file()
    assert not Path(path).exists()
    assert tracker_keys(path) == {}
    assert tracker_key_file(str(tmp_path), private_head=False) is None


def test_a_key_in_the_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="WANDB_API_KEY names a key"):
        parse_config({"name": "a", "tracking": {"variables": {"WANDB_API_KEY": "x"}}})


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    settings = TrackingConfig(backends=("wandbb",))
    with pytest.raises(ConfigError, match=r"wandbb.*must be .*mlflow.*Did you mean 'wandb'"):
        make_trackers(SearchStorage(tmp_path, "a"), settings, None)


def test_two_trackers_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than once"):
        parse_config({"name": "a", "tracking": {"backends": ["wandb", "wandb"]}})


# --- a server that cannot be reached ------------------------------------------------------------------------


class Failing(BaseHTTPRequestHandler):
    """A server that answers every request with an error."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(
    params=[
        pytest.param("hangs", marks=pytest.mark.slow),
        pytest.param("refuses", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("fails", marks=[pytest.mark.slow, pytest.mark.long]),
    ]
)
def mlflow_address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where an MLflow server should be and is not: nobody listens, it answers 500, or it never answers."""
    if request.param == "fails":
        with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
            thread.join()
        return
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        if request.param == "hangs":
            place.listen(64)  # connections are taken by the kernel; nobody reads them
        yield f"http://127.0.0.1:{place.getsockname()[1]}"


def test_a_server_that_is_down_costs_the_end_of_a_search_its_limit_at_most(
    mlflow_address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_of("demo", tmp_path / "runs")
    variables = {"MLFLOW_TRACKING_URI": mlflow_address}
    settings = TrackingConfig(backends=("file", "mlflow"), variables=variables)

    async def whole() -> tuple[bool, float]:
        tracker = SearchTracker(SearchStorage.at(root), {}, settings)
        tracker.look()
        files = [feed for (_, backend), feed in tracker._feeds.items() if backend == "file"]
        await asyncio.to_thread(wait_until, lambda: not any(feed.missing for feed in files))
        begun = time.monotonic()
        return await tracker.finish(5.0), time.monotonic() - begun

    complete, took_s = asyncio.run(whole())
    assert not complete and took_s < 5.0 + 60.0
    facts = SearchFacts(root)
    for node, run in facts.core.runs.items():  # the other tracker has every point
        name = "reference" if node == -1 else f"node-{node:04d}"
        expected = [run.base_step + point.step for point in load_points(facts.storage, node)]
        assert [step for step, _ in file_points(root)[name]] == expected
        assert last_step(root / f"tracking/state/{name}.mlflow.json") == -1  # nothing is taken for sent
    counted = Counter(line for line in caplog.messages if "points are missing" in line)
    names = [f"demo/{node}" for node in facts.core.runs] + ["demo"]
    assert sorted(line.partition(":")[0] for line in counted) == sorted(f"mlflow, run {n}" for n in names)
    assert set(counted.values()) == {1}


# --- the real packages --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tensorboard_mlflow_and_wandb_offline_show_every_point_once(tmp_path: Path) -> None:
    root = copy_of("demo", tmp_path / "runs")
    for _ in range(2):
        assert send(
            root, "tensorboard", "mlflow", "wandb", variables={"WANDB_MODE": "offline"}, finish_s=500
        ), "\n".join(path.read_text()[-500:] for path in (root / "logs/trackers").iterdir())
    facts = SearchFacts(root)
    expected = {
        node: [run.base_step + point.step for point in load_points(facts.storage, node)]
        for node, run in facts.core.runs.items()
    }
    assert {node: tensorboard_steps(root, node) for node in expected} == expected
    assert mlflow_runs(root) == {
        **{f"demo/{node}": (steps, str(facts.core.runs[node].on)) for node, steps in expected.items()},
        "demo": ([1, 2, 3, 4], None),
    }
    assert wandb_runs(root) == {
        **{f"demo/{node}": ("demo", steps) for node, steps in expected.items()},
        "demo": ("demo", [1, 2, 3, 4]),
    }


SLOW_STORE = """
import sys, time
from mlflow.store.tracking.file_store import FileStore
from llmzero_ray.tracking import backend_process
make = FileStore._create_experiment_with_id
def slowly(*given, **named):
    time.sleep(2)
    return make(*given, **named)
FileStore._create_experiment_with_id = slowly
sys.exit(backend_process.main(sys.stdin))
"""
"""A run's process, in a store that takes its time from the look for an experiment to its making."""


@pytest.mark.slow
def test_runs_opened_at_once_are_in_one_experiment_of_mlflow(tmp_path: Path) -> None:
    processes = []
    for number in range(3):
        opening = RunOpening(
            backend="mlflow", project="llmzero", group="demo", name=f"demo/{number}", config={"llmzero": {}},
            state=str(tmp_path / f"tracking/state/{number}.mlflow.json"),
            outputs=str(tmp_path / "tracking"), variables={},
        )  # fmt: skip
        process = subprocess.Popen([sys.executable, "-c", SLOW_STORE], stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(opening)) + '\n[7, {"llmzero/phase_step": 7}]\n')
        process.stdin.close()
        processes.append(process)
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert mlflow_runs(tmp_path) == {f"demo/{number}": ([7], None) for number in range(3)}


def tensorboard_steps(root: Path, node: int) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(root / f"tracking/tensorboard/demo/node-{node:04d}"))
    events.Reload()
    assert "config/text_summary" in events.Tags()["tensors"]
    return [event.step for event in events.Scalars("llmzero/phase_step")]


def mlflow_runs(root: Path) -> dict[str, tuple[list[int], str | None]]:
    """Name of a run -> its steps and its parent."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient((root / "tracking/mlflow").as_uri())
    experiment = client.get_experiment_by_name("llmzero")
    assert experiment is not None
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        name = run.info.run_name or ""
        key = "search/node" if name == "demo" else "llmzero/phase_step"
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, key)]
        found[name] = (sorted(steps), run.data.params.get("llmzero/parent"))
        assert run.data.tags["search"] == "demo"
    return found


def wandb_runs(root: Path) -> dict[str, tuple[str, list[int]]]:
    """Name of a run -> its group and its steps, from the files that `wandb sync` would send."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, tuple[str, list[int]]] = {}
    for path in sorted((root / "tracking/wandb").glob("offline-run-*/*.wandb")):
        name, group, steps = "", "", []
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                name, group = record.run.display_name, record.run.run_group
            elif record.HasField("history"):
                steps.append(record.history.step.num)
        assert name not in found
        found[name] = (group, steps)
    return found


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Records of a .wandb file: LevelDB's log format, after a header of 7 bytes."""
    at, block, record = 7, 32768, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or last part
            yield record
            record = b""
