"""Makes a child process die with its parent.

The kernel delivers the signal, so a child that is stopped or stuck dies too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Send this process `signum` when its parent, process `parent`, ends; at once if it has already ended.

    Systems other than Linux do only the second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), signum)
