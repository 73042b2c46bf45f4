"""Delay of a user's request and regularity of the heartbeat while many slots wait for hardware.

    python -m benchmarks.waiting_slots [--waiting 32] [--hints 10]

A search with the scripted engine trains on the only GPU of its cluster. Then `slots.count` is raised, so that
`--waiting` slots wait for hardware that never comes. Measured are seconds from the moment at which a request
is written, as `llmzero hint` and `llmzero stop --now` do, to its event in the journal:

    hint          until it is durable, which is when the next proposer sees it
    stop --now    the same for the stop
    search ended  from that stop to the search's last event; its phase is killed, its outcome written
    heartbeat     between two of them, while the slots wait (nominally every 5 s)

Prints median and worst of each and the machine's load before and after, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tests.conftest  # noqa: F401 - the environment that Ray reads once
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import last_heartbeat, request
from llmzero_ray.tasks.prepare import prepare
from tests.chaos.lab import Lab
from tests.chaos.trial import scripted_config
from tests.chaos.witness import Witness

_NAME = "waiting"
_PATIENCE_S = 240.0
_STEP_S = 0.25
_BETWEEN_S = 3.0
"""Between two requests: no multiple of the half second in which the coordinator looks for them."""
_BEAT_LOOK_S = 0.05


class Heartbeats:
    """Seconds between the heartbeats of a search, observed from outside."""

    def __init__(self, root: Path) -> None:
        self.gaps: list[float] = []
        self._root, self._done = root, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Heartbeats:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        last = last_heartbeat(self._root)
        while not self._done.wait(_BEAT_LOOK_S):
            now = last_heartbeat(self._root)
            if last is not None and now is not None and now > last:
                self.gaps.append(now - last)
            last = now


class Scene:
    """The search whose slots wait."""

    def __init__(self, lab: Lab, root: Path) -> None:
        task = root / "task"
        prepare(dir=task, family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
        config = scripted_config(_NAME, root / "runs", task, slots=1, runs=500, script={"step_s": _STEP_S})
        path = root / "search.yaml"
        path.write_text(config.to_yaml())
        storage = SearchStorage(config.storage, config.name)
        self.root, self.witness = storage.paths.root, Witness(storage)
        self.command = lab.command("jobs.search", path)

    def wait_with(self, n: int) -> None:
        """Train on one slot while `n` others wait."""
        self._until(lambda: bool(self.witness.training()))
        request(self.root, "set", changes={"slots.count": n + 1})
        self._event(lambda event: isinstance(event, ev.SettingsChanged))

    def hint(self, number: int) -> float:
        """Seconds until a hint is in the journal."""
        time.sleep(_BETWEEN_S)
        text, asked = f"hint {number}", time.time()
        request(self.root, "hint", text=text)
        return self._event(lambda event: isinstance(event, ev.HintGiven) and event.text == text) - asked

    def n_waiting(self) -> int:
        """Number of slots without hardware now."""
        self.witness.look()
        return sum(not slot.ready for slot in self.witness.core.open_slots)

    def stop_now(self) -> tuple[float, float]:
        """Seconds until the stop is in the journal, and from there until the search has ended."""
        asked = time.time()
        request(self.root, "stop", "enough", deadline_s=0.0)
        taken = self._event(lambda event: isinstance(event, ev.UserStop))
        return taken - asked, self._event(lambda event: isinstance(event, ev.SearchFinished)) - taken

    def _event(self, is_it: Callable[[Event], bool]) -> float:
        """Time of the first such event; waits for it."""
        found: list[float] = []

        def look() -> bool:
            found.extend(event.time for event in self.witness.follower.events if is_it(event))
            return bool(found)

        self._until(look)
        return found[0]

    def _until(self, happened: Callable[[], bool]) -> None:
        if not self.witness.until(happened, within_s=_PATIENCE_S, look_s=0.02):
            raise TimeoutError(f"not within {_PATIENCE_S:.0f} s: {self.command.output[-2000:]}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--waiting", type=int, default=32, help="slots that wait")
    parser.add_argument("--hints", type=int, default=10, help="hints that are given")
    given = parser.parse_args()
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="waiting-") as root, Lab(machines=1) as lab:
        scene = Scene(lab, Path(root))
        scene.wait_with(given.waiting)
        with Heartbeats(scene.root) as beats:
            hints = [scene.hint(number) for number in range(given.hints)]
            n_waiting = scene.n_waiting()
        taken, ended = scene.stop_now()
    load.append(os.getloadavg()[0])
    took = {"hint": hints, "stop --now": [taken], "search ended": [ended], "heartbeat": beats.gaps}
    print(
        f"{n_waiting} slots waited, {os.cpu_count()} CPUs, load {load[0]:.1f} before and {load[1]:.1f} after"
    )
    print(f"{'':12} {'times':>5} {'median s':>9} {'worst s':>8}")
    for what, seconds in took.items():
        print(f"{what:12} {len(seconds):5} {statistics.median(seconds):9.2f} {max(seconds):8.2f}")
    print(json.dumps({"seconds": took, "waiting": n_waiting, "cpus": os.cpu_count(), "load": load}))


if __name__ == "__main__":
    main()
