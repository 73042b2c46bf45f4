"""Small builders shared by tests: configurations, proposals, results, and a core driven as its actor drives
it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.records import (
    Change,
    Checkpoint,
    Diagnosis,
    Event,
    FailureClass,
    PhaseFailure,
    PhaseResult,
    Proposal,
    ResumeFrom,
    from_json,
    to_json,
)
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.storage import SearchPaths

ROOT = Path("/storage/demo")
LR = "actor_rollout_ref.actor.optim.lr"
TASK = {"name": "toy", "n_train": 512, "data_sources": ["toy"]}


def make_config(**blocks: Any) -> SearchConfig:
    """A small search: 4 runs of 20 steps, validated every 10."""
    base = {
        "name": "demo",
        "budget": {"runs": 4},
        "phase": {"n_steps": 20, "max_steps": 60, "test_freq": 10, "save_freq": 10},
        "root": {"overrides": {"lr": 1e-3, "train_batch_size": 16, "n": 4}},
        "engine": {"max_prompt_length": 512, "max_response_length": 1024},
        "eval": {"max_response_length": 1024},
    }
    return parse_config(with_blocks(base, blocks))


def with_blocks(base: Mapping[str, Any], blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data of a configuration: the keys of `blocks` beside those that its blocks in `base` have."""
    found = dict(base)
    for key, value in blocks.items():
        merged = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = {**found[key], **value} if merged else value
    return found


def make_proposal(
    *, resume: tuple[int, int] | None = None, n_steps: int = 20, lr: float | None = 5e-4, **changes: Any
) -> Proposal:
    named = changes if lr is None else {"lr": lr, **changes}
    return Proposal(
        diagnosis=Diagnosis(state="plateau", summary="flat since step 10"),
        changes=tuple(Change(key=k, old=None, new=v, reason="because") for k, v in named.items()),
        resume_from=None if resume is None else ResumeFrom(node=resume[0], step=resume[1]),
        n_steps=n_steps,
        rationale="a test",
    )


def make_result(
    node: int,
    *,
    score: float | None = 0.5,
    best_step: int | None = 20,
    saved: Iterable[int] = (10, 20),
    status: Literal["completed", "early_stopped"] = "completed",
    stop_reason: str = "n_steps",
    gpu_hours: float = 0.0,
) -> PhaseResult:
    return PhaseResult(
        node=node,
        status=status,
        stop_reason=stop_reason,
        steps_done=20,
        best_score=score,
        best_step=None if score is None else best_step,
        start_score=0.2,
        final_score=score,
        checkpoints=tuple(Checkpoint(step=step, path=f"/elsewhere/{node}/{step}") for step in saved),
        wall_s=60.0,
        train_wall_s=50.0,
        gpu_hours=gpu_hours,
        warm=True,
    )


def make_scored(what: ev.FinalWhat, mean: float = 0.5) -> ev.FinalScored:
    return ev.FinalScored(
        what=what, split="test", n=512, mean=mean, standard_error=0.02, adapter=None, node=None, step=None
    )


def make_failure(
    node: int,
    *,
    failure_class: FailureClass = "engine",
    score: float | None = None,
    saved: Iterable[int] = (),
) -> PhaseFailure:
    return PhaseFailure(
        node=node,
        failure_class=failure_class,
        cause="something broke",
        log_tail="...",
        best_score=score,
        best_step=None if score is None else 10,
        checkpoints=tuple(Checkpoint(step=step, path=f"/elsewhere/{node}/{step}") for step in saved),
    )


