"""A child process that dies with its parent, whatever state either is in.

The kernel delivers the signal: a child that is stopped or stuck dies too. Not here: starting it (process.py).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """From now on this process gets SIGKILL when its parent, process `parent`, ends; at once if it has ended
    already. Linux only; elsewhere the closed pipe has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)
