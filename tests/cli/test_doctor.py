"""What the doctor finds on real clusters of several machines, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from llmzero_ray.cli.doctor.command import doctor
from llmzero_ray.storage import SearchStorage
from tests.builders import with_blocks
from tests.doctor_engine import STARTUP_S, STEP_S, VALIDATION_S
from tests.searches import CHECKOUT, scripted_search
from tests.waiting import PATIENCE_S, wait_for_ray_nodes, wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two machines with two GPUs each, every one in a working directory of its own."""
    wait_for_ray_nodes()
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    (Path(temporary) / "ray").mkdir()
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", temporary)
    patch.setenv("PYTHONPATH", str(CHECKOUT))  # a driver that is elsewhere does not tell them where we are
    made = Cluster()
    before = os.getcwd()
    try:
        for name, has in (
            ("head", {"num_cpus": 4, "include_dashboard": False}),
            *((f"m{i}", {"num_cpus": 12, "num_gpus": 2}) for i in (1, 2)),
        ):
            place = Path(temporary) / name
            place.mkdir()
            os.chdir(place)
            made.add_node(**has)
    finally:
        os.chdir(before)
    patch.setenv("RAY_ADDRESS", made.address)
    made.places = [Path(temporary) / name for name in ("head", "m1", "m2")]
    yield made
    made.shutdown()
    patch.undo()
    shutil.rmtree(temporary, ignore_errors=True)


class Doctor:
    """Runs the command on a configuration with the scripted engine, two slots of one GPU."""

    def __init__(self, task_dir: Path, root: Path) -> None:
        self.root, self.path = root, root / "search.yaml"
        self.task_dir = task_dir
        (root / "runs").mkdir()

    def write(self, script: dict[str, Any] | None = None, **blocks: Any) -> Path:
        ours = {
            "name": "doc",
            "engine": {"backend": "tests.doctor_engine:make_engine"},
            "slots": {"count": 2, "timeout_s": PATIENCE_S},
        }
        content = scripted_search(self.root, self.task_dir, script, **with_blocks(ours, blocks))
        self.path.write_text(yaml.safe_dump(content))
        return self.path

    def __call__(self, script: dict[str, Any] | None = None, *, step: bool = True, **blocks: Any) -> int:
        path = self.write(script, **blocks)
        return doctor(str(path), settings=[], no_step=not step)

    @property
    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "runs" / "doc" / "doctor.json").read_text())
        return found

    @property
    def rows(self) -> dict[str, dict[str, str]]:
        return {row["name"]: row for row in self.kept["rows"]}

    def statuses(self) -> dict[str, str]:
        return {name: row["status"] for name, row in self.rows.items()}

    def left(self) -> list[str]:
        """Actors, placement groups and files of the doctor that are still there."""
        ray.init(log_to_driver=False, logging_level="ERROR")
        try:
            actors = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
            groups = ray.util.placement_group_table().values()
            held = [group["name"] for group in groups if group["state"] != "REMOVED"]
            files = [path.name for path in (self.root / "runs").iterdir() if path.name != "doc"]
            return [name for name in (*actors, *held, *files) if "doc" in name]
        finally:
            ray.shutdown()


@pytest.fixture
def examine(task_dir: Path, tmp_path: Path) -> Doctor:
    return Doctor(task_dir, tmp_path)


