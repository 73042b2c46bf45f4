"""Ray metrics of a search: gauges named `llmzero_...`, set from the state every half second.

All values follow from the journal and, while a phase trains, from its runner. They are gauges, not counters,
so that a restarted coordinator exports the same numbers. The labels are the search and, for some gauges, a
status, an action, a use or a node. A series ends with the coordinator's process, that of a node with its
phase. Queries use `max by (search, ...)` over the labels that Ray adds (WorkerId, ...).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.records.events import REFERENCE

STATUSES = ("pending", "running", "completed", "early_stopped", "failed", "cancelled")
ACTIONS = ("root", "evolve", "debug", "scratch", "clone", "stop")


class Gauges:
    """Gauges of one search, exported by the process that creates them. `search` is its `name_on_cluster`."""

    def __init__(self, search: str) -> None:
        self._search = search
        self._phases = self._gauge("phases", "Phases of the search tree by status.", "status")
        self._decisions = self._gauge("decisions", "Decisions of the search by action.", "action")
        self._best = self._gauge("best_val_score", "Best validation score of a phase, once there is one.")
        self._hours = self._gauge(
            "gpu_hours", "GPU hours of reserved slots, while phases train and in between.", "use"
        )
        self._calls = self._gauge("agent_calls", "Calls of language-model agents.")
        self._dollars = self._gauge("agent_dollars", "Dollars that these calls cost.")
        self._phase = {
            "step": self._gauge("phase_step", "Global step of a phase that trains.", "node"),
            "reward": self._gauge("phase_reward", "Mean reward of its newest step's answers.", "node"),
            "kl": self._gauge("phase_kl", "KL loss of its newest step.", "node"),
            "val_score": self._gauge("phase_val_score", "Its newest validation score.", "node"),
        }
        """Name in `MetricBuffer.newest` -> gauge. The default recipe's node is `reference`."""

    def observe(
        self,
        core: CoordinatorCore,
        *,
        busy_gpu_hours: float,
        idle_gpu_hours: float,
        newest: Mapping[int, Mapping[str, float]],
    ) -> None:
        """Set all gauges from the state and each node's `MetricBuffer.newest`. Idempotent."""
        runs = [run for run in core.runs.values() if run.node != REFERENCE]
        statuses = Counter(run.status for run in runs)
        for status in STATUSES:
            self._phases.set(statuses[status], {"status": status})
        actions = Counter("clone" if run.clone is not None else run.kind for run in runs)
        actions["stop"] = int(core.end_reason is not None)
        for action in ACTIONS:
            self._decisions.set(actions[action], {"action": action})
        best = core.best
        if best is not None and best.score is not None:
            self._best.set(best.score)
        self._hours.set(busy_gpu_hours, {"use": "busy"})
        self._hours.set(idle_gpu_hours, {"use": "idle"})
        self._calls.set(core.n_calls)
        self._dollars.set(core.dollars)
        for node, values in newest.items():
            if core.runs[node].active:
                for name, value in values.items():
                    self._phase[name].set(value, {"node": "reference" if node == REFERENCE else str(node)})

    def _gauge(self, name: str, description: str, *tags: str) -> Any:
        from ray.util.metrics import Gauge

        gauge = Gauge(f"llmzero_{name}", description, tag_keys=("search", *tags))
        gauge.set_default_tags({"search": self._search})
        return gauge
