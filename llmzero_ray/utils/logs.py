"""Log files of a search's actors, and warnings of commands on the terminal. Importing this module adds no
handler."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from llmzero_ray.utils.text import clean

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _PlainFormatter(logging.Formatter):
    """Formatter without control characters. Continuation lines are indented, so that no text can look like a
    separate entry."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record)).replace("\n", "\n    ")


def log_to(path: Path) -> logging.Handler:
    """Append the library's INFO messages to a file from now on. Returns the handler, which the caller
    closes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(_PlainFormatter(_FORMAT))
    library = logging.getLogger("llmzero_ray")
    library.addHandler(handler)
    library.setLevel(logging.INFO)
    return handler


def show_warnings_plainly() -> None:
    """Remove control characters from warnings that Python prints because there is no handler."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PlainFormatter("%(message)s"))


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Context in which the library's INFO messages are appended to a file."""
    handler = log_to(path)
    try:
        yield
    finally:
        logging.getLogger("llmzero_ray").removeHandler(handler)
        handler.close()