@pytest.mark.slow
def test_a_sound_cluster_passes_every_check_and_keeps_what_was_measured(
    cluster: Any, examine: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine() == 0
    open_here = "sockets"  # tests start Ray without its token
    assert {name for name, status in examine.statuses().items() if status != "ok"} == {open_here}
    assert examine.rows[open_here]["status"] == "warn"
    printed = capsys.readouterr().out
    assert all(name in printed for name in examine.rows)
    assert examine.rows["versions"]["found"].startswith("3 machine(s): python ")
    slot = {"step_s": STEP_S[-1], "startup_s": STARTUP_S, "validation_s": VALIDATION_S}
    assert examine.kept["measured"]["slots"] == [{"slot": 0, **slot}, {"slot": 1, **slot}]
    assert examine.left() == []
    SearchStorage(str(examine.root / "runs"), "doc").check()  # a search may use the directory afterwards


@pytest.mark.slow
def test_without_the_step_measured_seconds_are_kept_from_before(cluster: Any, examine: Doctor) -> None:
    known = {"config": {}, "slots": [{"slot": 0, "step_s": 3.0, "startup_s": 1.0, "validation_s": 2.0}]}
    place = examine.root / "runs" / "doc"
    (place / "journal").mkdir(parents=True)
    (place / "doctor.json").write_text(json.dumps({"format": 1, "measured": known}))
    assert examine(step=False) == 0
    assert examine.rows["step"]["found"] == "skipped: --no-step"
    assert examine.kept["measured"] == known


@pytest.mark.slow
def test_an_engine_that_cannot_start_or_trains_something_else_fails_its_row_alone(
    cluster: Any, examine: Doctor
) -> None:
    assert examine({"cannot_start": "no such driver", "mismatch": [1]}) == 5
    assert examine.rows["step, slot 0"]["found"] == "no such driver"
    assert examine.rows["step, slot 1"]["found"].startswith(
        "mismatch: actor_rollout_ref.actor.optim.lr asked"
    )
    assert examine.statuses()["adapter, slot 1"] == "skipped"
    assert examine.statuses()["slots"] == "ok"
    assert examine.kept["logs"] == {"1": "a trace"}
    assert examine.left() == []


@pytest.mark.slow
def test_an_adapter_that_scores_otherwise_when_loaded_again_is_seen(cluster: Any, examine: Doctor) -> None:
    assert examine({"flips": [1, 20]}) == 5
    for slot, flips, status in ((0, 1, "warn"), (1, 20, "FAIL")):
        row = examine.rows[f"adapter, slot {slot}"]
        assert row["status"] == status
        assert f"{32 - flips} of 32 answers are the same" in row["found"]


@pytest.mark.slow
def test_a_storage_that_other_machines_do_not_see_fails_with_their_names(
    cluster: Any, examine: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A path that every process resolves in its own working directory is a local disk of each machine.
    monkeypatch.chdir(tmp_path)
    assert examine(storage="/proc/self/cwd/runs") == 3
    found = examine.rows["storage"]["found"]
    assert found.count("does not see /proc/self/cwd/runs/.doctor-doc") == 3
    assert examine.rows["step"]["found"] == "skipped: storage failed"


@pytest.mark.slow
def test_a_storage_where_every_machine_sees_only_its_own_files_fails(
    cluster: Any, examine: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("llmzero_ray.cli.doctor.files._PATIENCE_S", 0.2)
    for place in cluster.places:
        (place / "runs" / ".doctor-doc").mkdir(parents=True)
    try:
        assert examine(storage="/proc/self/cwd/runs", step=False) == 3
    finally:
        for place in cluster.places:
            shutil.rmtree(place / "runs")
    found = examine.rows["storage"]["found"]
    assert found.startswith(
        "/proc/self/cwd/runs: this process sees this process's of the files written there, not"
    )
    assert found.count(" sees ") == 4


@pytest.mark.slow
def test_a_task_that_other_machines_do_not_have_fails(
    cluster: Any, examine: Doctor, task_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(task_dir, tmp_path / "task")
    monkeypatch.setattr("llmzero_ray.prepared.task.Path.resolve", Path.absolute)
    monkeypatch.chdir(tmp_path)
    assert examine(task={"dir": "/proc/self/cwd/task"}, step=False) == 3
    assert "does not see /proc/self/cwd/task/train.parquet" in examine.rows["task files"]["found"]


@pytest.mark.slow
def test_slots_that_do_not_fit_fail_and_nothing_is_reserved(cluster: Any, examine: Doctor) -> None:
    assert examine(slots={"count": 5}) == 4
    assert "asked: 5 slot(s)" in examine.rows["resources"]["found"]
    assert examine.rows["step"]["found"] == "skipped: resources failed"


@pytest.mark.slow
def test_a_cluster_that_grows_has_the_slots_before_its_machines_are_looked_at(
    cluster: Any, examine: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an autoscaler does: it marks its machines, sees pending groups, and starts another machine.
    monkeypatch.setenv("RAY_NODE_TYPE_NAME", "workers")
    wide = {"count": 1, "gpus_per_node": 4, "timeout_s": PATIENCE_S}
    made, running = [cluster.add_node(num_cpus=1)], doctor_process(examine.write(slots=wide))
    try:
        ray.init(log_to_driver=False, logging_level="ERROR")
        wait_until(lambda: "PENDING" in _states() or running.poll() is not None)
        made.append(cluster.add_node(num_cpus=12, num_gpus=4))
        ray.shutdown()
        assert running.wait(PATIENCE_S) == 0, running.communicate()[0]
        assert examine.rows["resources"]["found"].startswith("the machines that are up do not hold the slots")
        assert examine.rows["versions"]["found"].startswith("5 machine(s): ")
        assert examine.statuses()["step, slot 0"] == "ok"
        # No further machine comes.
        assert examine(slots={**wide, "count": 2, "timeout_s": 3.0}, step=False) == 4
        assert "2 slot(s) of 1 machine(s) with 4 GPUs" in examine.rows["slots"]["found"]
        assert examine.left() == []
    finally:
        ray.shutdown()
        if running.poll() is None:
            running.kill()
        running.communicate()
        for node in made:
            cluster.remove_node(node)


def _states() -> list[str]:
    return [group["state"] for group in ray.util.placement_group_table().values()]


def doctor_process(path: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own; exit code 130 after an interrupt."""
    code = (
        "import sys\n"
        "from llmzero_ray.cli.doctor.command import doctor\n"
        "try:\n"
        "    sys.exit(doctor(sys.argv[1], settings=[]))\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_without_a_cluster_what_needs_none_is_checked_all_the_same(
    examine: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert examine() == 4
    assert "no cluster answers there" in examine.rows["cluster"]["found"]
    assert examine.statuses()["task"] == "ok"
    assert {row["status"] for row in examine.rows.values()} == {"ok", "FAIL", "skipped"}


def test_a_task_that_is_not_there_fails_as_input(examine: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert examine(task={"dir": str(examine.root / "nowhere")}) == 2
    assert "does not exist" in examine.rows["task"]["found"]


def test_a_storage_that_cannot_be_written_is_a_row_and_nothing_is_kept(
    examine: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    (examine.root / "file").touch()
    assert examine(storage=str(examine.root / "file")) == 3
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(
    cluster: Any, examine: Doctor, task_dir: Path, number: signal.Signals
) -> None:
    holding = [task_dir / f"holding-{slot}" for slot in (0, 1)]
    path = examine.write({"hold_s": 600})
    running = doctor_process(path)

    def holds() -> bool:
        assert running.poll() is None, running.communicate()[0]
        return all(file.exists() for file in holding)

    wait_until(holds)
    running.send_signal(number)
    assert running.wait(PATIENCE_S) == 130
    running.communicate()
    for file in holding:
        file.unlink()
    assert examine.left() == []
    assert not (examine.root / "runs" / "doc" / "doctor.json").exists()


@pytest.mark.slow
@pytest.mark.verl
@pytest.mark.long
def test_real_training_steps_on_one_slot(tmp_path: Path) -> None:
    from llmzero_ray.tasks.prepare import prepare

    prepare(dir=tmp_path / "task", family="echo", n_train=256, n_val=64, n_test=64, seed=1)
    examine = Doctor(tmp_path / "task", tmp_path)
    code = examine(
        model={"path": None, "lora_rank": 8, "lora_alpha": 16},
        root={"overrides": {"lr": 2e-3, "batch": 8, "n": 4, "resp": 8}},
        engine={"backend": "verl", "max_prompt_length": 32},
        eval={"max_response_length": 8},
        slots={"count": 1, "timeout_s": PATIENCE_S},
    )
    assert code == 0, examine.rows
    assert examine.statuses()["adapter, slot 0"] == "ok"
    assert "64 of 64 answers are the same" in examine.rows["adapter, slot 0"]["found"]
    (slot,) = examine.kept["measured"]["slots"]
    assert min(slot["step_s"], slot["startup_s"], slot["validation_s"]) > 0
    assert not (tmp_path / "runs" / ".doctor-doc").exists()
