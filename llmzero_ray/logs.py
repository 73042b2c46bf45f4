"""Log files of a search's actors. Importing this sets no handler.

Not here: what is logged, and the logs of engines.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def log_to(path: Path) -> logging.Handler:
    """Append INFO lines of the library to a file from now on; returns the handler, which the caller
    closes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(_FORMAT))
    library = logging.getLogger("llmzero_ray")
    library.addHandler(handler)
    library.setLevel(logging.INFO)
    return handler


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Append INFO lines of the library to a file for a while."""
    handler = log_to(path)
    try:
        yield
    finally:
        logging.getLogger("llmzero_ray").removeHandler(handler)
        handler.close()
