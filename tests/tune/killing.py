"""Kill the driver of a search under Tune at given moments, and compare what it did with what it had to do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.journal import JournalReader
from llmzero_ray.records.events import PhaseFailed, PhaseFinished
from tests.tune.trainables import notes
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class KilledSearch:
    """What is left of a search whose driver was killed several times, and then ended."""

    folder: Path
    kills: int

    @property
    def outcome(self) -> list[dict[str, Any]]:
        """The rows of the last ResultGrid."""
        rows: list[dict[str, Any]] = json.loads((self.folder / "outcome.json").read_text())
        return rows

    @property
    def lost(self) -> list[str]:
        """Trials that a controller had finished, and that the last one does not list or has with less."""
        listed = {re.search(r"climb_(\w{8})_", row["path"])[1]: row for row in self.outcome}  # type: ignore[index]
        finished = (self.folder / "finished.txt").read_text().split()
        return [trial for trial in set(finished) if trial not in listed]

    @property
    def repeated(self) -> list[tuple[str, int]]:
        """(phase, step) of steps that were trained again although their checkpoint had been taken in."""
        told: set[tuple[str, int]] = set()
        again = []
        for line in notes(self.folder / "notes.jsonl"):
            place = (line["phase"], line["step"])
            if line["event"] == "step" and place in told:
                again.append(place)
            if line["event"] == "told":
                told.add(place)
        return again

    @property
    def ends(self) -> Counter[int]:
        """How often each node ended."""
        (journal,) = (self.folder / "exp").glob("llmzero-*/journal")
        events = JournalReader(journal).poll()
        return Counter(event.node for event in events if isinstance(event, PhaseFinished | PhaseFailed))


def run_and_kill(
    folder: Path,
    kill_after: Iterable[int],
    *,
    budget: int,
    phase_steps: int,
    workers: int = 2,
    sleep_s: float = 0.05,
    environment: dict[str, str] | None = None,
) -> KilledSearch:
    """A search whose driver is killed each time that this many steps were begun in all."""
    command = [sys.executable, "-m", "tests.tune.driver", str(folder)]
    command += [str(each) for each in (budget, phase_steps, workers, sleep_s)]
    kills = 0
    marks = [*kill_after, None]
    for mark in marks:
        with open(folder / "driver.log", "ab") as output:
            driver = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

        def reached(driver: Any = driver, mark: int | None = mark) -> bool:
            if driver.poll() is not None:
                return True
            begun = sum(line["event"] == "step" for line in notes(folder / "notes.jsonl"))
            return mark is not None and begun >= mark

        wait_until(reached, lambda: (folder / "driver.log").read_text()[-3000:], every_s=0.01)
        if driver.poll() is None:
            os.kill(driver.pid, signal.SIGKILL)
            kills += 1
        driver.wait()
        if mark is None or driver.returncode == 0:
            assert driver.returncode == 0, (folder / "driver.log").read_text()[-5000:]
            break
    return KilledSearch(folder=folder, kills=kills)
