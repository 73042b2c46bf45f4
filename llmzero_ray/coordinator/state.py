"""The state of one search, and the properties derived from it.

Only `CoordinatorCore` and the functions of this package that it calls change a state; everyone else reads it.
Not here: state changes (core.py), commands (next_commands.py).
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
from llmzero_ray.search import SearchMethod
from llmzero_ray.storage import SearchPaths


class SearchState:
    """The state of one search. `paths` are the present locations of its files, which may differ from those at
    the time the journal was written.

    `config`, `search`, `planner` and `final` are there once the search has started.
    """

    config: SearchConfig
    search: SearchMethod
    """Decides which run begins next, and knows all nodes."""
    planner: Planner
    final: FinalEvaluation

    def __init__(self, paths: SearchPaths) -> None:
        self.paths = paths
        self.runs: dict[int, PhaseRun] = {}
        """Nodes of the tree by id, and the reference run."""
        self.slots: list[SlotState] = []
        self.ending: str | None = None
        """Reason to end the search as soon as no phase trains."""
        self.end_reason: str | None = None
        """Why the search has ended; set once no phase trains."""
        self.interrupted: tuple[str, int] | None = None
        """Reason and exit code of a pause or an abort, until the next coordinator takes over."""
        self.finished: ev.SearchFinished | None = None
        self.n_extensions = 0
        """How often the search went on after it had ended."""
        self.extension_wanted = False
        """Whether a limit was raised while the final evaluation was under way: the search goes on after
        it."""
        self.problem: str | None = None
        """Error of writing the outcome; empty: none."""
        self.gpu_hours = 0.0
        """Of all phases of the search that have ended, lost attempts included; the reference is not
        counted."""
        self.reference_gpu_hours = 0.0
        """Of the reference runs that have ended: a search that is extended may train a longer one."""
        self.meter = Meter(0)
        """GPU hours for which slots were reserved, whatever they did."""
        self.memory: SearchMemory | None = None
        """Judges whether phases fit into GPU memory; None: they are not judged."""
        self.active_time = ActiveTime()
        """Seconds with a live coordinator."""
        self.hints: list[str] = []
        """The user's hints to the proposer, oldest first."""
        self.clones: list[ev.CloneAsked] = []
        """Clones that the user requested and no slot has started yet."""
        self.stop_deadline_s: float | None = None
        """Seconds that running phases may take to end after a user's stop."""
        self.now = 0.0
        """Unix seconds of the newest event."""
        self.slots_needed = False
        """Whether all slots are to be reserved: from the start, or since a phase could begin and none was
        idle."""
        self.n_settings = 0
        """How often settings were changed."""
        self.deletions: list[ev.CheckpointsDeleted] = []
        self.avoided_nodes: frozenset[str] = frozenset()
        """Ray's ids (hex) of the machines on which a card failed."""
        self.dollars = 0.0
        """Cost of all agent calls, in dollars."""
        self.n_calls = 0
        """Number of agent calls."""
        self.initialization: ev.InitializationStarted | None = None
        """What the task is drafted from; None: the search did not begin with a folder."""
        self.n_initializations = 0
        """How often the user's decisions on it changed, the first time included."""
        self.drafted: ev.TaskDrafted | None = None
        """The draft of these decisions; None: there is none yet."""
        self.confirmed: ev.InitializationConfirmed | None = None
        """The user's consent to that draft."""
        self.started: ev.SearchStarted | None = None
        self.n_ended = 0
        """Nodes of the tree that have an outcome."""
        self.n_interruptions = 0
        """How often a coordinator left an unfinished search."""
        self.written = False
        """Whether the outcome is on the disk."""

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
        """The best-scored node so far; once the search has ended, the winner."""
        if self.started is None:
            return None
        if self.end_reason is not None and self.final.winner is not None:
            return self.runs[self.final.winner]
        best = self.search.best
        return None if best is None else self.runs[best.id]

    @property
    def reference(self) -> PhaseRun | None:
        """The reference run; None before it is scheduled."""
        return self.runs.get(REFERENCE)

    @property
    def compute(self) -> float:
        """What all phases of the search that have ended computed, in the unit of `budget.compute`; the
        reference is not counted."""
        outcomes = (run.outcome for run in self.runs.values() if run.node != REFERENCE)
        return spent(outcomes, token_cost(self.config))

    @property
    def rolling_freq(self) -> int:
        """Steps between two full checkpoints of a running phase; 0: none."""
        wanted = self.config.checkpoints.rolling_freq
        return self.config.phase.save_freq if wanted is None else wanted

    def offered(self, node: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a node may resume from, in order of training."""
        return self.search.offered_checkpoint_nodes(node)

    @property
    def open_slots(self) -> list[SlotState]:
        """Slots that can be given work."""
        return self.slots[: self.config.slots.count]

    @property
    def wanted_slots(self) -> list[int]:
        """Indices of the slots that are to have a runner: as many as are set, and those beyond that still
        work. With `slots.reserve: when_needed` no more than had one and the first, until more are needed.
        Once only the winner's final evaluation is left, no more than have work; slots that searches share are
        kept for the next one."""
        working = [slot.index for slot in self.slots if not slot.idle]
        reserved = [
            slot for slot in self.open_slots if self.slots_needed or slot.generation or not slot.index
        ]
        if self.config.slots.shared or self.extension_wanted or not self.final.is_testing:
            return sorted({*working, *(slot.index for slot in reserved)})
        idle = sorted((slot for slot in reserved if slot.idle), key=lambda slot: not slot.ready)
        return sorted([*working, *(slot.index for slot in idle[: self.final.n_waiting])])

    def ending_key(self, key: str) -> str:
        """A key of a command or a conclusion that occurs once per end of the search."""
        return numbered(key, self.n_extensions)

    def fit_slots(self) -> None:
        """Adjust the slots to `slots.count`; surplus ones are closed when idle."""
        self.slots += [SlotState(index=i) for i in range(len(self.slots), self.config.slots.count)]
