"""All processes of a command, looked at while it runs as another process of the user sees them."""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Iterator

from .known_listeners import unknown_listeners
from .processes import processes_with

KEY = b"sk-ant-of-the-command-alone"
_LOOK_S = 1.0
_SOCKETS_EVERY = 5
"""Looks for one at the sockets, which takes a third of a second of the processor."""


class Watched:
    """What was seen of the processes of a command that was started with `environment`."""

    def __init__(self) -> None:
        self.environment = {
            "LLMZERO_TEST_MARK": f"mark-{uuid.uuid4().hex}",
            "ANTHROPIC_API_KEY": KEY.decode(),
        }
        """The command's own variables, by which its processes are known."""
        self.titles = ""
        """Of all processes seen."""
        self.unknown: set[tuple[str, str]] = set()
        """Sockets that are not listed, with the titles of their processes."""
        self.holders_of_key: set[str] = set()
        """Titles of processes that have the key in their environment."""

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again until the block ends."""
        ended = threading.Event()
        thread = threading.Thread(target=self._look_until, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _look_until(self, ended: threading.Event) -> None:
        for look in itertools.count():
            if ended.wait(_LOOK_S):
                return
            found = processes_with(self.environment["LLMZERO_TEST_MARK"])
            self.titles += "".join(one.title for one in found if one.title not in self.titles)
            if look % _SOCKETS_EVERY == 0:
                self.unknown |= unknown_listeners(found)
            self.holders_of_key |= {one.title for one in found if KEY in one.environment}
