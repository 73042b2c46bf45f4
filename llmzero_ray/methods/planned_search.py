"""Base class of search methods that plan their runs themselves: nodes, budget and decisions.

A method implements `next_run`, which returns a `RunPlan`. The budget counts standard phases, not runs: a plan
of two units spends two of them. A failed run counts like any other; nothing is debugged. Not here: the
methods (independent.py, chains.py, halving.py, population.py, suggested.py), proposals (plan_proposer.py).
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llmzero_ray.config.schedule import ParameterRange, Ranges, shipped
from llmzero_ray.config.search_rules import MethodRules, SearchRules
from llmzero_ray.errors import ConfigError, SearchError
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.methods.plan_proposer import PlanProposer
from llmzero_ray.methods.run_plan import RunPlan
from llmzero_ray.methods.values import PlannedStart, check_values, drawn
from llmzero_ray.records import Hyperparameters, HyperparameterValue, NodeKind, PhaseStatus
from llmzero_ray.search.base import Decision, SearchMethod, SearchNode, StopReason, best_scored

if TYPE_CHECKING:
    from llmzero_ray.agents.backend import Agents
    from llmzero_ray.config import SearchConfig
_LEAST = 1e-9
"""Remaining budget in standard phases that counts as zero."""
_MOST_PLANNED = 1000
"""Runs that the check of a new search's plan looks at."""
_BY_USER = RunPlan(source="unchanged", start="last", number=-1, why="asked for by a person")


@dataclass(kw_only=True)
class PlannedNode(SearchNode):
    """One run with its plan. Pruned runs are terminal."""

    plan: RunPlan


def by_user(node: PlannedNode) -> bool:
    """Whether the user requested a run, which is then no part of the method's plan."""
    return node.plan.number == _BY_USER.number


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Facts on which a decision was based, and the run that it plans."""

    begun: int
    """Number of runs begun."""
    units: float
    """Budget that these runs use, in standard phases."""
    budget: int | None
    running: int
    best: float | None
    plan: RunPlan | None
    """The run that begins, or None if there is none."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**vars(self), "plan": None if self.plan is None else self.plan.to_dict()}


