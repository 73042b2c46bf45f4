"""Run commands of the project as a user does, in this process or in a new one, and capture their output.

What they say is made independent of where they ran. Not here: what they should have said.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.blackbox import public_api

ENVIRONMENT = {"COLUMNS": "160", "TZ": "UTC", "NO_COLOR": "1", "PYTHONPATH": str(public_api.CHECKOUT)}
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE", "RAY_ADDRESS", "FORCE_COLOR")


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a command did as far as a user sees it."""

    exit: int | str
    """Exit code; "traceback" when an exception came through."""
    out: str
    err: str


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of commands: no key, no cluster, one width, one time zone."""
    kept = {key: value for key, value in os.environ.items() if key not in _KEYS}
    return {**kept, **ENVIRONMENT, **(more or {})}


def run(words: Sequence[str], directory: Path, env: Mapping[str, str] | None = None) -> Said:
    """`llmzero` with these words in this process, its current directory being `directory`."""
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with _inside(directory, environment(env)), streams[0], streams[1]:
        try:
            code: int | str = public_api.llmzero(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - a user would see a traceback
            code = "traceback"
    return Said(exit=code, out=normal(out.getvalue(), directory), err=normal(err.getvalue(), directory))


def run_process(words: Sequence[str], directory: Path, env: Mapping[str, str] | None = None) -> Said:
    """`python -m` with these words in a process of its own, in `directory`."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=directory,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    failed = "Traceback (most recent call last)" in done.stderr
    return Said(
        exit="traceback" if failed else done.returncode,
        out=normal(done.stdout, directory),
        err=normal(done.stderr, directory),
    )


def normal(text: str, directory: Path) -> str:
    """The output without paths of a machine and without ages."""
    for place in {str(directory), str(directory.resolve())}:
        text = text.replace(place, "<dir>")
    text = text.replace(str(public_api.CHECKOUT), "<checkout>")
    text = re.sub(r"last sign of life [\d.]+ \w+ ago", "last sign of life <age> ago", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + ("\n" if text else "")


@contextlib.contextmanager
def _inside(directory: Path, env: Mapping[str, str]) -> Iterator[None]:
    """This process in another directory, with another environment and an empty standard input."""
    before, here, stdin = dict(os.environ), Path.cwd(), sys.stdin
    os.environ.clear()
    os.environ.update(env)
    os.chdir(directory)
    time.tzset()
    sys.stdin = io.StringIO()
    try:
        yield
    finally:
        sys.stdin = stdin
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        time.tzset()
