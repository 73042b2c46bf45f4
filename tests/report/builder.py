"""A search directory as a real search leaves it: its own journal, series, checkpoints and final items.

The core decides; what the agents answer and how training goes is scripted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import CoordinatorCore, build_request
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.journal import Journal
from llmzero_ray.prepared.aggregate import macro_average
from llmzero_ray.records import (
    Checkpoint,
    Event,
    FailureClass,
    ItemOutcome,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    Proposal,
    Saving,
    StopDecision,
)
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.records.metrics import mean_score
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter, compact, load_curves, write_items
from tests.builders import make_config, make_proposal

VERSIONS = {"verl": "0.9.1", "torch": "2.13.0+cpu"}
T0 = 1_700_000_000.0


def items(right: int, n: int = 100, *, first: int = 0) -> tuple[ItemOutcome, ...]:
    """n items of which `right` are solved, from number `first` on."""
    solved = {(first + i) % n for i in range(right)}
    return tuple(
        ItemOutcome(
            index=i, data_source="toy", score=float(i in solved), acc=float(i in solved), response="#1"
        )
        for i in range(n)
    )


@dataclass(kw_only=True)
class Phase:
    """How one phase goes."""

    val: Mapping[int, int] = field(default_factory=dict)
    """Step -> items solved of 100; step 0 is the check before training."""
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """VeRL's name -> one value per step."""
    steps: int | None = None
    """Steps done; None: as many as planned."""
    status: Literal["completed", "early_stopped"] = "completed"
    doubts: tuple[str, ...] | None = None
    stop: StopDecision | None = None
    fails: FailureClass | None = None
    cause: str = "something broke"
    wall_s: float = 100.0
    setup_s: float = 2.0
    warm: bool = True
    saves: Sequence[int] | None = None
    """Steps with an adapter; None: every validated step and the last one."""


Answer = Callable[[Any], Proposal]