class PlannedSearch(SearchMethod[PlannedNode]):
    """Base class of search methods that plan every run themselves. A subclass implements `next_run`.

    `budget` is in standard phases. `seed` is the search's; the same seed gives the same plans. `default` is
    the configuration of the first run, with VeRL's keys.
    """

    plans_its_runs = True

    def __init__(
        self,
        rules: SearchRules,
        budget: int | None = None,
        seed: int = 1,
        default: Hyperparameters | None = None,
    ) -> None:
        self.rules = rules if isinstance(rules, MethodRules) else MethodRules(**rules.model_dump())
        self.budget, self.seed, self.default = budget, seed, default or {}
        self._nodes: dict[int, PlannedNode] = {}

    @abstractmethod
    def next_run(self) -> RunPlan | None:
        """The next run, regardless of the budget, or None if none can begin now.

        The same runs with the same scores must give the same plan, because replaying a journal calls it
        again. None ends the search if no run is running.
        """

    def values(self, plan: RunPlan, at: PlannedStart) -> Mapping[str, HyperparameterValue]:
        """Values in addition to `plan.changes` that depend on where the run starts. By default, random draws
        from `ranges` if the plan's source is `draw`.

        It is called when the run is proposed, on another instance that has `rules` and `seed` but no runs.
        """
        return drawn(self.ranges, at.root, at.rng) if plan.source == "draw" else {}

    @classmethod
    def make_agents(cls, config: SearchConfig, n_val: int, agents: Agents, services: Any) -> Agents:  # noqa: ARG003
        """The backend's agents, with a proposer for planned runs."""
        proposer = PlanProposer(
            config.search.method,
            cls(config.search, None, config.seed).values,
            seed=config.seed,
            n_gpus=config.slots.n_gpus,
            by_compute=config.budget.compute is not None,
        )
        return replace(agents, proposer=proposer)

    @classmethod
    def check_plan(cls, config: SearchConfig) -> None:
        """Check the values of `ranges`, `grid` and `schedule`, and that no run of a new search is planned
        longer than a phase may be. A longer one would be cut, and the budget charged for all of it.

        Runs are planned as if each scored more than the one before.

        Raises:
            ConfigError: a value may not be proposed, or a run is longer than `phase.max_steps`.
        """
        default = root_hyperparameters(config, None)
        check_values(config, default)
        search = cls(config.search, config.budget.runs, config.seed, default)
        for number in range(_MOST_PLANNED):
            decision = search.ask()
            if decision.action == "stop" or decision.action == "wait":
                break
            search.tell(search.create(decision.action, decision.on), "completed", float(number), 1)
        longest = max((node.plan.units for node in search.runs), default=1.0)
        steps = round(longest * config.phase.n_steps)
        if steps > config.phase.max_steps:
            raise ConfigError(
                f"search.method is {config.search.method}, whose longest run has {longest:.3g} x "
                f"phase.n_steps = {steps} steps; phase.max_steps is {config.phase.max_steps} and must be at "
                "least that."
            )

    # --- for `next_run` -------------------------------------------------------------------------------------

    @property
    def runs(self) -> list[PlannedNode]:
        """Runs that were not vetoed, earliest first."""
        return [node for node in self._nodes.values() if not node.pruned]

    @property
    def running(self) -> list[PlannedNode]:
        """Runs that have not ended."""
        return [node for node in self._nodes.values() if node.is_running]

    @property
    def best_ended(self) -> PlannedNode | None:
        """Run with the best score among those that have ended and were not vetoed. The earliest one if none
        has a score. None if none has ended."""
        ended = [node for node in self.runs if not node.is_running]
        return best_scored(ended) or next(iter(ended), None)

    @property
    def left(self) -> float | None:
        """Remaining budget in standard phases, or None if there is no limit."""
        return None if self.budget is None else self.budget - self.units

    @property
    def ranges(self) -> dict[str, ParameterRange]:
        """Hyper-parameter -> range of its values: `search.ranges`, or the ranges that ship."""
        return shipped(Ranges, "relative") if self.rules.ranges is None else self.rules.ranges

    def random(self) -> random.Random:
        """Random generator for the next run, seeded by the search's seed and the number of runs."""
        return random.Random(f"{self.seed}:{len(self._nodes)}")

    def _trained_from(self, node: PlannedNode) -> Iterable[PlannedNode]:
        """Runs that a veto of this run also prunes."""
        return [self._nodes[child] for child in node.children]

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, PlannedNode]:
        """Id -> node, in order of creation. Read-only."""
        return MappingProxyType(self._nodes)

    @property
    def units(self) -> float:
        """Budget that all runs use together, in standard phases."""
        return sum(node.plan.units for node in self._nodes.values())

    # --- ask ------------------------------------------------------------------------------------------------

    def ask(self) -> Decision:
        """Next decision. Does not change the search."""
        left = self.left
        if left is not None and left <= _LEAST:
            return self._decide("stop", reason="budget")
        plan = self.next_run()
        if plan is None:
            return self._decide("wait") if self.running else self._decide("stop", reason="exhausted")
        self._check(plan)
        if left is not None and plan.units > left:
            plan = replace(plan, units=left)
        if not self._nodes:
            return self._decide("root", plan=plan)
        if plan.on is None:
            return self._decide("scratch", on=next(iter(self._nodes)), plan=plan)
        return self._decide("evolve", on=plan.on, plan=plan)

    def _check(self, plan: RunPlan) -> None:
        """Check the result of `next_run`.

        Raises:
            SearchError: it is no RunPlan, `on` does not fit `start`, or it starts from a running run.
        """
        name = f"{type(self).__name__}.next_run"
        if not isinstance(plan, RunPlan):
            raise SearchError(f"{name} returned a {type(plan).__name__}; it must return a RunPlan or None.")
        if (plan.on is None) != (plan.start == "base"):
            raise SearchError(
                f"{name} returned on={plan.on} with start={plan.start!r}; give both `on` and start='best' or "
                "'last', or neither."
            )
        if plan.on is not None and self.node(plan.on).is_running:
            raise SearchError(
                f"{name} starts on run {plan.on}, which still trains; wait for it: return None."
            )

    def _decide(
        self, action: Any, *, on: int | None = None, plan: RunPlan | None = None, reason: Any = None
    ) -> Decision:
        best = self.best
        stop: StopReason | None = reason
        seen = PlanFacts(
            begun=len(self._nodes),
            units=round(self.units, 6),
            budget=self.budget,
            running=len(self.running),
            best=None if best is None else best.score,
            plan=plan,
        )
        return Decision(action=action, on=on, stop_reason=stop, seen=seen)

    def explain(self, decision: Mapping[str, Any]) -> str:
        """Explanation of a decision."""
        seen = decision["seen"]
        limit = "no limit" if seen["budget"] is None else f"{seen['budget']} standard phases"
        spent = f"{seen['begun']} runs begun, {seen['units']:g} of {limit}"
        if seen["plan"]:
            return f"{seen['plan']['why']} ({spent})"
        if decision["action"] == "wait":
            return f"every run that may begin waits for one of {seen['running']} that train ({spent})"
        return f"the budget is spent ({spent})" if decision["stop_reason"] == "budget" else f"done ({spent})"

    # --- begin and tell -------------------------------------------------------------------------------------

    def create(self, kind: NodeKind, on: int | None, node_id: int | None = None) -> int:
        """Begin a run, and return its node id. Its plan is the method's if that has this kind and `on`,
        otherwise one standard phase.

        Raises:
            SearchError: the id is taken, the root is not the first or only one, or `on` is unknown.
        """
        decision = self.ask()
        agrees = (decision.action, decision.on) == (kind, on)
        plan = decision.seen.plan if agrees and isinstance(decision.seen, PlanFacts) else None
        return self._add(kind, on, node_id, plan or _BY_USER)

    def clone(self, parent: int, node_id: int | None = None) -> int:
        """Begin a run below `parent` at the user's request. It uses one standard phase of the budget, even if
        that is spent, because journals have such clones.

        Raises:
            SearchError: the parent is unknown, running or pruned.
        """
        found = self.node(parent)
        if found.is_running or found.pruned:
            state = "running" if found.is_running else "pruned"
            raise SearchError(f"node {parent} is {state}; clone a node that has ended and was not vetoed.")
        return self._add("evolve", parent, node_id, _BY_USER)

    def clone_problem(self) -> str | None:
        """As `SearchMethod.clone_problem`, for a budget in standard phases."""
        if self.left is not None and self.left <= _LEAST:
            return f"all {self.budget} standard phases of the budget are used; raise budget.runs first."
        return None

    def _add(self, kind: NodeKind, on: int | None, node_id: int | None, plan: RunPlan) -> int:
        new = max(self._nodes, default=-1) + 1 if node_id is None else node_id
        if new in self._nodes or (kind == "root") != (not self._nodes) or (kind == "root") != (on is None):
            raise SearchError(f"node {new} does not fit: ids are unique, and the root comes first, once.")
        if on is not None:
            self.node(on).children.append(new)
        self._nodes[new] = PlannedNode(id=new, kind=kind, parent=on, created_on=on, plan=plan)
        return new

    def _finish(self, node_id: int, status: PhaseStatus, score: float | None) -> None:
        node = self._nodes[node_id]
        node.status, node.score = status, score

    def _prune(self, node_id: int) -> list[int]:
        pending, pruned = [self._nodes[node_id]], list[PlannedNode]()
        while pending:
            at = pending.pop()
            at.pruned = at.terminal = True
            pruned.append(at)
            pending += self._trained_from(at)
        return sorted(one.id for one in pruned if one.is_running)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Resume chain of the node's parent. Empty if the node starts from the base model."""
        node = self.node(node_id)
        if node.kind != "evolve" or node.parent is None:
            return ()
        return self.resume_chain(node.parent)
