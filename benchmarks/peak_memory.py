"""The machine's peak use of memory while a command runs, above what was in use before.

    python -m benchmarks.peak_memory make demo

Prints one JSON line when the command has ended, and exits as it did. Everything on the machine is counted,
shared memory included: run nothing else at the same time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

_LOOK_S = 0.2


def main() -> None:
    """Run, watch and print."""
    import psutil

    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.peak_memory COMMAND [ARGUMENT ...]")
    before = peak = psutil.virtual_memory().used
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(_LOOK_S):
            peak = max(peak, psutil.virtual_memory().used)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    code = subprocess.run(sys.argv[1:], check=False).returncode
    over.set()
    watcher.join()
    gib = {"before_gib": round(before / 2**30, 2), "peak_gib": round(peak / 2**30, 2)}
    print(json.dumps({**gib, "wall_s": round(time.monotonic() - began, 1), "exit_code": code}))
    sys.exit(code)


if __name__ == "__main__":
    main()
