"""A task appears whole or not at all, once, and is never mistaken for another."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import StorageError, TaskError
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.prepared.directory import progress_lines
from llmzero_ray.tasks.prepare import prepare
from tests.tasks.builders import write_task
from tests.waiting import PATIENCE_S

SMALL: dict[str, Any] = {"family": "register", "n_train": 8, "n_val": 4, "n_test": 4, "make_model": False}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small task without a model; read only."""
    directory = tmp_path_factory.mktemp("made") / "task"
    prepare(dir=directory, **SMALL)
    return directory


def never(doing: str, share: float) -> None:
    pytest.fail(f"nothing was to be made, but: {doing} ({share})")


def refusal(**arguments: Any) -> str:
    with pytest.raises(TaskError) as caught:
        prepare(**arguments)
    return str(caught.value)


def left_beside(target: Path) -> list[str]:
    return sorted(entry.name for entry in target.parent.iterdir() if entry.name != f".{target.name}.lock")


def test_a_prepared_task_holds_what_was_asked_for(made: Path) -> None:
    task = load_task(made)
    assert (task.name, task.family, task.data_sources) == ("register", "register", ("register",))
    assert (task.n_train, task.n_val, task.n_test) == (8, 4, 4)
    assert (task.model_path, task.greedy_val_accuracy, task.max_prompt_tokens) == (None, None, None)
    assert task.reward_module == "llmzero_ray.tasks.rewards.marked_answer"
    assert task.majority_baseline is not None
    assert 0.25 <= task.majority_baseline <= 1


def test_the_same_settings_give_the_same_files(made: Path, tmp_path: Path) -> None:
    prepare(dir=tmp_path / "again", **SMALL)
    for name in ("manifest.json", "train.parquet", "val.parquet", "test.parquet"):
        assert (tmp_path / "again" / name).read_bytes() == (made / name).read_bytes()


def test_a_second_call_finds_the_task_and_makes_nothing(made: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert prepare(dir=made, progress=never, **SMALL) == load_task(made)
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before


def test_without_a_family_a_task_is_only_opened(made: Path, tmp_path: Path) -> None:
    assert prepare(dir=made, family=None, progress=never) == load_task(made)
    assert "does not exist" in refusal(dir=tmp_path / "no", family=None)


def test_a_task_made_by_hand_is_opened_as_it_is(tmp_path: Path) -> None:
    task = prepare(dir=write_task(tmp_path / "mine"), progress=never, **SMALL)
    assert (task.name, task.n_train) == ("mine", 3)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"n_train": 9}, "n_train is 8 there, 9 wanted."),
        ({"seed": 3, "n_val": 5}, "n_val is 4 there, 5 wanted; seed is 0 there, 3 wanted."),
        (
            {"family": "echo"},
            "family is 'register' there, 'echo' wanted; family_version is 2 there, 1 wanted.",
        ),
        ({"make_model": True}, "it has no tiny model, one is wanted."),
    ],
)
def test_a_directory_made_with_other_settings_is_refused_with_the_differences(
    made: Path, change: dict[str, Any], difference: str
) -> None:
    message = refusal(dir=made, **{**SMALL, **change})
    assert f"task directory {made} holds a task made with other settings: {difference}" in message
    assert "Choose another task.dir, or delete that directory" in message


def test_files_that_prepare_did_not_make_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds notes.txt, but no manifest.json: not made by prepare" in refusal(dir=tmp_path, **SMALL)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    assert prepare(dir=tmp_path / "task", **SMALL).n_train == 8


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task").write_text("")
    assert "is a file" in refusal(dir=tmp_path / "task", **SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_val": 0}, "task: n_val is 0; it must lie between 1 and 1000000"),
        ({"n_train": 1_000_001}, "task: n_train is 1000001"),
        ({"seed": -1}, "task: seed is -1; it must lie between 0 and 1000000"),
    ],
)
def test_arguments_out_of_bounds_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refusal(dir=tmp_path / "task", **{**SMALL, **change})
    assert list(tmp_path.iterdir()) == []


def test_storage_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StorageError, match=r"task directory .*/file/task cannot be written: .*set task.dir to"
    ):
        prepare(dir=tmp_path / "file" / "task", **SMALL)


@pytest.mark.slow
def test_a_full_disk_is_reported_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # No file may grow beyond 3 kB in that process: what a full disk looks like to the one who writes.
    code = (
        "import resource, sys; from llmzero_ray.errors import StorageError\n"
        "from llmzero_ray.tasks.prepare import prepare\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "try: prepare(dir=sys.argv[1], family='register', n_train=2000, make_model=False)\n"
        "except StorageError as error: print(error)"
    )
    done = run_python(code, tmp_path / "task")
    assert "cannot be written: " in done.stdout
    assert "File too large; nothing was kept there. Free space, or set task.dir to" in done.stdout
    assert left_beside(tmp_path / "task") == []


