"""The state of one search, and the properties derived from it.

Only `CoordinatorCore` and its functions in this package change a state; all other code only reads it.
"""

from __future__ import annotations

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.final_evaluation import FinalEvaluation, numbered
from llmzero_ray.coordinator.meter import Meter
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.coordinator.runs import PhaseRun, SlotState
from llmzero_ray.estimate import SearchMemory
from llmzero_ray.hyperparameters.compute import spent, token_cost
from llmzero_ray.journal import ActiveTime
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.search import SearchMethod, SearchNode
from llmzero_ray.storage import SearchPaths


class SearchState:
    """The state of one search. `paths` are the current locations of its files; the directory may have moved
    since the journal was written.

    `config`, `search`, `planner` and `final` are set once the search has started.
    """

    config: SearchConfig
    search: SearchMethod[SearchNode]
    """Search method: decides which run begins next, and holds all nodes."""
    planner: Planner
    final: FinalEvaluation

    def __init__(self, paths: SearchPaths) -> None:
        self.paths = paths
        self.runs: dict[int, PhaseRun] = {}
        """Nodes of the tree by id, and the reference run."""
        self.slots: list[SlotState] = []
        self.ending: str | None = None
        """Reason for which the search will end as soon as no phase trains."""
        self.end_reason: str | None = None
        """Reason why the search has ended. Set once no phase trains."""
        self.interrupted: tuple[str, int] | None = None
        """Reason and exit code of a pause or an abort, until the next coordinator takes over."""
        self.finished: ev.SearchFinished | None = None
        self.n_extensions = 0
        """Number of times that the search was extended after its end."""
        self.extension_wanted = False
        """Whether a limit was raised during the final evaluation, so that the search continues after it."""
        self.problem: str | None = None
        """Error of writing the outcome, or None."""
        self.gpu_hours = 0.0
        """GPU hours of all ended phases of the search, including lost and interrupted attempts, without the
        reference."""
        self.reference_gpu_hours = 0.0
        """GPU hours of all ended or interrupted reference runs. An extended search may train a longer
        reference."""
        self.meter = Meter(0)
        """GPU hours for which slots were reserved, busy or idle."""
        self.memory: SearchMemory | None = None
        """Memory estimate that checks whether phases fit. If None, phases are not checked."""
        self.active_time = ActiveTime()
        """Seconds with a live coordinator."""
        self.hints: list[str] = []
        """The user's hints to the proposer, oldest first."""
        self.approvals: list[str] = []
        """The user's refusals and edits of proposals with their reasons, oldest first."""
        self.clones: list[ev.CloneAsked] = []
        """The user's clone requests that have not begun, oldest first."""
        self.stop_deadline_s: float | None = None
        """Seconds that running phases may take to end after a user's stop."""
        self.now = 0.0
        """Unix seconds of the newest event."""
        self.slots_needed = False
        """Whether to reserve all slots: from the start, or since a phase could begin but no slot was idle."""
        self.n_settings = 0
        """Number of times that settings were changed."""
        self.void_starts: dict[tuple[int, int], float] = {}
        """(node, attempt) of phases that were cancelled while they were handed to their runners -> Unix time
        of their start."""
        self.deletions: list[ev.CheckpointsDeleted] = []
        self.avoided_nodes: frozenset[str] = frozenset()
        """Ray node ids (hex) of the machines whose GPU failed."""
        self.dollars = 0.0
        """Cost of all agent calls, in dollars."""
        self.n_calls = 0
        """Number of agent calls."""
        self.initialization: ev.InitializationStarted | None = None
        """Folder from which the task is drafted, or None if the search did not begin with a folder."""
        self.n_initializations = 0
        """Number of times that initialization was started."""
        self.drafted: ev.TaskDrafted | None = None
        """Current draft, or None if there is none yet."""
        self.confirmed: ev.InitializationConfirmed | None = None
        """The user's confirmation of that draft."""
        self.started: ev.SearchStarted | None = None
        self.n_ended = 0
        """Number of nodes that have an outcome."""
        self.n_interruptions = 0
        """Number of pauses and aborts."""
        self.written = False
        """Whether the outcome is on disk."""

    @property
    def stage(self) -> str:
        """new, initializing, searching, measuring, writing, finished or interrupted."""
        if self.started is None:
            return "new" if self.initialization is None else "initializing"
        if self.interrupted is not None:
            return "interrupted"
        if self.finished is not None:
            return "finished"
        if self.end_reason is None:
            return "searching"
        return "writing" if self.final.done else "measuring"

    @property
    def best(self) -> PhaseRun | None:
        """Run of the best-scored node so far, or of the winner once it is known."""
        if self.started is None:
            return None
        if self.end_reason is not None and self.final.winner is not None:
            return self.runs[self.final.winner]
        best = self.search.best
        return None if best is None else self.runs[best.id]

    @property
    def reference(self) -> PhaseRun | None:
        """The reference run, or None before it is scheduled."""
        return self.runs.get(REFERENCE)

    @property
    def compute(self) -> float:
        """Compute of all ended phases of the search without the reference, in the unit of
        `budget.compute`."""
        outcomes = (run.outcome for run in self.runs.values() if run.node != REFERENCE)
        return spent(outcomes, token_cost(self.config))

    @property
    def rolling_freq(self) -> int:
        """Steps between two full checkpoints of a running phase, or 0 if none are saved."""
        wanted = self.config.checkpoints.rolling_freq
        return self.config.phase.save_freq if wanted is None else wanted

    def offered(self, node: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a node may resume from, in order of training."""
        return self.search.offered_checkpoint_nodes(node)

    @property
    def open_slots(self) -> list[SlotState]:
        """Slots that accept work."""
        return self.slots[: self.config.slots.count]

    @property
    def wanted_slots(self) -> list[int]:
        """Indices of the slots that should have a runner: the first `slots.count`, and others that are still
        busy. With `slots.reserve: when_needed`, only the first slot and those that had a runner, until more
        are needed. Once the winner is tested, only as many as have work."""
        working = [slot.index for slot in self.slots if not slot.idle]
        reserved = [
            slot for slot in self.open_slots if self.slots_needed or slot.generation or not slot.index
        ]
        if self.extension_wanted or not self.final.is_testing:
            return sorted({*working, *(slot.index for slot in reserved)})
        idle = sorted((slot for slot in reserved if slot.idle), key=lambda slot: not slot.ready)
        return sorted([*working, *(slot.index for slot in idle[: self.final.n_waiting])])

    def stop_or_cancel(self, run: PhaseRun, reason: str) -> None:
        """Request a stop of a phase that has started, or cancel one that has not."""
        if run.started or run.has_result:
            run.stop_reason = run.stop_reason or reason
        elif run.salvaged is not None:  # it ends with what an earlier attempt had saved
            run.stop_reason, run.given_up = run.stop_reason or reason, True
        else:
            run.stage = "cancelled"
            self.slots[run.slot].node = None

    def ending_key(self, key: str) -> str:
        """Key of a command or conclusion that occurs once per end of the search."""
        return numbered(key, self.n_extensions)

    def fit_slots(self) -> None:
        """Add slots up to `slots.count`. Surplus slots close once they are idle."""
        self.slots += [SlotState(index=i) for i in range(len(self.slots), self.config.slots.count)]
