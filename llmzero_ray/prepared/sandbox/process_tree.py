"""Processor time and memory of a sandbox's processes, measured by their parent because a reward could lie."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_PROCESS_WIDE = 2
"""CPUCLOCK_SCHED of the kernel's clock ids: all threads of a process, ended ones too."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessTree:
    """The process `top` and its descendants, one of which runs `program`, a Python file. Reading the
    processor time of that one takes microseconds. Everything else reads all processes of the machine."""

    def __init__(self, top: int, program: str) -> None:
        self._top = top
        running = [pid for pid in self._tree() if _runs(pid, program)]
        self._main = min(running, key=_started, default=top)

    def own_s(self) -> float:
        """Processor seconds of the process that runs the program."""
        return _seconds(self._main)

    def others_s(self) -> float:
        """Processor seconds of all other processes, including ended ones that were waited for."""
        tree = self._tree()
        alive = sum(_seconds(pid) for pid in tree if pid != self._main)
        return alive + sum(_waited_for(pid) for pid in tree)

    def memory(self) -> int:
        """Bytes of memory of all of them. Shared memory counts for each."""
        return sum(map(_resident, self._tree()))

    def _tree(self) -> list[int]:
        below: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal() and (fields := _fields(int(name))):
                below.setdefault(int(fields[1]), []).append(int(name))
        found, left = list[int](), [self._top]
        while left:
            found.append(pid := left.pop())
            left += below.get(pid, [])
        return found


def _seconds(pid: int) -> float:
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | _PROCESS_WIDE)  # clock_getcpuclockid of the C library
    return 0.0


def _fields(pid: int) -> list[str]:
    """/proc/PID/stat from the third field on, the state; empty for a process that is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _started(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[19]) if fields else 0


def _waited_for(pid: int) -> float:
    fields = _fields(pid)
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_S if fields else 0.0


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _runs(pid: int, program: str) -> bool:
    """Whether it is a Python process that runs a file of that name, and not its launcher."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        python = b"python" in os.path.basename(words[0])
        return python and any(os.path.basename(word) == program.encode() for word in words[1:])
    return False
