"""Process that runs one script inside the sandbox: its description in, the recorder's records out, as JSON.

Run as a file; imports nothing of this project.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_RECORDS, _PROGRAMS = Path("/tmp/records"), Path("/tmp/bin")
_SOURCED = '. "$LLMZERO_RECORDER"; . "$0"'
"""A script as bash runs it, with its own `$0`, after the recorder."""
_BACKGROUND_S = 2.0
_MOST = 2_000
"""Maximum records that are read."""


def main() -> int:
    """Run the script once; 0 however it ends."""
    asked = json.loads(sys.stdin.buffer.readline())
    # Read before privileges are dropped: the other user may not be allowed to.
    recorder = Path(__file__).with_name("recorder.sh").read_text(encoding="utf-8")
    if (uid := asked["uid"]) is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0)
    Path("/tmp/recorder.sh").write_text(recorder, encoding="utf-8")
    for place, text in asked["files"].items():
        _write(Path(place), text)
    link, target = map(Path, asked["link"])
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    for folder in (_RECORDS, _PROGRAMS, Path(asked["cwd"])):
        folder.mkdir(parents=True, exist_ok=True)
    for name in asked["programs"]:
        _write(_PROGRAMS / name, f'#!{asked["bash"]}\n. "$LLMZERO_RECORDER"\n__llmzero_run {name} "$@"\n')
    Path("/tmp/typed").write_text(asked["typed"], encoding="utf-8")
    environment = {
        **asked["environment"],
        "PATH": f"{_PROGRAMS}:/usr/bin:/bin",
        "LLMZERO_BASH": asked["bash"],
        "LLMZERO_RECORDER": "/tmp/recorder.sh",
        "LLMZERO_RECORDS": str(_RECORDS),
    }
    alive, kept = os.pipe()  # kept open by every process that the script leaves in the background
    running = subprocess.Popen(
        [asked["bash"], "-c", _SOURCED, asked["script"], *asked["arguments"]],
        stdin=os.open("/tmp/typed", os.O_RDONLY),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=asked["cwd"],
        env=environment,
        preexec_fn=lambda: _confine(asked["limits"]),
        start_new_session=True,
        pass_fds=(kept,),
    )
    os.close(kept)
    try:
        running.wait(asked["limits"]["wall_s"])
        select.select([alive], [], [], _BACKGROUND_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(running.pid, signal.SIGKILL)
    records = [held for place in sorted(_RECORDS.iterdir())[:_MOST] if (held := _record(place))]
    said = "" if any(kind == "start" for kind, *_ in records) else _syntax(asked, environment)
    print(json.dumps({"records": records, "said": said}), flush=True)  # noqa: T201
    return 0


def _syntax(asked: dict[str, Any], environment: dict[str, str]) -> str:
    """Bash's message about the script's syntax."""
    checked = subprocess.run(
        [asked["bash"], "-n", asked["script"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=asked["cwd"],
        env=environment,
        timeout=asked["limits"]["wall_s"],
        check=False,
    )
    return checked.stderr[-2000:].decode("utf-8", "replace")


def _write(place: Path, text: str) -> None:
    """Write a file in memory that the script may replace. It may also add others."""
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
    """Drop privileges irrevocably."""
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
