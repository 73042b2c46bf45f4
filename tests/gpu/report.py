"""What the tests of a GPU measured: a line of JSON each, printed, and appended to the file that
LLMZERO_GPU_REPORT names, so that a run that is cut off leaves what it knew."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

_BEGAN = time.monotonic()


def seconds_left() -> float:
    """Seconds of LLMZERO_GPU_BUDGET_S that are left; infinite without it."""
    return float(os.environ.get("LLMZERO_GPU_BUDGET_S", math.inf)) - (time.monotonic() - _BEGAN)


def note(**facts: Any) -> None:
    """Write down facts of the test that runs."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition(" ")[0]
    line = {"at_s": round(time.monotonic() - _BEGAN, 1), "test": test, **facts}
    text = json.dumps({key: value for key, value in line.items() if value is not None}, default=str)
    print(text, flush=True)
    if path := os.environ.get("LLMZERO_GPU_REPORT"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
