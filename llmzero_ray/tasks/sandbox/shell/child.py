"""Process that runs one script inside the sandbox: its description in, the recorder's records out, as JSON.

Run as a file; imports nothing of this project. Not here: the walls around it (../isolation.py), what stands
in for programs (recorder.sh), who asks (__init__.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_RECORDS, _PROGRAMS = Path("/tmp/records"), Path("/tmp/bin")
_SOURCED = """. "$LLMZERO_RECORDER"
__llmzero_text=$0; [[ $0 == */* ]] || __llmzero_text=./$0
. "$__llmzero_text"
"""
"""A script as bash runs it, with its own `$0`, after the recorder."""
_MOST = 2_000
"""Records that are read."""


def main() -> int:
    """Run the script once; 0 however it ends."""
    asked = json.loads(sys.stdin.buffer.readline())
    if (uid := asked["uid"]) is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0)
    recorder = Path(__file__).with_name("recorder.sh").read_text(encoding="utf-8")
    Path("/tmp/recorder.sh").write_text(recorder, encoding="utf-8")
    for place, text in asked["files"].items():
        _write(Path(place), text)
    for folder in (_RECORDS, _PROGRAMS, Path(asked["cwd"])):
        folder.mkdir(parents=True, exist_ok=True)
    for name in asked["programs"]:
        _write(_PROGRAMS / name, f'#!{asked["bash"]}\n. "$LLMZERO_RECORDER"\n__llmzero_run {name} "$@"\n')
    environment = {
        **asked["environment"],
        "PATH": f"{_PROGRAMS}:/usr/bin:/bin",
        "LLMZERO_BASH": asked["bash"],
        "LLMZERO_RECORDER": "/tmp/recorder.sh",
        "LLMZERO_RECORDS": str(_RECORDS),
    }
    running = subprocess.Popen(
        [asked["bash"], "-c", _SOURCED, asked["script"], *asked["arguments"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=asked["cwd"],
        env=environment,
        preexec_fn=lambda: _confine(asked["limits"]),
        start_new_session=True,
    )
    try:
        _, said = running.communicate(timeout=asked["limits"]["wall_s"])
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(running.pid, signal.SIGKILL)
        said = b""
    records = [_record(place) for place in sorted(_RECORDS.iterdir())[:_MOST]]
    answer = {"records": [each for each in records if each], "said": said[-2000:].decode("utf-8", "replace")}
    print(json.dumps(answer), flush=True)  # noqa: T201
    return 0


def _write(place: Path, text: str) -> None:
    """A file in memory that the script may replace, as it may add others beside it."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode("utf-8", "surrogateescape"))
        place.chmod(0o777)


def _record(place: Path) -> list[str]:
    try:
        return place.read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def _confine(limits: dict[str, Any]) -> None:
    """Give up rights; none of it can be taken back."""
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
    ):
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    sys.exit(main())
