"""One synthetic search under the real tree search and the real stopping policy, for stop_calls.py.

A phase is judged step by step as the stopper would do it. Phases are seeded by their place in the tree, so
that all arms see the same phase at the same place. Not here: the curves' model (stop_curves.py), figures
(stop_calls.py).
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.stop_curves import Phase, World, make_phase, make_world
from llmzero_ray.agents.base import EarlyStopper, NodeView, StopRequest, TaskView
from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.records import StopDecision
from llmzero_ray.search import TreeSearch
from llmzero_ray.stopping.curve_bank import CurveBank
from llmzero_ray.stopping.policy import CURVE_BANK, StoppingPolicy
from llmzero_ray.stopping.settings import StopperSettings


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Cadence of a search."""

    n_steps: int
    test_freq: int
    interval_steps: int
    min_steps: int
    n_val: int
    runs: int = 16


REGIMES = {
    # Validated and judged often, as the paper does; this project's defaults; its demo.
    "dense": Regime(n_steps=60, test_freq=5, interval_steps=5, min_steps=10, n_val=500),
    "long": Regime(n_steps=120, test_freq=10, interval_steps=20, min_steps=10, n_val=500),
    "defaults": Regime(n_steps=40, test_freq=10, interval_steps=20, min_steps=10, n_val=512),
    "demo": Regime(n_steps=20, test_freq=5, interval_steps=3, min_steps=5, n_val=256, runs=8),
}


@dataclass(kw_only=True)
class Tally:
    """What one search did."""

    due: int = 0
    calls: int = 0
    steps: int = 0
    stopped: int = 0
    winners: int = 0
    """Phases that were judged at least once and, unstopped, win."""
    winners_stopped: int = 0
    true_winners: int = 0
    true_winners_stopped: int = 0
    late_winners_stopped: int = 0
    score: float = 0.0
    by: Counter[str] = field(default_factory=Counter)
    """Decisions at due moments by source and answer."""


@dataclass(kw_only=True)
class Run:
    """A node of the simulated search."""

    view: NodeView
    true: tuple[float, ...]
    path: tuple[tuple[int, float], ...]
    """(global step, validation) of the phases below its resume point."""
    place: str
    """Its position in the tree: the seed of its phase."""


