"""Child process that compares mathematical texts with math-verify: a JSON list per line in, a verdict out.

The process forks a worker and replaces it when a request kills it: after `CPU_LIMIT_S` seconds of
processor time, or for memory. Such a request is answered with `killed`, others with their number and
`true` or `false`. Both end when standard input closes.
Run as a file; imports nothing of this project. Not here: the client (math_client.py).
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

CPU_LIMIT_S = 0.45
_MAX_MEMORY = 4 * 2**30
_READ = 65_536
_FIRST = (
    ("\\boxed{x^2+2x+1}", "\\boxed{(x+1)^2}"),
    ("\\boxed{2\\sqrt{3}}", "$\\sqrt{12}$"),
    ("\\boxed{(1,2)}", "\\boxed{\\left[1,\\frac{5}{2}\\right]}"),
    ("\\boxed{\\{1,2\\}}", "the answer is 1/2."),
    ("\\boxed{x=\\pi}", "\\boxed{3.14}"),
    ("\\boxed{\\begin{pmatrix}1\\\\2\\end{pmatrix}}", "\\boxed{\\sin(x)\\le 1}"),
)


def main() -> int:
    """Answer questions until there are no more."""
    logging.disable(logging.CRITICAL)
    library = import_module("math_verify")
    # First questions build parsers and fill caches, which takes longer than the questions do.
    for gold, answer in _FIRST:
        _same(library, gold, answer)
    os.write(1, b"ready\n")
    while True:
        child = os.fork()
        if child == 0:
            os._exit(_answer_all(library))
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return 0
        os.write(1, b"killed\n")


def _answer_all(library: Any) -> int:
    """Exit code 0 once the input has ended; the process may be killed before."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    while question := _next_line():
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        number, gold, answer = json.loads(question)
        same = _same(library, gold, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, f"{number} {str(same).lower()}\n".encode())
    return 0


def _next_line() -> bytes:
    """The only question on its way, or nothing at the end."""
    held = b""
    while not held.endswith(b"\n"):
        more = os.read(0, _READ)
        if not more:
            return b""
        held += more
    return held


def _same(library: Any, gold: str, answer: str) -> bool:
    try:
        parsed = _parsed(library, gold), library.parse(answer, parsing_timeout=None)
        return bool(library.verify(*parsed, timeout_seconds=None))
    except Exception:  # noqa: BLE001  a parser's many exceptions all mean: not the same
        return False


@lru_cache(maxsize=1024)
def _parsed(library: Any, gold: str) -> Any:
    """Kept, as all answers to one prompt are compared with the same gold."""
    return library.parse(gold, parsing_timeout=None)


if __name__ == "__main__":
    sys.exit(main())
