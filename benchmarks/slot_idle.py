"""Idle seconds of a slot between two phases, with a fast and a slow proposer.

    python -m benchmarks.slot_idle [--runs 8] [--delay 3]

One slot trains phases of about 15 s on the scripted engine, once with the expert and once with a proposer
that takes `--delay` seconds. Idle time is the time between the end of a phase and the start of the next one
in the journal. Prints median and worst of each, then one JSON line. Run nothing else at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tests.conftest  # noqa: F401 - the environment that Ray reads once
from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer, ExpertProposer
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.journal import read_all
from llmzero_ray.records import Event, Proposal, StopDecision
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest, StopRequest
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks.prepare import prepare
from tests.chaos.lab import Lab, until
from tests.chaos.trial import scripted_config

_DELAY = "LLMZERO_BENCHMARK_DELAY_S"
_STEP_S = 0.25
_PATIENCE_S = 1200.0


class SlowExpert:
    """The expert with a delay before each answer."""

    def __init__(self, *, n_val: int, n_gpus: int) -> None:
        self._proposer = ExpertProposer(n_val=n_val, n_gpus=n_gpus)
        self._analyzer = ExpertErrorAnalyzer(n_gpus=n_gpus)
        self._stopper = ExpertEarlyStopper(n_val=n_val)

    def propose(self, request: ProposalRequest) -> Proposal:
        """The expert's proposal."""
        time.sleep(float(os.environ[_DELAY]))
        return self._proposer.propose(request)

    def analyze(self, request: ErrorRequest) -> Proposal:
        """The expert's fix."""
        return self._analyzer.analyze(request)

    def judge(self, request: StopRequest) -> StopDecision:
        """The expert's verdict."""
        return self._stopper.judge(request)


def slow_expert(config: SearchConfig, n_val: int) -> SlowExpert:
    """Factory, named in a configuration as `benchmarks.slot_idle:slow_expert`."""
    return SlowExpert(n_val=n_val, n_gpus=config.slots.n_gpus)


def idle_of(events: tuple[Event, ...]) -> list[float]:
    """Seconds from each phase's end to the next one's start, in a search with one slot."""
    ended, seconds = None, []
    for event in events:
        if isinstance(event, ev.PhaseFinished | ev.PhaseFailed):
            ended = event.time
        elif isinstance(event, ev.PhaseStarted) and ended is not None:
            seconds.append(event.time - ended)
    return seconds


def measure(lab: Lab, root: Path, name: str, *, runs: int, agents: Mapping[str, Any]) -> list[float]:
    """Run one search from start to end."""
    plain = scripted_config(
        name, root / "runs", root / "task", slots=1, runs=runs, script={"step_s": _STEP_S}, verdicts=False
    )
    config = parse_config({**plain.to_json(), "agents": dict(agents)})
    path = root / f"{name}.yaml"
    path.write_text(config.to_yaml())
    command = lab.command("jobs.search", path)
    if not until(lambda: not command.running, within_s=_PATIENCE_S) or command.process.returncode:
        raise RuntimeError(f"{name} did not end well: {command.output[-2000:]}")
    return idle_of(read_all(SearchStorage(config.storage, name).paths.journal))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--delay", type=float, default=3.0)
    given = parser.parse_args()
    os.environ[_DELAY] = str(given.delay)
    slow = {"backend": "benchmarks.slot_idle:slow_expert"}
    cases = {"expert": {}, "slow": slow}
    with tempfile.TemporaryDirectory(prefix="idle-") as directory, Lab(machines=1) as lab:
        root = Path(directory)
        prepare(dir=root / "task", family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
        found = {
            name: measure(lab, root, name, runs=given.runs, agents=agents) for name, agents in cases.items()
        }
    print(f"{'proposer':15} {'gaps':>5} {'median s':>9} {'worst s':>8}")
    for name, seconds in found.items():
        print(f"{name:15} {len(seconds):5} {statistics.median(seconds):9.2f} {max(seconds):8.2f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
