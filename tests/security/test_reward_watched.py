"""A reward in the sandbox cannot tell a trial from training by anything but the number of its calls, the rows
and the clock: all that it can look at is the same."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from llmzero_ray.engines.verl import confined_reward
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward import sandbox_of
from llmzero_ray.prepared.reward_validation.calls import call_arguments
from llmzero_ray.utils.files import file_digest
from tests.marks import needs_sandbox

SPY = '''
import array, ctypes, fcntl, gc, inspect, os, resource, signal, stat, sys, termios, threading

libc = ctypes.CDLL(None, use_errno=True)

def waiting():
    """Bytes in each pipe."""
    found = {}
    for fd in range(64):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                held = array.array("i", [0])
                fcntl.ioctl(fd, termios.FIONREAD, held)
                found[fd] = held[0]
        except OSError:
            pass
    return found

def frames():
    """What the frames above hold; an address is not a difference."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            plain = {k: repr(v) for k, v in frame.f_locals.items() if isinstance(v, (int, str, bytes, dict))}
            kinds = {k: type(v).__name__ for k, v in frame.f_locals.items()}
            hidden = ("message", "row", "returned", "found")  # the row itself
            found.append([frame.f_code.co_name, {k: v for k, v in plain.items() if k not in hidden}, kinds])
        frame = frame.f_back
    return found

def buffered():
    """What a reader of the rows has read ahead."""
    rows = next(f for f in gc.get_objects() if type(f).__name__ == "BufferedReader" and not f.closed)
    flags = fcntl.fcntl(rows.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(rows.fileno(), fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        return len(rows.peek())
    finally:
        fcntl.fcntl(rows.fileno(), fcntl.F_SETFL, flags)

def walls():
    held = {name: repr(resource.getrlimit(getattr(resource, name))) for name in dir(resource)
            if name.startswith("RLIMIT_") and name != "RLIMIT_CPU"}
    mask = os.umask(0o777)
    os.umask(mask)
    try:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
    except OSError:
        nice = None
    ignored = sorted(int(s) for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN)
    about = os.stat(__file__)
    return dict(
        limits=held, umask=mask, nice=nice, mask=repr(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        ignored=ignored, environment=dict(os.environ), argv=sys.orig_argv, flags=repr(sys.flags),
        cwd=os.getcwd(), path=sys.path, scratch=os.listdir("/tmp"),
        beside=os.listdir(os.path.dirname(__file__)),
        file=[__file__, about.st_mode, about.st_size, about.st_nlink, about.st_ctime - about.st_mtime < 60],
        host=os.uname().nodename, pids=[os.getpid(), os.getppid()], threads=threading.active_count(),
        fds=[fd for fd in range(64) if os.path.exists(f"/dev/fd/{fd}") or not libc.fcntl(fd, 1) == -1],
    )

at_import = dict(walls=walls(), frames=frames(), waiting=waiting())

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    seen = dict(
        arguments=[list(extra_info), [type(v).__name__ for v in extra_info.values()], sorted(others)],
        frames=frames(), waiting=waiting(), buffered=buffered(), walls=walls(), at_import=at_import,
    )
    parts = {f"{k}.{j}" if isinstance(v, dict) else k: repr(w)
             for k, v in seen.items() for j, w in (v.items() if isinstance(v, dict) else [(0, v)])}
    return dict(score=0, acc=0, **parts)
'''

TRAINING = """
import sys
from tests.security import test_reward_watched
test_reward_watched.seen_in_training(*sys.argv[1:])
"""
N = 40


def rows() -> list[dict[str, Any]]:
    extra = {"index": 0, "split": "train"}
    return [
        {"data_source": "d", "reward_model": {"ground_truth": "7"}, "extra_info": {**extra, "index": number}}
        for number in range(N)
    ]


def seen_when_tried(path: Path) -> list[dict[str, Any]]:
    with sandbox_of(RewardEntry(path=path.name, name="compute_score"), path.parent, measure=True) as sandbox:
        outcomes = sandbox.score(
            [call_arguments(row, f"answer {number}") for number, row in enumerate(rows())]
        )
    assert not any(outcome.problem for outcome in outcomes), outcomes[0].problem
    return [outcome.result for outcome in outcomes]


def seen_in_training(path: str, sha256: str) -> None:
    """Print what the reward saw, all rows being asked for at once, with VeRL's additions to them."""
    confined = {
        "path": path,
        "name": "compute_score",
        "module": None,
        "sha256": sha256,
        "keys": json.dumps(["index", "split"]),
        "allow_unsandboxed": False,
    }

    async def all_at_once() -> list[dict[str, Any]]:
        calls = [{**call_arguments(row, f"answer {number}")} for number, row in enumerate(rows())]
        for call in calls:
            call["extra_info"] |= {"num_turns": 2, "rollout_reward_scores": {}}
        return await asyncio.gather(
            *(
                confined_reward.compute_score(confined=confined, **call, reward_router_address=None)
                for call in calls
            )
        )

    print(json.dumps(asyncio.run(all_at_once())))


def another_start() -> None:
    """How a worker may be started, unlike the command."""
    os.umask(0o002)
    os.nice(3)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for kind in (resource.RLIMIT_STACK, resource.RLIMIT_MEMLOCK, resource.RLIMIT_SIGPENDING):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (2**16 * 1024 if hard < 0 else hard // 2 or 0, hard))


@needs_sandbox
def test_all_that_a_reward_can_look_at_is_the_same_in_a_trial_and_in_training(tmp_path: Path) -> None:
    validated, copied = tmp_path / "made" / "reward.py", tmp_path / "used" / "reward.py"
    for path in (validated, copied):
        path.parent.mkdir()
        path.write_text(SPY)
    copied.chmod(0o600)
    os.utime(copied, (1, 1))
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(copied), file_digest(copied)],
        env={**os.environ, "RAY_ADDRESS": "x", "OMP_NUM_THREADS": "7"},
        preexec_fn=another_start,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    in_training, tried = json.loads(done.stdout.splitlines()[-1]), seen_when_tried(validated)
    assert len(in_training) == len(tried) == N
    differing = {
        name: (tried[number][name], in_training[number][name])
        for number in range(N)
        for name in tried[number]
        if tried[number][name] != in_training[number].get(name)
    }
    assert not differing, sorted(differing)
    assert "walls.limits" in tried[0] and "frames" in tried[0] and "at_import.frames" in tried[0]
