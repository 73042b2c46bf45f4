"""Keys and sockets lie where only their user gets, and go away with their owner."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from actors import runner_pool
from llmzero_ray import estimate
from llmzero_ray.errors import StorageError
from llmzero_ray.methods.compare import lanes
from llmzero_ray.methods.compare.plan import ComparedRun
from llmzero_ray.prepared.families import WarmStart
from llmzero_ray.prepared.sandbox import Sandbox
from llmzero_ray.tasks import model_process
from llmzero_ray.tasks.rewards import math_client
from llmzero_ray.utils import api_key
from llmzero_ray.utils.private_files import MAX_SOCKET_PATH, private_directory, private_file
from tests.builders import make_config
from tests.marks import needs_sandbox


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(os.path.realpath("/tmp")) / f"lz-test-{os.getpid()}"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path / "llmzero"
    subprocess.run(["rm", "-rf", str(path)], check=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_entries_are_the_users_alone(runtime_dir: Path) -> None:
    file, directory = private_file("key", "secret"), private_directory("queue")
    assert mode(runtime_dir) == mode(directory.path) == 0o700
    assert (mode(file.path), file.path.read_text()) == (0o600, "secret")
    file.remove()
    directory.remove()
    assert list(runtime_dir.iterdir()) == []


def test_a_path_for_sockets_leaves_room_for_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 41)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    entry = private_directory("queue")
    assert entry.path.parent == Path(f"/tmp/llmzero-{os.getuid()}")
    assert len(os.fsencode(entry.path)) + len(f"/{uuid.uuid4()}") <= MAX_SOCKET_PATH
    entry.remove()


def test_what_a_killed_process_left_is_removed_by_the_next_one(runtime_dir: Path) -> None:
    mine = private_directory("queue")
    code = (
        "import os; from llmzero_ray.utils.private_files import private_directory\n"
        "private_directory('queue'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(runtime_dir.iterdir())) == 2
    other = private_directory("queue")
    assert sorted(runtime_dir.iterdir()) == sorted([mine.path, other.path])
    mine.remove()
    other.remove()


def test_a_runtime_directory_that_others_may_enter_is_refused(runtime_dir: Path) -> None:
    runtime_dir.mkdir(mode=0o755)
    with pytest.raises(StorageError, match="mode 0700"):
        private_file("key", "secret")
    runtime_dir.chmod(0o700)
    private_file("key", "secret").remove()


def test_a_directory_that_is_a_link_is_refused(runtime_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="belongs to user"):
        private_file("key", "secret")


def test_a_key_is_never_written_below_the_storage(runtime_dir: Path) -> None:
    entry = private_file("key", "secret", outside=runtime_dir.parent)
    assert runtime_dir.parent not in entry.path.parents
    entry.remove()


# --- the key ------------------------------------------------------------------------------------------------


@pytest.fixture
def key_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE", raising=False)


@pytest.mark.usefixtures("key_in_environment")
def test_a_key_is_handed_over_by_file_on_a_private_head_alone(runtime_dir: Path, tmp_path: Path) -> None:
    path = api_key.key_file(str(tmp_path), private_head=True)
    assert path is not None and Path(path).read_text() == "sk-ant-secret\n"
    api_key.remove_key_file()
    assert not Path(path).exists()
    assert api_key.key_file(str(tmp_path), private_head=False) is None


def test_the_path_of_a_key_file_travels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", "key.txt")
    monkeypatch.chdir(tmp_path)
    for private_head in (True, False):
        assert api_key.key_file("runs", private_head=private_head) == str(tmp_path / "key.txt")


@pytest.mark.usefixtures("key_in_environment")
def test_a_process_with_a_key_of_its_own_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    api_key.use_key_file("/elsewhere")
    assert "ANTHROPIC_API_KEY_FILE" not in os.environ
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with api_key.key_file_in_use("/elsewhere"):
        assert os.environ["ANTHROPIC_API_KEY_FILE"] == "/elsewhere"
    assert "ANTHROPIC_API_KEY_FILE" not in os.environ


@pytest.mark.usefixtures("key_in_environment")
def test_children_started_meanwhile_do_not_inherit_the_key() -> None:
    with api_key.key_hidden():
        done = subprocess.run(["env"], capture_output=True, text=True, check=True)
    assert "ANTHROPIC_API_KEY" not in done.stdout
    assert os.environ["ANTHROPIC_API_KEY"] == "sk-ant-secret"


@needs_sandbox
@pytest.mark.usefixtures("key_in_environment", "runtime_dir")
def test_confined_rewards_read_no_key(tmp_path: Path) -> None:
    path = api_key.key_file(str(tmp_path), private_head=True)
    (tmp_path / "reward.py").write_text(
        "import os, pathlib\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):\n"
        f"    there = os.path.exists({path!r}) or os.path.exists({str(Path(str(path)).parent)!r})\n"
        "    return dict(score=0, acc=0, pred=f\"{there} {os.environ.get('ANTHROPIC_API_KEY')}\")\n"
    )
    row = {"data_source": "d", "solution_str": "x", "ground_truth": "x", "extra_info": {}}
    with Sandbox(tmp_path / "reward.py") as sandbox:
        (outcome,) = sandbox.score([row])
    assert Path(str(path)).exists()
    api_key.remove_key_file()
    assert "False None" in repr(outcome), outcome


def test_what_is_no_directory_in_the_runtime_directorys_place_is_refused(runtime_dir: Path) -> None:
    """Another user may have made it, in /tmp."""
    fifo, link = (lambda: os.mkfifo(runtime_dir)), (lambda: runtime_dir.symlink_to("/nowhere"))
    for make in (runtime_dir.touch, link, fifo):
        make()
        with pytest.raises(StorageError, match="is not a directory that belongs to user"):
            private_file("key", "secret")
        runtime_dir.unlink()


class StartedError(Exception):
    """A process would have been started."""


@pytest.mark.usefixtures("runtime_dir")
@pytest.mark.parametrize("helper", ["tiny model", "math", "compare", "graphics cards"])
def test_no_process_that_calls_no_model_is_given_the_key(
    helper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_CUSTOM_HEADERS",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "RAY_AUTH_TOKEN",
    ):
        monkeypatch.setenv(name, f"sk-ant-secret-{name}")
    started: list[dict[str, str]] = []

    def start(*_: object, env: dict[str, str] | None = None, **__: object) -> None:
        started.append(dict(os.environ) if env is None else env)
        raise StartedError

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        with pytest.raises(StartedError):
            HELPERS[helper](tmp_path)
    [given] = started
    assert given["PATH"] == os.environ["PATH"]
    if helper == "compare":  # a search, which calls the model itself: it is given a file
        assert mode(Path(given["ANTHROPIC_API_KEY_FILE"])) == 0o600
        assert "ANTHROPIC_API_KEY" not in given
        api_key.remove_key_file()
    else:
        assert "sk-ant-secret" not in repr(given)


def make_a_tiny_model(directory: Path) -> None:
    request = model_process.ModelRequest(
        directory=str(directory),
        seed=1,
        warm_start=WarmStart(n_demonstrations=1, n_steps=1, batch_size=1, lr=0.1, warmup_steps=0),
        demonstrations=(),
        problems=(),
        prompts=(),
    )
    model_process.make_model_in_process(request, lambda step, loss: None)


def run_a_comparison(directory: Path) -> None:
    head = SimpleNamespace(
        disconnecting=contextlib.nullcontext,
        join_if_there=lambda: False,
        start_private_head=lambda *_, **__: None,
        environment=lambda: {**os.environ, "RAY_ADDRESS": "there"},
    )
    actors = SimpleNamespace(head=head, runner_pool=runner_pool)
    config = make_config(storage=str(directory))
    runs = {ComparedRun("t", "m", 1): config}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "actors", actors)
        patch.setattr(runner_pool, "RunnerPool", lambda *_, **__: AsyncMock())
        with lanes.cluster(config, 1, "demo") as held:
            lanes.run_all(runs, directory, lanes=held, ended=lambda *_: None, say=print)


HELPERS: dict[str, Callable[[Path], object]] = {
    "tiny model": make_a_tiny_model,
    "math": lambda _: math_client.compare("1", "1"),
    "compare": run_a_comparison,
    "graphics cards": lambda _: estimate.card_gib(),
}


LEAVES_LATE = """
import sys, threading
from llmzero_ray.utils.api_key import key_file
from llmzero_ray.cli import interrupts

interrupts._LEAVE_S = 0.1
print(key_file(sys.argv[1], private_head=True))
interrupts.leave_in_time(threading.Event().wait, 7)
"""


def test_a_command_that_cannot_leave_a_dead_head_takes_the_key_along(tmp_path: Path) -> None:
    env = {**os.environ, "ANTHROPIC_API_KEY": "sk-ant-" + "x" * 40}
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_LATE, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("/") and not Path(done.stdout.strip()).exists()
