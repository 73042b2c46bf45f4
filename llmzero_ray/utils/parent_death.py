"""Make a child process die with its parent.

The kernel delivers the signal, so even a stopped or stuck child dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Send this process `signum` when its parent, process `parent`, ends, or at once if that has already
    ended. On systems other than Linux, only the latter works.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os.kill(os.getpid(), signum)
