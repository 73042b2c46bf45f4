"""The command line end to end: real processes, a private head or a shared one, the scripted engine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import yaml

from llmzero_ray.cli.main import main
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import owner
from tests.searches import CHECKOUT, scripted_search
from tests.waiting import PATIENCE_S, until_gone, wait_until


class Command:
    """`python -m jobs.search` in a process of its own, as a user runs it on a fresh machine."""

    def __init__(self, tmp_path: Path, task_dir: Path) -> None:
        self.tmp_path = tmp_path
        self.config = tmp_path / "search.yaml"
        self.storage = SearchStorage(tmp_path / "runs", "demo")
        # No authentication mode, no token, a home of its own: what a new machine has.
        kept = ("RAY_TMPDIR", "RAY_prestart_worker_first_driver")
        ours = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") or k in kept}
        self.env = ours | {"HOME": str(tmp_path)}
        self.processes: list[subprocess.Popen[str]] = []
        self.released = tmp_path / "released"
        """What phases that the script holds wait for."""
        self.write(task_dir)

    def write(self, task_dir: Path, script: dict[str, Any] | None = None, **blocks: Any) -> None:
        content = scripted_search(
            self.tmp_path,
            task_dir,
            {"step_s": 0.1, "hold_until": str(self.released), **(script or {})},
            phase={"n_steps": 20, "max_steps": 20},
            **{"final": {"default_recipe": False}, **blocks},
        )
        self.config.write_text(yaml.safe_dump(content))

    def start(self, *arguments: str, through: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*through, sys.executable, "-m", *(arguments or ("jobs.search", str(self.config)))],
            cwd=CHECKOUT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if through else None,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output

    def until_step(self, node: int, step: int) -> None:
        """Until that step is on the disk."""
        follower = Follower(self.storage)

        def reached() -> bool:
            follower.poll()
            point = follower.newest(node)[0] if node in follower.core.runs else None
            if point is not None and point.step >= step:
                return True
            newest = self.processes[-1]
            assert newest.poll() is None, newest.communicate()[0]
            return False

        wait_until(reached, lambda: f"step {step} of node {node} was not reached; {follower.core.stage}")

    def until_repeated(self, node: int) -> None:
        """Until a runner has the node's second attempt."""
        follower = Follower(self.storage)

        def begun() -> bool:
            follower.poll()
            run = follower.core.runs.get(node)
            return run is not None and run.attempt == 1 and run.started

        wait_until(begun, lambda: f"node {node} was not repeated; {follower.core.stage}")

    def leftovers(self) -> list[str]:
        """Processes that were started by our commands and are still there: they carry our HOME."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == str(self.tmp_path) and process.pid not in self._own():
                    found.append(" ".join(process.cmdline())[:200])
            except psutil.Error:
                continue
        return found

    def _own(self) -> set[int]:
        return {process.pid for process in self.processes if process.poll() is None}


@pytest.fixture
def command(tmp_path: Path, task_dir: Path) -> Iterator[Command]:
    made = Command(tmp_path, task_dir)
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until_printed(process: subprocess.Popen[str], text: str) -> str:
    """Its output up to the line with `text`."""
    assert process.stdout is not None
    output = ""
    while text not in output:
        line = process.stdout.readline()
        assert line, output  # it ended without saying so
        output += line
    return output


@pytest.mark.slow
def test_a_search_on_a_fresh_machine_can_be_watched_attached_to_and_looked_at_afterwards(
    command: Command, task_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.write(task_dir, script={"hold": [0]})
    first = command.start()
    command.until_step(0, 3)
    code, printed = command.run("jobs.status", str(command.storage.paths.root))
    assert code == 0
    assert "searching" in printed
    assert "is working on it" in printed
    second = command.start()
    before = until_printed(second, "following")
    command.released.touch()
    output, _ = second.communicate(timeout=PATIENCE_S)
    output = before + output
    printed, _ = first.communicate(timeout=PATIENCE_S)
    assert (first.returncode, second.returncode) == (0, 0), printed + output
    for text in (printed, output):
        assert "search demo has ended (budget) after 2 runs" in text
        assert "test  best strategy" in text
    assert "is working on it; following" in output
    assert "Traceback" not in printed
    until_gone(command.leftovers)
    code, printed = command.run()
    assert (code, "has ended (budget)" in printed) == (0, True)
    assert main(["status", "demo", "--storage", str(command.tmp_path / "runs"), "--offline", "--log"]) == 0
    assert "node=0 decided: root in slot 0" in capsys.readouterr().out
    assert main(["explain", str(command.storage.paths.root)]) == 0


@pytest.mark.slow
def test_ctrl_c_without_a_terminal_pauses_and_the_same_command_goes_on(
    command: Command, task_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.write(task_dir, script={"hold": [0]})
    process = command.start()
    command.until_step(0, 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "paused (Ctrl-C); the same command continues it" in output
    assert "Traceback" not in output
    until_gone(command.leftovers)
    assert main(["status", str(command.config)]) == 0
    assert "it is not running" in capsys.readouterr().out
    code, output = command.run()
    assert code == 0, output
    assert "node=0 training in slot 0 (attempt 1)" in output
    assert Follower.of(command.storage).core.runs[0].losses == 0


@pytest.mark.slow
@pytest.mark.long
def test_a_terminated_command_pauses_its_search(command: Command, task_dir: Path) -> None:
    command.write(task_dir, script={"hold": [0]})
    process = command.start()
    command.until_step(0, 3)
    process.terminate()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "paused (SIGTERM)" in output
    until_gone(command.leftovers)
    code, output = command.run()
    assert code == 0, output
    assert Follower.of(command.storage).core.runs[0].losses == 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("head", ["group", "gcs"])
def test_a_background_command_whose_head_dies_with_it_still_says_what_became_of_the_search(
    command: Command, task_dir: Path, head: str
) -> None:
    command.write(task_dir, script={"hold": [0]})
    # As a script leaves it: SIGINT and SIGHUP are ignored from the beginning.
    process = command.start("jobs.search", str(command.config), through=("nohup",))
    command.until_step(0, 3)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    if head == "group":
        os.killpg(process.pid, signal.SIGTERM)
    else:
        for child in psutil.Process(process.pid).children(recursive=True):
            if "gcs_server" in " ".join(child.cmdline()):
                child.kill()
        process.terminate()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "paused (SIGTERM); the same command continues it" in output
    assert "Failed to connect to GCS" not in output  # Ray's last words, after a minute
    until_gone(command.leftovers)


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_search_paused_while_it_is_measured_goes_on_is_stopped_and_measured_by_resume(
    command: Command, task_dir: Path, number: signal.Signals
) -> None:
    script = {"hold": [REFERENCE], "hold_attempts": [0, 1]}
    command.write(task_dir, script=script, final={"test": True, "default_recipe": True})
    process = command.start()
    command.until_step(REFERENCE, 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert re.search(r"^paused \((SIGTERM|Ctrl-C)\); the same command continues it$", output, flags=re.M)
    assert "Failed to connect to GCS" not in output
    until_gone(command.leftovers)
    process = command.start()
    command.until_repeated(REFERENCE)
    root = str(command.storage.paths.root)
    code, output = command.run("jobs.stop", root)
    assert code == 0, output
    process.communicate(timeout=PATIENCE_S)
    until_gone(command.leftovers)
    assert "`llmzero resume demo` measures what is missing" in command.storage.paths.report.read_text()
    command.released.touch()
    code, output = command.run("llmzero_ray.cli", "resume", root)
    assert code == 0, output
    assert "search demo has ended (budget)" in output
    core = Follower.of(command.storage).core
    assert core.finished is not None
    assert core.finished.reason == "budget"
    assert {what: job.score is not None for what, job in core.final.jobs.items()} == {
        "base": True,
        "best": True,
        "reference": True,
    }
    code, output = command.run("llmzero_ray.cli", "resume", root)  # which shows the outcome
    assert code == 0, output
    assert Follower.of(command.storage).core.n_extensions == 1


@pytest.mark.slow
def test_a_command_that_is_terminated_while_it_starts_says_so(command: Command) -> None:
    process = command.start()
    before = until_printed(process, "starting Ray")
    process.terminate()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, before + output
    assert "demo: ended by a signal before it began; the same command starts it" in output
    assert "Traceback" not in output
    until_gone(command.leftovers)


@pytest.mark.slow
def test_stop_from_another_terminal_ends_the_search_with_its_outcome(
    command: Command, task_dir: Path
) -> None:
    command.write(task_dir, script={"hold": [0]})
    process = command.start()
    command.until_step(0, 3)
    code, text = command.run("jobs.stop", str(command.storage.paths.root), "--reason", "enough")
    assert code == 0
    assert "has ended (user)" in text
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert "stopped by a person: enough" in output
    until_gone(command.leftovers)
    assert command.storage.paths.report.is_file()


@pytest.mark.slow
def test_a_killed_command_takes_its_head_along_and_stop_ends_what_it_left(
    command: Command, task_dir: Path
) -> None:
    # Neither phase ends while its head dies; the second one is past its first validation.
    command.write(task_dir, script={"hang": [0], "hold": [1], "hold_at": 6})
    for node, step in ((0, 3), (1, 6)):
        process = command.start()
        command.until_step(node, step)
        process.kill()
        process.wait()
        until_gone(command.leftovers)
        wait_until(lambda: owner(command.storage.paths.root) is None)  # it may hold its lock while it exits
    code, output = command.run("jobs.stop", str(command.config))
    assert code == 0, output
    assert "has ended (user)" in output
    runs = Follower.of(command.storage).core.runs
    assert (runs[0].attempt, [run.status for run in runs.values()]) == (1, ["completed"] * 2)
    assert runs[1].outcome is not None
    assert runs[1].outcome.best_step == 5


@pytest.mark.slow
def test_what_keeps_a_search_from_starting_is_said(command: Command, task_dir: Path) -> None:
    command.write(task_dir, slots={"nodes": 2})
    code, output = command.run()
    assert code == 4
    assert "asked: 1 slot(s) of 2 machine(s) with 1 GPUs and 3 CPUs each" in output
    assert "Traceback" not in output
    until_gone(command.leftovers)


@pytest.fixture
def cluster(command: Command, head: str) -> Iterator[None]:
    """A cluster that outlives the commands; they get its address, and leave nothing there."""
    command.env |= {"RAY_ADDRESS": head, "RAY_AUTH_MODE": "disabled"}
    yield
    until_gone(lambda: [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)])


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def tokens(runtime_dir: Path) -> list[Path]:
    return list(runtime_dir.glob("llmzero/ui-*"))


@pytest.mark.slow
def test_ctrl_c_detaches_from_a_shared_cluster_and_its_page_and_a_second_one_stops_the_search(
    command: Command,
    cluster: None,
    task_dir: Path,
    short_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.env["XDG_RUNTIME_DIR"] = str(short_dir)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    released = str(command.tmp_path / "released-{node}")
    # Node 1 waits past its first validation.
    command.write(task_dir, script={"hold": [0, 1], "hold_at": 6, "hold_until": released})
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["search", str(command.config), "--ui", "--port", port]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), f"cannot listen on 127.0.0.1, port {port}" in said) == (1, True)
    assert not command.storage.paths.root.exists()
    process = command.start("jobs.search", str(command.config), "--ui", "--port", "0")
    address = until_printed(process, "its page is ").split()[-1]
    assert len(tokens(short_dir)) == 1
    command.until_step(0, 6)
    cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with cookies.open(address) as answer:
        page = answer.read().decode()
    data = json.loads(page.partition('id="view">')[2].partition("</script>")[0])
    assert [one["node"] for one in data["nodes"]] == [0]

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert "detached: demo continues" in output
    assert owner(command.storage.paths.root) is not None
    until_gone(lambda: tokens(short_dir))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)
    Path(released.format(node=0)).touch()

    process = command.start()
    command.until_step(1, 6)
    process.send_signal(signal.SIGINT)
    until_printed(process, "detached")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert "has ended (user)" in output
    until_gone(command.leftovers)
    core = Follower.of(command.storage).core
    assert [run.attempt for run in core.runs.values()] == [0, 0]
