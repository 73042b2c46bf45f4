"""The coordinator's handle to the tracker process, and the keys that it needs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from llmzero_ray.config import TrackingConfig
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.api_key import TRACKER_KEYS, without_secrets

logger = logging.getLogger("llmzero_ray.tracking.handle")
_AGAIN_S = 60.0
_GRACE_S = 5.0
"""Seconds after `tracking.finish_s` in which the process may end its children."""


def tracker_keys(path: str | None) -> dict[str, str]:
    """Environment variables with keys of trackers, from the file of `api_key.tracker_key_file`. Empty without
    a file."""
    if path is None:
        return {}
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        logger.warning("%s cannot be read; trackers go without the keys in it", path)
        return {}
    return {name: str(value) for name, value in found.items()}


class TrackerProcess:
    """Tracker process of a search. No method raises, because a search works without trackers."""

    def __init__(self, storage: SearchStorage, settings: TrackingConfig, keys: str | None) -> None:
        self._storage, self._settings, self._keys = storage, settings, keys
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    def check(self) -> None:
        """Start the process, or restart it after it has ended, at most once a minute."""
        if not self._settings.backends:
            return
        if self._process is not None:
            if self._process.poll() is None or time.monotonic() < self._started_at + _AGAIN_S:
                return
            logger.warning("the tracker ended (exit code %d); starting it again", self._process.returncode)
        self._started_at = time.monotonic()
        try:
            self._start()
        except OSError as error:
            logger.warning("the tracker cannot be started: %s", error)

    def finish(self) -> None:
        """Let the process send the remaining points for at most `tracking.finish_s`, and end it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(self._settings.finish_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            code = -1
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if code:
            logger.warning("not everything reached the trackers; see %s", self._log)
        self._process = None

    @property
    def _log(self) -> Path:
        return self._storage.paths.logs / "tracking.log"

    def _start(self) -> None:
        root = self._storage.paths.root
        (root / "tracking").mkdir(parents=True, exist_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        given = {name: os.environ[name] for name in TRACKER_KEYS if name in os.environ}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "llmzero_ray.tracking.tracker", str(root)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=without_secrets(os.environ),
                cwd=root / "tracking",
                start_new_session=True,  # so that it is ended together with its children
            )
        assert self._process.stdin is not None
        variables = {**given, **tracker_keys(self._keys)}
        line = {"variables": variables, "settings": self._settings.model_dump(mode="json")}
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()