class Driver:
    """A core with a journal in memory: records what it concludes, and keeps every command it gives."""

    def __init__(
        self,
        config: SearchConfig | None = None,
        memory: Mapping[str, Any] | None = None,
        agents: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config or make_config()
        self.core = CoordinatorCore(SearchPaths(root=ROOT))
        self.journal: list[Event] = []
        self.commands: list[Command] = []
        self.deliveries: set[tuple[str, int, int]] = set()
        self.now = 0.0
        """Time that events are written with."""
        root = root_hyperparameters(self.config, TASK["n_train"])  # type: ignore[arg-type]
        self.post(
            ev.SearchStarted(
                config=self.config.to_json(),
                task=TASK,
                root=root,
                versions={},
                agents=agents or {},
                memory=memory or {},
            ),
            ev.CoordinatorStarted(epoch=1, host="here", pid=1),
        )

    def post(self, *events: Event) -> list[Command]:
        """Journal and handle events, and everything the core wants recorded on the way; the other
        commands."""
        given: list[Command] = []
        pending = list(events)
        while pending:
            event = self._written(pending.pop(0))
            if event is None:
                continue
            fresh = self.core.handle(event)
            pending = [c.event for c in fresh if isinstance(c, cmd.Record)] + pending
            given += [c for c in fresh if not isinstance(c, cmd.Record)]
        self.commands += given
        return given

    def _written(self, event: Event) -> Event | None:
        """The event as the journal gives it back; None for a delivery it has."""
        if event.source == "coordinator":
            event = dataclasses.replace(event, sequence=len(self.journal) + 1)
        delivery = (event.source, event.attempt, event.sequence)
        if delivery in self.deliveries:
            return None
        self.deliveries.add(delivery)
        event = dataclasses.replace(event, time=self.now)
        found: Event = from_json(json.loads(json.dumps(to_json(event))))
        self.journal.append(found)
        return found

    # --- shorthand ------------------------------------------------------------------------------------------

    def ready(self, *slots: int) -> list[Command]:
        return self.post(*(ev.SlotReady(slot=slot) for slot in slots or (0,)))

    def propose(self, node: int, proposal: Proposal | None = None, tries: int = 0) -> list[Command]:
        """`proposal`, or one of the node's own: a copy of another phase is refused."""
        own = make_proposal(lr=5e-4 + 1e-6 * (node - 1))
        return self.post(ev.Proposed(node=node, proposal=proposal or own, tries=tries))

    def start(self, node: int) -> list[Command]:
        run = self.core.runs[node]
        return self.post(ev.PhaseStarted(node=node, slot=run.slot, phase_attempt=run.attempt))

    def finish(self, node: int, **result: Any) -> list[Command]:
        attempt = self.core.runs[node].attempt
        return self.post(
            ev.PhaseFinished(node=node, phase_attempt=attempt, result=make_result(node, **result))
        )

    def fail(self, node: int, **failure: Any) -> list[Command]:
        attempt = self.core.runs[node].attempt
        return self.post(
            ev.PhaseFailed(node=node, phase_attempt=attempt, failure=make_failure(node, **failure))
        )

    def lose(self, slot: int = 0, reason: str = "its process died", restart_step: int = 0) -> list[Command]:
        node = self.core.slots[slot].node
        attempt = 0 if node is None else self.core.runs[node].attempt
        left = None if node is None else make_failure(node, failure_class="resource", saved=(10,))
        return self.post(
            ev.RunnerLost(
                slot=slot,
                node=node,
                phase_attempt=attempt,
                reason=reason,
                salvaged=left,
                restart_step=restart_step,
            )
        )

    def train(self, node: int, **result: Any) -> list[Command]:
        """From a planned phase to its end."""
        self.start(node)
        return self.finish(node, **result)

    def search_to_end(self, scores: Sequence[float]) -> None:
        """A whole search on slot 0, each node proposed, trained and finished with the next score."""
        self.ready()
        for node, score in enumerate(scores):
            if node > 0:
                self.propose(node)
            self.train(node, score=score)

    def only(self, kind: type[Command], commands: list[Command] | None = None) -> Any:
        """The one command of a kind among `commands` (default: all that are outstanding)."""
        among = self.core.outstanding() if commands is None else commands
        found = [command for command in among if isinstance(command, kind)]
        assert len(found) == 1, f"{len(found)} {kind.__name__} among {among}"
        return found[0]

    def none(self, kind: type[Command]) -> bool:
        return not any(isinstance(command, kind) for command in self.core.outstanding())


def verl_settings(**changes: Any) -> VerlSettings:
    """Settings of an engine that trains a tiny model on the CPU; no path exists."""
    given: dict[str, Any] = {
        "platform": "cpu",
        "model_path": "/models/tiny",
        "lora_rank": 8,
        "lora_alpha": 16,
        "train_parquet": "/data/train.parquet",
        "val_parquet": "/data/val.parquet",
        "reward_source": "pkg://llmzero_ray.tasks.rewards.marked_answer",
        "reward_name": "compute_score",
        "max_prompt_length": 32,
        "max_response_length": 64,
        "eval_max_response_length": 24,
        "search": "s",
        "slot": 0,
        "placement_groups": ("00",),
        "log_path": "/tmp/log",
    }
    return VerlSettings(**(given | changes))
