"""Who is killed when: a sequence that a seed decides, and the blows themselves.

Half of the strikes come at random moments, half at named places. Not here: what a search looks like while
it is struck (trial.py), what must hold (checks.py).
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import psutil

from actors.names import coordinator_name, name_on_cluster, runner_name, slot_of, stopper_name
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.utils.failpoints import PLACES

from .lab import Actor, Lab, kill, until
from .witness import Witness

Victim: TypeAlias = Literal[
    "coordinator", "stopper", "runner", "machine", "command", "head", "worker", "inference", "any"
]
"""`machine` a raylet whose slot trains · `command` the process that started the search · `worker` one of
VeRL's actors or the process that embeds it · `inference` the engine process of vLLM, which is not an actor ·
`any` whoever reaches a named place."""

FAST_PLACES = tuple(place for place in PLACES if place != "engine.switching")
"""Places that processes of a search with the scripted engine reach."""
VERL_PLACES = ("journal.written", "phase.handed_over", "checkpoint.saved", "engine.switching", "file.written")
_TITLES = {
    "worker": ("ray::WorkerDict", "ray::RecordingServer", "ray::PhaseAgentLoopWorker", "verl.host "),
    "inference": ("VLLM::EngineCore",),
}
"""What the command lines of VeRL's and vLLM's processes hold."""
_REACH_S = 20.0
"""How long a process may take to reach a named place."""


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One blow that is planned."""

    victim: Victim
    place: str | None = None
    """Where it dies; None: wherever it is."""
    quiet_s: float = 0.0
    """Seconds in which nothing happens before it."""
    paused: bool = False
    """Stopped by SIGSTOP instead of killed."""

    def __str__(self) -> str:
        return self.place or (f"{self.victim} paused" if self.paused else self.victim)


@dataclass(kw_only=True)
class Blow:
    """A strike that has landed."""

    strike: Strike
    victim: Victim
    at: float = field(default_factory=time.monotonic)
    n_events: int
    """Events of the journal before it."""
    pids: dict[str, int]
    """Actor -> process before it."""
    steps: dict[int, int]
    """Node -> newest step before it, of the phases that it hit."""
    recovered_s: float | None = None
    """Until the search was past it; None: it is not yet."""


class Killer:
    """Plans strikes; the same seed plans the same ones."""

    def __init__(self, seed: int, *, real: bool = False) -> None:
        self._random, self._real = random.Random(seed), real

    def strikes(self) -> Iterator[Strike]:
        """Without end."""
        while True:
            quiet_s = self._random.uniform(0.2, 2.0)
            if self._random.random() < 0.5:
                yield Strike(victim="any", place=self._random.choice(self._places()), quiet_s=quiet_s)
                continue
            victims: dict[Victim, float] = (
                {"coordinator": 3, "stopper": 1, "runner": 2, "worker": 3, "inference": 1, "command": 1}
                if self._real
                else {"coordinator": 6, "stopper": 3, "runner": 6, "machine": 3, "command": 3, "head": 1}
            )
            (victim,) = self._random.choices(list(victims), list(victims.values()))
            paused = victim == "runner" and self._random.random() < 0.1
            yield Strike(victim=victim, quiet_s=quiet_s, paused=paused)

    def _places(self) -> tuple[str, ...]:
        return VERL_PLACES if self._real else FAST_PLACES


class Hand:
    """Kills processes of one search of a lab; `head` and `command` only where they can be started again."""

    def __init__(self, lab: Lab, witness: Witness, seed: int, *, patience_s: float) -> None:
        self._lab, self._witness, self._random = lab, witness, random.Random(seed)
        self._patience_s = patience_s
        self._root = witness.storage.paths.root
        self._name = name_on_cluster(self._root)

    def strike(self, strike: Strike) -> Blow | None:
        """Execute it; None when its victim did not exist, or no process reached the place."""
        return self._at_place(strike) if strike.place is not None else self._at_once(strike)

    def _at_once(self, strike: Strike) -> Blow | None:
        if strike.victim in ("runner", "machine", *_TITLES):
            if not until(lambda: bool(self._trained()) or self._witness.over, within_s=self._patience_s):
                return None
            runs = self._trained()
            if not runs:
                return None
            run = self._random.choice(runs)
            return self._hit_slot(strike, run)
        named = {"coordinator": coordinator_name(self._root), "stopper": stopper_name(self._root)}
        actor = self._lab.actors().get(named[strike.victim])
        if actor is None or actor.state != "ALIVE":
            return None
        blow = self.blow(strike, strike.victim, [])
        return blow if kill(actor.pid) else None

    def _hit_slot(self, strike: Strike, run: PhaseRun) -> Blow | None:
        runner = self._lab.actors().get(runner_name(self._name, run.slot))
        if runner is None or runner.state != "ALIVE":
            return None
        blow = self.blow(strike, strike.victim, [run])
        if strike.victim == "machine":
            self._lab.kill_machine(runner.machine)
            return blow
        pid = runner.pid
        if strike.victim in _TITLES:
            titles = _TITLES[strike.victim]
            workers = [process.pid for process in self._lab.processes() if _is_called(process, titles)]
            if not workers:
                return None
            pid = self._random.choice(workers)
        return blow if kill(pid, signal.SIGSTOP if strike.paused else signal.SIGKILL) else None

    def _at_place(self, strike: Strike) -> Blow | None:
        """Identify the victim by the process that is gone."""
        place = strike.place
        assert place is not None
        self._lab.lay(place)
        before, blow = self._actors(), self.blow(strike, "any", self._witness.training())
        deadline = time.monotonic() + _REACH_S
        while self._lab.waits(place):
            self._witness.look()
            if time.monotonic() > deadline or self._witness.over:
                self._lab.pick_up(place)
                return None
            before, blow = self._actors(), self.blow(strike, "any", self._witness.training())
            time.sleep(0.02)
        blow.at = time.monotonic()
        return self._victim_of(blow, before)

    def _victim_of(self, blow: Blow, before: dict[str, Actor]) -> Blow | None:
        gone: list[str] = []

        def somebody_died() -> bool:
            gone[:] = [name for name, actor in before.items() if not lives(actor.pid)]
            return bool(gone)

        if not until(somebody_died, within_s=5.0):
            return blow  # one of VeRL's: its runner says so itself
        name = gone[0]
        slot = slot_of(self._name, name)
        if slot is not None:
            blow.victim = "runner"
            hit = [run.node for run in self._witness.core.runs.values() if run.slot == slot]
            blow.steps = {node: step for node, step in blow.steps.items() if node in hit}
        else:
            blow.victim = "coordinator" if name == coordinator_name(self._root) else "stopper"
            blow.steps = {}
        return blow

    def blow(self, strike: Strike, victim: Victim, hit: list[PhaseRun]) -> Blow:
        """How things stand just before a strike."""
        self._witness.look()
        return Blow(
            strike=strike,
            victim=victim,
            n_events=len(self._witness.follower.events),
            pids={name: actor.pid for name, actor in self._actors().items()},
            steps={run.node: self._witness.step(run.node) for run in hit},
        )

    def _actors(self) -> dict[str, Actor]:
        found = self._lab.actors().items()
        return {name: actor for name, actor in found if self._name in name and actor.state == "ALIVE"}

    def _trained(self) -> list[PhaseRun]:
        self._witness.look()
        return [run for run in self._witness.training() if self._witness.step(run.node) > 0]


def _is_called(process: psutil.Process, titles: tuple[str, ...]) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(title in line for title in titles)


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