class SearchBuilder:
    """Drives a core with its journal in a directory; one slot, a clock of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        config: SearchConfig | None = None,
        task: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config or make_config()
        self.storage = SearchStorage(directory, self.config.name)
        self.root = self.storage.paths.root
        self.journal = Journal(self.root / "journal")
        self.core = CoordinatorCore(self.storage.paths)
        self.now = T0
        self.waiting: dict[str, Command] = {}
        self.answers: dict[int, Proposal | Answer] = {}
        self.phases: dict[int, Phase] = {}
        self.finals: dict[str, Sequence[ItemOutcome]] = {}
        facts = {
            "name": "toy",
            "n_train": 512,
            "n_val": 100,
            "data_sources": ["toy"],
            "model_path": "models/tiny",
        }
        task_facts = dict(task or facts)
        root = root_hyperparameters(self.config, task_facts["n_train"])
        self.storage.adopt_config(self.config)
        self.post(
            ev.SearchStarted(
                config=self.config.to_json(), task=task_facts, root=root, versions=dict(versions or VERSIONS)
            ),
            ev.CoordinatorStarted(epoch=1, host="here", pid=1),
        )

    # --- events and commands --------------------------------------------------------------------------------

    def post(self, *events: Event) -> None:
        """Journal and handle events and all that the core wants recorded; other commands wait."""
        pending = list(events)
        while pending:
            written = self.journal.append(pending.pop(0), now=self.now)
            if written is None:
                continue
            commands = self.core.handle(written)
            pending += [command.event for command in commands if isinstance(command, cmd.Record)]
            self.waiting |= {
                command.id: command for command in commands if not isinstance(command, cmd.Record)
            }

    def ready(self, *, after_s: float = 30.0) -> SearchBuilder:
        """The slot's runner answers."""
        self.now += after_s
        self.post(ev.SlotReady(slot=0))
        return self

    def play(self, *, phases: int | None = None) -> SearchBuilder:
        """Carry out commands until there is none left, or until that many phases have ended."""
        left = phases
        while self.waiting:
            command = self.waiting.pop(next(iter(self.waiting)))
            if isinstance(command, cmd.Propose | cmd.Analyze):
                self._propose(command)
            elif isinstance(command, cmd.RunPhase):
                if left == 0:
                    self.waiting[command.id] = command
                    break
                self._train(command)
                left = None if left is None else left - 1
            elif isinstance(command, cmd.Evaluate):
                self._evaluate(command)
            elif isinstance(command, cmd.WriteOutcome):
                break
        return self

    def finish(self) -> None:
        """As if the outcome had been written."""
        self.post(ev.OutcomeWritten())

    # --- carrying out ---------------------------------------------------------------------------------------

    def _propose(self, command: cmd.Propose | cmd.Analyze) -> None:
        self.now += 1.0
        answer = self.answers.get(command.node)
        if answer is None:
            self.post(
                ev.ProposalFailed(node=command.node, reason="nothing was scripted", tries=command.tries)
            )
            return
        request = build_request(self.core, command, lambda node: load_curves(self.storage, node))
        proposal = answer if isinstance(answer, Proposal) else answer(request)
        self.post(ev.Proposed(node=command.node, proposal=proposal, tries=command.tries))

    def start(self, command: cmd.RunPhase) -> None:
        """The runner is handed the phase."""
        spec = command.spec
        self.storage.write_spec(spec)
        self.post(ev.PhaseStarted(node=spec.node, slot=command.slot, phase_attempt=spec.attempt))

    def _train(self, command: cmd.RunPhase) -> None:
        spec, phase = command.spec, self.phases.get(command.spec.node, Phase(val={10: 50, 20: 50}))
        self.start(command)
        self.write_points(spec, phase)
        if phase.stop is not None:
            done = phase.steps or spec.n_steps
            self.post(
                ev.VerdictPosted(
                    node=spec.node,
                    phase_attempt=spec.attempt,
                    step=done - 1,
                    decision=phase.stop,
                    saves=Saving(steps=5, seconds=100.0, share=0.03125),
                    source=f"stopper:{spec.node}",
                )
            )
        self.now += phase.wall_s
        outcome = self.outcome(spec, phase)
        compact(self.storage, spec.node, spec.attempt)
        if isinstance(outcome, PhaseFailure):
            self.post(ev.PhaseFailed(node=spec.node, phase_attempt=spec.attempt, failure=outcome))
        else:
            self.post(ev.PhaseFinished(node=spec.node, phase_attempt=spec.attempt, result=outcome))

    def write_points(self, spec: PhaseSpec, phase: Phase, until: int | None = None) -> None:
        """Metrics, items and adapters of a phase, up to a step."""
        done = phase.steps or spec.n_steps
        with MetricWriter(self.storage, spec.node, spec.attempt) as writer:
            for step in range(0 if 0 in phase.val else 1, min(done, until or done) + 1):
                solved = phase.val.get(step)
                found = () if solved is None else items(solved)
                metrics = {name: values[step - 1] for name, values in phase.metrics.items()} if step else {}
                writer.write(
                    MetricPoint(
                        node=spec.node, attempt=spec.attempt, step=step, global_step=spec.base_step + step,
                        wall_s=float(step), metrics=metrics, items=found,
                        val_score=None if solved is None else solved / 100,
                    )
                )  # fmt: skip
        for step in self.saved(spec, phase):
            save_adapter(self.storage.paths.adapter(spec.node, step), f"node {spec.node} step {step}")

    def saved(self, spec: PhaseSpec, phase: Phase) -> list[int]:
        done = phase.steps or spec.n_steps
        return sorted(phase.saves if phase.saves is not None else {*phase.val, done} - {0})

    def outcome(self, spec: PhaseSpec, phase: Phase) -> PhaseResult | PhaseFailure:
        scored = {step: solved / 100 for step, solved in phase.val.items() if step > 0}
        best = max(scored, key=lambda step: (scored[step], -step), default=None)
        common: dict[str, Any] = {
            "node": spec.node,
            "steps_done": phase.steps or spec.n_steps,
            "best_score": None if best is None else scored[best],
            "best_step": best,
            "start_score": phase.val[0] / 100 if 0 in phase.val else None,
            "checkpoints": tuple(
                Checkpoint(step=step, path="moved since", val_score=scored.get(step))
                for step in self.saved(spec, phase)
            ),
            "wall_s": phase.wall_s,
            "gpu_hours": phase.wall_s / 3600,
            "warm": phase.warm,
            "cold_reason": None if phase.warm else "first phase",
        }
        if phase.fails is not None:
            return PhaseFailure(
                failure_class=phase.fails, cause=phase.cause, log_tail="Traceback ...", **common
            )
        run = self.core.runs[spec.node]
        return PhaseResult(
            status=phase.status,
            stop_reason=run.stop_reason or "n_steps",
            final_score=scored[max(scored)] if scored else None,
            doubts=phase.doubts,
            train_wall_s=phase.wall_s - phase.setup_s,
            setup_s=phase.setup_s,
            **common,
        )

    def _evaluate(self, command: cmd.Evaluate) -> None:
        self.now += 5.0
        found = self.finals.get(command.what)
        if found is None:
            self.post(ev.FinalFailed(what=command.what, reason="nothing was scripted"))
            return
        write_items(self.storage.paths.final(command.what), found)
        score = mean_score([item.acc for item in found])
        macro = macro_average((item.data_source, item.acc) for item in found)
        self.post(
            ev.FinalScored(
                what=command.what, split=command.split, n=len(found), mean=score.mean,
                standard_error=score.standard_error or 0.0,
                adapter=command.adapter, node=command.node, step=command.step,
                macro=macro.mean if macro else None,
                macro_error=macro.standard_error if macro else None,
            )
        )  # fmt: skip


def save_adapter(directory: Path, content: str) -> None:
    """An adapter as the engine saves it: two files, and a manifest with their checksums."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "adapter_config.json": json.dumps({"peft_type": "LORA", "r": 8}),
        "adapter_model.safetensors": f"weights of {content}",
    }
    for name, text in files.items():
        (directory / name).write_text(text)
    digests = {name: sha256(text.encode()).hexdigest() for name, text in files.items()}
    (directory / "manifest.json").write_text(json.dumps({"format": 1, "sha256": digests}))


def proposal(**changes: Any) -> Proposal:
    """A proposal with evidence; `resume`, `n_steps` and hyper-parameters by name."""
    made = make_proposal(**changes)
    seen = dataclasses.replace(made.diagnosis, evidence=("validation 0.500@10, 0.500@20",))
    return dataclasses.replace(made, diagnosis=seen)
