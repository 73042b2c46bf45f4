"""One search under strikes: started as a user starts it, struck again and again, followed to its end.

After each strike the search must get past it; then it has some peace, so that the same phase is not lost
twice from the same point again and again. Not here: who is struck (killer.py), what must hold (checks.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from actors.names import name_on_cluster, runner_name, stopper_name
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage

from .killer import Blow, Hand, Strike
from .lab import Command, Lab, until
from .witness import Witness

SCRIPT: dict[str, Any] = {"step_s": 0.04, "fail": [2], "sink": [4, 7], "adapter_kib": 64}
"""What the scripted engine of a search under strikes does: one node fails, two unlearn."""
_CLEAN_S = 120.0
"""How long actors and processes may take to go away after the end."""


def scripted_config(
    name: str,
    storage: Path,
    task_dir: Path,
    *,
    slots: int,
    runs: int = 10,
    script: Mapping[str, Any] = SCRIPT,
    verdicts: bool = True,
) -> SearchConfig:
    """A search of the scripted engine with phases of 2 s, verdicts, thinned adapters and full checkpoints."""
    return parse_config(
        {
            "name": name,
            "storage": str(storage),
            "task": {"dir": str(task_dir)},
            "model": {"path": str(task_dir)},
            "budget": {"runs": runs},
            "phase": {"n_steps": 40, "max_steps": 80, "test_freq": 4, "save_freq": 4},
            "root": {"overrides": {"lr": 1e-3, "train_batch_size": 16, "n": 4}},
            "stopper": {"enabled": verdicts, "interval_steps": 4, "min_steps": 8},
            "slots": {"count": slots, "gpus_per_node": 1, "cpus_per_gpu": 1, "timeout_s": 120.0},
            "checkpoints": {"rolling_freq": 2, "max_gib": 4.0 / 1024},
            "engine": {
                "backend": "tests.fakes:make_engine",
                "platform": "cpu",
                "max_prompt_length": 64,
                "max_response_length": 32,
                "hang_min_s": 15.0,
                "overrides": {f"script.{key}": value for key, value in script.items()},
            },
            "eval": {"max_response_length": 32},
            "final": {"test": True, "default_recipe": False},
        }
    )


@dataclass(kw_only=True)
class Story:
    """What came of one search."""

    witness: Witness
    blows: list[Blow] = field(default_factory=list)
    missed: list[Strike] = field(default_factory=list)
    """Strikes whose victim was not there."""
    wrong: list[str] = field(default_factory=list)


class Trial:
    """One search on a lab."""

    def __init__(self, lab: Lab, config: SearchConfig, *, seed: int, patience_s: float = 600.0) -> None:
        self._lab, self._config, self._patience_s = lab, config, patience_s
        storage = SearchStorage(config.storage, config.name)
        self.story = Story(witness=Witness(storage))
        self._witness = self.story.witness
        self._hand = Hand(lab, self._witness, seed, patience_s=patience_s)
        self._path = Path(config.storage) / f"{config.name}.yaml"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(config.to_yaml())
        self._command: Command | None = None

    def run(self, strikes: Iterator[Strike], n: int) -> Story:
        """Strike up to `n` times, then see it to its end."""
        self._start(self._path)
        self._wait(lambda: bool(self._witness.training()) or self._witness.over, "it does not train")
        for strike in islice(strikes, n):
            until(self._over, within_s=strike.quiet_s)
            self._lab.note_segments()
            if self._over() or self.story.wrong:
                self.story.missed.append(strike)
                break
            blow = self._strike(strike)
            if blow is None:
                self.story.missed.append(strike)
                continue
            self.story.blows.append(blow)
            self._afterwards(blow, strike)
        self._see_to_the_end()
        return self.story

    # --- parts ----------------------------------------------------------------------------------------------

    def _start(self, *words: object) -> None:
        self._command = self._lab.command("jobs.search", *words)

    def _over(self) -> bool:
        self._witness.look()
        return self._witness.over

    def _wait(self, happened: Callable[[], bool], otherwise: str) -> bool:
        """Wait for something as long as patience goes; it is wrong when it does not happen."""
        if self._witness.until(happened, within_s=self._patience_s):
            return True
        output = self._command.output[-2000:] if self._command is not None else ""
        self.story.wrong.append(f"{otherwise} within {self._patience_s:.0f} s; its command said: {output}")
        return False

    def _strike(self, strike: Strike) -> Blow | None:
        if strike.victim == "command":
            if self._command is None or not self._command.running:
                return None
            blow = self._hand.blow(strike, "command", [])
            self._command.kill()
            return blow
        if strike.victim == "head":
            blow = self._hand.blow(strike, "head", self._witness.training())
            if self._command is not None and self._command.running:
                self._command.kill()
            self._lab.power_off()
            return blow
        return self._hand.strike(strike)

    def _afterwards(self, blow: Blow, strike: Strike) -> None:
        """Give back what was taken, and wait until the search is past it and safe from the next strike."""
        if blow.victim == "head":
            self._lab.power_on()
            self._start("--resume", self._witness.storage.paths.root)
        if not self._wait(
            lambda: self._is_past(blow) or self._witness.over, f"not past the loss of {strike}"
        ):
            return
        blow.recovered_s = time.monotonic() - blow.at
        if blow.victim == "machine":
            self._lab.add_machine()
        if blow.victim == "command":
            self._start(self._path)
        lost = {node: self._loss(blow, node) for node in blow.steps}
        kept = {node: loss.restart_step for node, loss in lost.items() if loss is not None}
        self._wait(
            lambda: self._witness.over or all(self._is_safe(node, step) for node, step in kept.items()),
            f"no full checkpoint after the loss of {strike}",
        )

    def _is_past(self, blow: Blow) -> bool:
        """The search does what it would have done without the strike."""
        fresh = self._witness.follower.events[blow.n_events :]
        if blow.victim == "coordinator":
            return any(isinstance(event, ev.CoordinatorStarted) for event in fresh)
        if blow.steps:
            return all(self._is_further(blow, node) for node in blow.steps)
        if blow.victim == "command":
            return bool(fresh) or any(self._witness.step(run.node) > 0 for run in self._witness.training())
        if blow.victim == "head":
            return any(isinstance(event, ev.CoordinatorStarted) for event in fresh)
        return self._is_replaced(blow)

    def _is_further(self, blow: Blow, node: int) -> bool:
        """A lost phase is repeated and has done a step that the lost attempt had not, or has ended."""
        lost = self._loss(blow, node)
        done = None if lost is None or lost.salvaged is None else lost.salvaged.steps_done
        return self._witness.has_ended(node) or (done is not None and self._witness.step(node) > done)

    def _is_replaced(self, blow: Blow) -> bool:
        """Another process bears the name of the one that died."""
        root = self._witness.storage.paths.root
        roles = [stopper_name(root)] if blow.victim == "stopper" else []
        if blow.victim == "runner":
            roles = [runner_name(name_on_cluster(root), slot) for slot in range(self._config.slots.count)]
        actors = self._lab.actors()
        return all(
            role in actors and actors[role].state == "ALIVE" and not _is_dead(actors[role].pid)
            for role in roles
        )

    def _loss(self, blow: Blow, node: int) -> ev.RunnerLost | None:
        fresh = self._witness.follower.events[blow.n_events :]
        lost = [event for event in fresh if isinstance(event, ev.RunnerLost) and event.node == node]
        return lost[-1] if lost else None

    def _is_safe(self, node: int, restart_step: int) -> bool:
        """The next loss of this phase would not be one from the same point."""
        ended, attempt = self._witness.has_ended(node), self._witness.core.runs[node].attempt
        return ended or self._witness.storage.restart_step(node, attempt) > restart_step

    def _see_to_the_end(self) -> None:
        if not self._wait(lambda: self._witness.over, "it does not end"):
            return
        command, wrong = self._command, self.story.wrong
        if command is not None:
            if not until(lambda: not command.running, within_s=self._patience_s):
                wrong.append("the search has ended and its command goes on")
            elif command.process.returncode != 0:
                wrong.append(f"its command ended with {command.process.returncode}: {command.output[-2000:]}")
        left: list[str] = []

        def is_clean() -> bool:
            left[:] = self._lab.left_over(self._config.name)
            return not left

        if not until(is_clean, within_s=_CLEAN_S, look_s=0.5):
            wrong += [f"left running: {what}" for what in left]


def _is_dead(pid: int) -> bool:
    from .killer import lives

    return not lives(pid)
