"""Time until a search is back at work after a death, in seconds, on a cluster of several raylets.

    python -m benchmarks.recovery [--repeats 5]

Kills (-9) parts of a search with the scripted engine on two slots, again and again, and measures:

    coordinator   time until the next one has taken over, which its first event shows
    back at work  time until that one has handled an outside event (a verdict; one is posted every 4 steps,
                  and again every 2 s until it is accepted); the training runners are still the same
                  processes
    runner        time until its loss is in the journal
    machine       the same for the raylet under a training slot
    steps         steps repeated per loss, against the steps between two full checkpoints

Prints median and worst of each next to the target, then one JSON line. Times are taken from the events, which
are written before anything acts on them. Run nothing else at the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tests.conftest  # noqa: F401 - the environment that Ray reads once
from actors.names import coordinator_name, name_on_cluster, runner_name
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks.prepare import prepare
from tests.chaos.checks import losses, steps_lost
from tests.chaos.lab import Lab, kill
from tests.chaos.trial import scripted_config
from tests.chaos.witness import Witness

TARGETS = {"coordinator": 5.0, "back at work": 5.0, "runner": 1.0, "machine": 5.0}
_NAME = "recovery"
_PATIENCE_S = 120.0
_STEP_S = 0.1
_PEACE_S = 2.0


class Scene:
    """The search whose parts are killed."""

    def __init__(self, lab: Lab, root: Path) -> None:
        task = root / "task"
        prepare(dir=task, family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
        script = {"step_s": _STEP_S}
        config = scripted_config(_NAME, root / "runs", task, slots=2, runs=500, script=script)
        path = root / "search.yaml"
        path.write_text(config.to_yaml())
        self.lab, self.command = lab, lab.command("jobs.search", path)
        self.witness = Witness(SearchStorage(config.storage, config.name))
        self.slots = name_on_cluster(self.witness.storage.paths.root)

    def coordinator(self) -> tuple[float, float]:
        """(Seconds from the kill until another coordinator takes over, seconds until it has handled an
        event)."""
        self._train()
        before = {run.slot: self._pid(runner_name(self.slots, run.slot)) for run in self._training()}
        n_events, began = self._n_events(), time.time()
        kill(self._pid(coordinator_name(self.witness.storage.paths.root)))
        self._wait(lambda: len(self._since_takeover(n_events)) > 1)
        taken, handled = self._since_takeover(n_events)[:2]
        for slot, pid in before.items():
            assert self._pid(runner_name(self.slots, slot)) == pid, (
                f"the runner of slot {slot} is another one"
            )
        return taken - began, handled - began

    def runner(self) -> float:
        """Seconds from the kill until the loss is in the journal."""
        return self._lose(lambda run: kill(self._pid(runner_name(self.slots, run.slot))))

    def machine(self) -> float:
        """The same for a raylet; a new machine replaces it."""

        def strike(run: PhaseRun) -> None:
            self.lab.kill_machine(self.lab.actors()[runner_name(self.slots, run.slot)].machine)

        took = self._lose(strike)
        self.lab.add_machine()
        return took

    def steps(self) -> list[int]:
        """Steps repeated after each loss."""
        return [steps_lost(event) for event in losses(self.witness)]

    def _lose(self, strike: Callable[[PhaseRun], object]) -> float:
        self._train()
        run, n_events = self._training()[0], self._n_events()
        began = time.time()
        strike(run)
        self._wait(lambda: bool(self._lost_after(n_events, run.slot)))
        return self._lost_after(n_events, run.slot)[0] - began

    def _train(self) -> None:
        """Wait a while, then until two phases train, each past a full checkpoint and not near its end."""
        time.sleep(_PEACE_S)
        self._wait(lambda: len(self._training()) == 2)

    def _training(self) -> list[PhaseRun]:
        self.witness.look()
        return [run for run in self.witness.training() if 5 <= self.witness.step(run.node) <= 25]

    def _since_takeover(self, n_events: int) -> list[float]:
        """Times of the new coordinator's events."""
        fresh = self.witness.follower.events[n_events:]
        first = [number for number, event in enumerate(fresh) if isinstance(event, ev.CoordinatorStarted)]
        return [event.time for event in fresh[first[0] :]] if first else []

    def _lost_after(self, n_events: int, slot: int) -> list[float]:
        fresh = self.witness.follower.events[n_events:]
        return [event.time for event in fresh if isinstance(event, ev.RunnerLost) and event.slot == slot]

    def _n_events(self) -> int:
        self.witness.look()
        return len(self.witness.follower.events)

    def _pid(self, actor: str) -> int:
        return self.lab.actors()[actor].pid

    def _wait(self, happened: Callable[[], bool]) -> None:
        if not self.witness.until(happened, within_s=_PATIENCE_S, look_s=0.02):
            raise TimeoutError(f"not within {_PATIENCE_S:.0f} s: {self.command.output[-2000:]}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    n_repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory(prefix="recovery-") as root, Lab() as lab:
        scene = Scene(lab, Path(root))
        back = [scene.coordinator() for _ in range(n_repeats)]
        took = {
            "coordinator": [taken for taken, _ in back],
            "back at work": [handled for _, handled in back],
            "runner": [scene.runner() for _ in range(n_repeats)],
            "machine": [scene.machine() for _ in range(n_repeats)],
        }
        steps, freq = scene.steps(), scene.witness.core.rolling_freq
    print(f"{'death of':12} {'median s':>9} {'worst s':>8} {'target s':>9}")
    for what, seconds in took.items():
        print(f"{what:12} {statistics.median(seconds):9.2f} {max(seconds):8.2f} {TARGETS[what]:9.1f}")
    print(f"steps repeated per loss: median {statistics.median(steps):g}, most {max(steps)}; target {freq}")
    print(json.dumps({"seconds": took, "steps": steps, "rolling_freq": freq}))


if __name__ == "__main__":
    main()