def run_python(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stage", ["making problems", "done"])
def test_an_interruption_leaves_nothing_that_could_be_taken_for_a_task(tmp_path: Path, stage: str) -> None:
    def interrupt(doing: str, share: float) -> None:
        if doing == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(dir=tmp_path / "task", progress=interrupt, **SMALL)
    assert left_beside(tmp_path / "task") == []
    assert prepare(dir=tmp_path / "task", **SMALL).n_train == 8


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, sys; from llmzero_ray.tasks.prepare import prepare\n"
        "def die(doing, share):\n    if doing == 'done': os.kill(os.getpid(), 9)\n"
        "prepare(dir=sys.argv[1], family='register', n_train=8, n_val=4, n_test=4, make_model=False, "
        "progress=die)"
    )
    target = tmp_path / "task"
    assert run_python(code, target).returncode == -9
    [left] = left_beside(target)
    assert left.startswith(".task.part-")
    prepare(dir=target, **SMALL)
    assert left_beside(target) == ["task"]


def test_while_another_process_makes_the_task_a_call_waits_and_then_uses_it(
    made: Path, tmp_path: Path
) -> None:
    target, received = tmp_path / "task", []
    lock = os.open(tmp_path / ".task.lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def the_other_process_ends(doing: str, share: float) -> None:
        received.append(doing)
        shutil.copytree(made, target)
        os.close(lock)

    assert prepare(dir=target, progress=the_other_process_ends, **SMALL).n_train == 8
    assert received == ["waiting for another process that makes the same task"]


def test_where_locks_do_not_help_the_first_to_be_ready_wins(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "task"

    def another_is_faster(doing: str, share: float) -> None:
        if doing == "done":
            shutil.copytree(made, target)
            (target / "first").touch()

    assert prepare(dir=target, progress=another_is_faster, **SMALL).n_train == 8
    assert (target / "first").exists()
    assert left_beside(target) == ["task"]


@pytest.mark.slow
def test_two_processes_at_once_make_one_task(tmp_path: Path) -> None:
    code = (
        "import sys; from llmzero_ray.tasks.prepare import prepare\n"
        "prepare(dir=sys.argv[1], family='register', n_train=8, n_val=4, n_test=4, make_model=False,\n"
        "        progress=lambda doing, share: print(doing))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "task")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("done" in text for text in output) == 1
    assert left_beside(tmp_path / "task") == ["task"]


# --- with a model -------------------------------------------------------------------------------------------


def test_a_task_with_a_model_also_serves_who_asks_for_none(echo_task: PreparedTask) -> None:
    asked: dict[str, Any] = {"family": "echo", "n_train": 64, "n_val": 64, "n_test": 32, "progress": never}
    assert prepare(dir=echo_task.directory, make_model=False, **asked) == echo_task
    assert prepare(dir=echo_task.directory, make_model=True, **asked) == echo_task


def test_a_task_with_a_model_tells_its_lengths_and_its_accuracy(echo_task: PreparedTask) -> None:
    assert echo_task.model_path == str(Path(echo_task.directory) / "model")
    # start mark, "u:", "say 7 qzt", end mark, start mark, "a:" | "#", "7", end mark
    assert (echo_task.max_prompt_tokens, echo_task.max_answer_tokens) == (16, 3)
    assert echo_task.greedy_val_accuracy is not None
    assert 0.2 <= echo_task.greedy_val_accuracy <= 0.6


def test_progress_runs_from_nothing_to_the_whole(
    echo_task: PreparedTask, echo_reports: list[tuple[str, float]]
) -> None:
    shares = [share for _, share in echo_reports]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert [
        doing for doing, _ in echo_reports if doing.startswith("warm start: step 100 of 100, loss ")
    ] != []


def test_a_failed_warm_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "path" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no torch on this machine')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    message = refusal(dir=tmp_path / "task", **{**SMALL, "make_model": True})
    expected = (
        "needs torch, transformers and accelerate, which cannot be imported here (no torch on this machine)"
    )
    assert expected in message
    assert left_beside(tmp_path / "task") == ["path"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("family", ["chain_sum", "register"])
def test_the_model_of_a_real_task_starts_with_room_to_improve(tmp_path: Path, family: str) -> None:
    task = prepare(dir=tmp_path / "task", family=family)
    assert task.greedy_val_accuracy is not None
    assert 0.2 <= task.greedy_val_accuracy <= 0.6


@pytest.mark.slow
def test_two_warm_starts_on_one_machine_give_the_same_weights(
    echo_task: PreparedTask, tmp_path: Path
) -> None:
    again = prepare(dir=tmp_path / "echo", family="echo", n_train=64, n_val=64, n_test=32)
    digests = [
        sha256((Path(task.directory) / "model" / "model.safetensors").read_bytes()).hexdigest()
        for task in (echo_task, again)
    ]
    assert digests[0] == digests[1]
    assert again.greedy_val_accuracy == echo_task.greedy_val_accuracy


def test_long_work_is_said_when_a_part_begins_and_again_while_it_goes_on() -> None:
    said: queue.Queue[str] = queue.Queue()
    with progress_lines(said.put, every_s=0.01) as progress:
        progress("warm start: step 1 of 9", 0.1)
        progress("warm start: step 2 of 9", 0.2)
        line = "preparing the task: warm start: step {} of 9 ({}%)"
        assert said.get(timeout=PATIENCE_S) == line.format(1, 10)
        while (again := said.get(timeout=PATIENCE_S)) != line.format(2, 20):
            assert again == line.format(1, 10)
        assert said.get(timeout=PATIENCE_S) == line.format(2, 20)
    assert "progress-lines" not in {thread.name for thread in threading.enumerate()}