class Foresight:
    """An ideal agent: STOP iff no later validation of this phase has a true score above the record's."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.record = 0.0

    def judge(self, request: StopRequest) -> StopDecision:
        """STOP or CONTINUE by the true curve."""
        assert self.phase is not None
        c = request.running.curves
        later = [self.phase.true[s] for s in self.phase.curves.val_steps if s >= c.steps[-1]]
        hopeless = max(later, default=0.0) <= self.record
        return StopDecision(stop=hopeless, reason="foreseen", rule="early_stopper")


class Search:
    """One synthetic search under one arm, within so many runs or trained steps."""

    def __init__(
        self, seed: int, regime: Regime, arm: str, agent: str, *, max_steps: int | None = None
    ) -> None:
        self._seed, self._regime, self._max_steps = seed, regime, max_steps
        self._world: World = make_world(random.Random(f"world {seed}"), regime.n_val)
        self._settings = StopperSettings(
            interval_steps=regime.interval_steps,
            min_steps=regime.min_steps,
            bank_stop=arm.startswith("bank_stop"),
        )
        bank = CurveBank(n_val=regime.n_val)
        self._bank = bank if arm.startswith("bank") else None
        self._foresight = Foresight()
        known: EarlyStopper = (
            self._foresight if agent == "foresight" else ExpertEarlyStopper(n_val=regime.n_val)
        )
        self._policy = StoppingPolicy(self._settings, None if arm == "never" else known, self._bank)
        self._task = TaskView(
            name="synthetic",
            n_train=4096,
            phase_steps=regime.n_steps,
            max_phase_steps=regime.n_steps,
            max_model_len=2048,
            max_prompt_length=1024,
        )
        self.runs: dict[int, Run] = {}
        self.tally = Tally()
        self._best: Run | None = None
        if self._bank is not None and arm.endswith("+earlier"):
            earlier = Search(seed + 1_000_000, regime, "never", "expert")
            earlier._world = self._world
            earlier.finish()
            for run in earlier.runs.values():
                self._bank.add(run.view, search="earlier")

    def finish(self) -> Tally:
        """Run the whole search."""
        unlimited = self._max_steps is None
        search = TreeSearch(budget=self._regime.runs if unlimited else None)
        tries: Counter[tuple[str, int | None]] = Counter()
        while unlimited or self.tally.steps < (self._max_steps or 0):
            decision = search.ask()
            if decision.action == "stop":
                break
            node = search.begin(decision)
            on = None if decision.action in ("root", "scratch") else self.runs[decision.on or 0]
            key = ("scratch", None) if on is None else ("evolve", on.view.node)
            run, phase = self._begin(node, on, decision.action, tries[key])
            tries[key] += 1
            self.runs[node] = run
            done = self._train(run, phase)
            search.tell(node, "early_stopped" if done.status == "early_stopped" else "completed", done.score)
            run.view = done
            if self._bank is not None:
                self._bank.add(done)
            if done.score is not None and (self._best is None or done.score > (self._best.view.score or 0.0)):
                self._best = run
        self.tally.score = self._true_best()
        return self.tally

    def _begin(self, node: int, on: Run | None, action: str, nth: int) -> tuple[Run, Phase]:
        """A node below `on` (from its best step), or from scratch, and its phase."""
        n = self._regime.n_steps
        if self._max_steps is not None:
            n = max(self._regime.test_freq, min(n, self._max_steps - self.tally.steps))
        step = 0 if on is None else on.view.best_step or 0
        base = 0 if on is None else on.view.base_step + step
        start = self._world.base if on is None else on.true[step]
        place = f"s{nth}" if on is None else f"{on.place}/{step}.{nth}"
        rng = random.Random(f"{self._seed} {place}")
        phase = make_phase(
            self._world,
            rng,
            start=start,
            base_step=base,
            n=self._regime.n_steps,
            test_freq=self._regime.test_freq,
        )
        kept = () if on is None else (*on.path, *_global(on.view, step))
        view = NodeView(
            node=node, kind=action, status="running", hyperparameters={}, n_steps=n, base_step=base
        )
        return Run(view=view, true=phase.true, path=kept, place=place), phase

    def _train(self, run: Run, phase: Phase) -> NodeView:
        """The phase step by step, judged where it is due."""
        self._foresight.phase = phase
        self._foresight.record = self._true_best() if self._best is not None else 0.0
        n, status, judged, target = run.view.n_steps, "completed", False, 0.0
        # Steps between two events change nothing: rules are looked at where a validation or a question is.
        for step in range(1, n + 1):
            running = dataclasses.replace(run.view, curves=phase.until(step))
            incumbent = None if self._best is None else self._best.view
            if step < n and step % self._regime.test_freq == 0 and self._policy.check_rules(running.curves):
                n, status = step, "early_stopped"
                break
            if step >= n or not self._policy.is_due(running, incumbent):
                continue
            assert self._best is not None and incumbent is not None
            judged, target = True, incumbent.score or 0.0
            decision = self._ask(running, incumbent)
            if decision.stop:
                n, status = step, "early_stopped"
                self._note_winner(phase, run.view.n_steps, step, target, stopped=True)
                break
        if judged and status == "completed":
            self._note_winner(phase, run.view.n_steps, 0, target, stopped=False)
        self.tally.steps += n
        self.tally.stopped += status == "early_stopped"
        self._policy.forget(run.view.node)
        curves = phase.until(n)
        score = max(curves.val_scores, default=None)
        best_step = curves.val_steps[curves.val_scores.index(score)] if score is not None else None
        return dataclasses.replace(
            run.view, status=status, n_steps=n, curves=curves, score=score, best_step=best_step
        )

    def _ask(self, running: NodeView, incumbent: NodeView) -> StopDecision:
        assert self._best is not None
        path = (*self._best.path, *_global(incumbent, incumbent.best_step or 0, whole=True))
        request = StopRequest(task=self._task, running=running, incumbent=incumbent, incumbent_path=path)
        decision = self._policy.decide(request)
        self.tally.due += 1
        self.tally.calls += decision.rule != CURVE_BANK
        category = decision.rule
        if decision.rule == CURVE_BANK and self._bank is not None:
            answer = self._bank.judge(request, may_stop=self._settings.bank_stop)
            category += ": nothing new" if answer.answer == "ask" else f": {answer.category}"
        self.tally.by[f"{category} {'STOP' if decision.stop else 'CONTINUE'}"] += 1
        return decision

    def _note_winner(self, phase: Phase, n: int, at: int, target: float, *, stopped: bool) -> None:
        """Count a phase that wins if it runs on; `at`: the step at which it was stopped."""
        scores = [
            (score, step)
            for step, score in zip(phase.curves.val_steps, phase.curves.val_scores, strict=True)
            if at < step <= n
        ]
        score, step = max(scores, default=(0.0, 0))
        won = score > target
        truly = won and phase.true[step] > self._foresight.record + 0.01
        self.tally.winners += won
        self.tally.true_winners += truly
        self.tally.winners_stopped += won and stopped
        self.tally.true_winners_stopped += truly and stopped
        self.tally.late_winners_stopped += truly and stopped and phase.kind == "late"

    def _true_best(self) -> float:
        """True score of the checkpoint a user would get: the one with the best validation."""
        best = self._best
        return self._world.base if best is None else best.true[best.view.best_step or 0]


def _global(view: NodeView, until: int, *, whole: bool = False) -> tuple[tuple[int, float], ...]:
    pairs = zip(view.curves.val_steps, view.curves.val_scores, strict=True)
    return tuple((view.base_step + step, score) for step, score in pairs if whole or step <= until)
