"""A search as large as the page promises to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmzero_ray.records import events as ev
from llmzero_ray.storage.metric_files import write_parquet
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder, proposal
from tests.report.conftest import METRICS


class Large(SearchBuilder):
    """300 nodes of 500 steps; the series of all are the same."""

    N, STEPS = 300, 500

    def __init__(self, directory: Path) -> None:
        phase = {"n_steps": self.STEPS, "max_steps": self.STEPS, "test_freq": 100, "save_freq": 100}
        config = make_config(budget={"runs": self.N + 20}, search={"rho_min": 0.0}, phase=phase)
        super().__init__(directory, config=config)
        self.rows = {
            "attempt": [0] * self.STEPS,
            "step": list(range(1, self.STEPS + 1)),
            "global_step": list(range(1, self.STEPS + 1)),
            "wall_s": [float(step) for step in range(self.STEPS)],
            "val_score": [0.5 if step % 100 == 0 else None for step in range(1, self.STEPS + 1)],
            **{name: [step % 97 / 97 for step in range(self.STEPS)] for name in METRICS},
        }

    def _propose(self, command: Any) -> None:
        self.now += 1.0
        resume = None if command.from_scratch else (command.on, 100)
        made = proposal(resume=resume, n_steps=self.STEPS, lr=1e-5 * (1 + command.node))
        self.post(ev.Proposed(node=command.node, proposal=made, tries=command.tries))

    def _train(self, command: Any) -> None:
        spec = command.spec
        self.post(ev.PhaseStarted(node=spec.node, slot=command.slot, phase_attempt=spec.attempt))
        own, first = (self.storage.paths.node(node) / "metrics.parquet" for node in (spec.node, 0))
        own.parent.mkdir(parents=True, exist_ok=True)
        if own == first:
            write_parquet(own, self.rows)
        else:
            own.hardlink_to(first)
        self.now += 100.0
        phase = Phase(val={step: 40 + (spec.node * 7 + step // 50) % 50 for step in range(100, 501, 100)})
        result = self.outcome(spec, phase)
        self.post(ev.PhaseFinished(node=spec.node, phase_attempt=spec.attempt, result=result))
