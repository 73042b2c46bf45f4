"""What must hold once a search has ended, whatever was killed while it ran; a check yields what does not.

Checks read the journal, the files and what a witness saw; they need no cluster. Not here: what is left
running (lab.py), who was killed (killer.py).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from llmzero_ray.coordinator import CoordinatorCore, check_decisions, replay
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.journal import read_all
from llmzero_ray.records import MetricPoint
from llmzero_ray.records import events as ev
from llmzero_ray.storage.manifests import problem_of
from llmzero_ray.storage.metric_files import load_items, load_points
from tests.fakes import BASE_SCORE, LR, learn

from .witness import Witness

_SLACK_S = 0.5
"""Clocks of two processes and two kinds are compared."""


def broken(witness: Witness, *, n_val: int) -> list[str]:
    """Everything that does not hold of a search that should have ended by itself."""
    found = list(witness.notes)
    for check in (ended, outcomes_kept, journal_is_the_truth, decisions, budgets, repeats, adapters, tidy):
        found += check(witness)
    for run in witness.core.runs.values():
        if run.outcome is not None:
            found += series(witness, run, n_val)
    return found


def ended(witness: Witness) -> Iterator[str]:
    """It came to its end by itself."""
    core = witness.core
    if core.finished is None:
        yield f"the search has not finished: it is {core.stage} ({core.interrupted})"
    elif core.finished.reason not in ("budget", "exhausted"):
        yield f"the search ended because of {core.finished.reason}"
    if core.problem is not None:
        yield f"the outcome was not written in full: {core.problem}"


def outcomes_kept(witness: Witness) -> Iterator[str]:
    """A node that had an outcome has the same one for ever."""
    for node, before in witness.seen.items():
        run = witness.core.runs.get(node)
        now = None if run is None else run.outcome
        if now != before:
            yield f"node {node}: its outcome was {before}, now it is {now}"
    ended = [
        event.node
        for event in witness.follower.events
        if isinstance(event, ev.PhaseFinished | ev.PhaseFailed)
    ]
    for node, times in Counter(ended).items():
        if times > 1:
            yield f"node {node}: the journal tells its end {times} times"


def journal_is_the_truth(witness: Witness) -> Iterator[str]:
    """Read afresh it gives the search that its followers saw grow."""
    root = witness.storage.paths.root
    try:
        events = read_all(root / "journal")
    except LlmzeroError as error:
        yield f"the journal cannot be read: {error}"
        return
    if events != witness.follower.events:
        yield f"the journal has {len(events)} events, a follower saw {len(witness.follower.events)} or others"
    before, after = state_of(witness.core), state_of(replay(events, root))
    for key in before:
        if before[key] != after[key]:
            yield f"{key} is {after[key]} after a replay, and was {before[key]}"


def decisions(witness: Witness) -> Iterator[str]:
    """Every decision is taken again on the history before it."""
    for check in check_decisions(witness.follower.events, witness.storage.paths.root):
        for difference in check.differences:
            yield f"decision {check.number}: {difference}"


def budgets(witness: Witness) -> Iterator[str]:
    """Runs, busy and reserved GPU hours agree, and no phase was charged more time than it took."""
    core = witness.core
    if len(core.search.nodes) != sum(1 for node in core.runs if node != ev.REFERENCE):
        yield f"the tree has {len(core.search.nodes)} nodes and there are {len(core.runs)} runs"
    budget = core.config.budget.runs
    if core.finished is not None and core.finished.reason == "budget" and len(core.search.nodes) != budget:
        yield f"{len(core.search.nodes)} runs of {budget}, and the budget is used up"
    slack = _SLACK_S / 3600 * core.config.slots.n_gpus
    if core.gpu_hours > core.meter.gpu_hours(core.now) + slack:
        yield f"{core.gpu_hours:.6f} GPU hours were busy, {core.meter.gpu_hours(core.now):.6f} were reserved"
    for node, (charged_s, took_s) in _seconds(witness).items():
        if charged_s > took_s + _SLACK_S:
            yield f"node {node}: {charged_s:.2f} s were charged, its attempts took {took_s:.2f} s"


def repeats(witness: Witness) -> Iterator[str]:
    """A loss costs at most the steps since the full checkpoint before it."""
    freq = witness.core.rolling_freq
    for event in losses(witness):
        lost = steps_lost(event)
        if freq and lost > freq:
            yield f"node {event.node}: {lost} steps are repeated after a loss, {freq} may be"


def adapters(witness: Witness) -> Iterator[str]:
    """What outcomes name is there and sound, unless the journal says that it is gone."""
    for run in witness.core.runs.values():
        for kept in run.checkpoints:
            problem = problem_of(run.adapter(witness.storage.paths, kept.step))
            if problem is not None:
                yield f"node {run.node}: the adapter of step {kept.step} cannot be used: {problem}"
        for step in run.lost_steps:
            if run.adapter(witness.storage.paths, step).exists():
                yield f"node {run.node}: the adapter of step {step} is there, and the journal says it is gone"


def tidy(witness: Witness) -> Iterator[str]:
    """No file that was to be another one, no request, no full checkpoint."""
    root = witness.storage.paths.root
    for path in sorted(root.rglob("*")):
        name = path.name
        if name.endswith((".tmp", ".partial")) or name in ("rolling", ".write_test"):
            yield f"{path.relative_to(root)} is left"
    yield from (f"requests/{path.name} is left" for path in sorted((root / "requests").glob("*.json")))
    if witness.follower.torn:
        yield f"the journal's last file {witness.follower.torn} is torn"


def series(witness: Witness, run: PhaseRun, n_val: int) -> Iterator[str]:
    """One point for each step of a phase, in order, with the items of each validation."""
    assert run.outcome is not None
    points = load_points(witness.storage, run.node)
    steps = [point.step for point in points if point.step > 0]
    if steps != [*range(1, run.outcome.steps_done + 1)]:
        yield f"node {run.node}: {run.outcome.steps_done} steps done, its points are of steps {steps}"
    if [point.step for point in points if point.step == 0] not in ([], [0]):
        yield f"node {run.node}: step 0 was validated more than once"
    items = load_items(witness.storage, run.node)
    for point in points:
        if point.val_score is not None and len(items.get(point.step, ())) != n_val:
            found = len(items.get(point.step, ()))
            yield f"node {run.node}: {found} items of {n_val} at the validation of step {point.step}"
        if run.spec is not None and point.global_step != run.spec.base_step + point.step:
            yield f"node {run.node}: step {point.step} is global step {point.global_step}"


# --- curves -------------------------------------------------------------------------------------------------


def scripted_curves(witness: Witness, script: Mapping[str, Any]) -> Iterator[str]:
    """Each phase of the scripted engine reports what it reports undisturbed, step by step."""
    for run in witness.core.runs.values():
        for point in load_points(witness.storage, run.node) if run.outcome is not None else ():
            expected = scripted_score(witness.core, script, run.node, point.step)
            reward = point.metrics.get("critic/score/mean", expected)
            for name, score in (("reward", reward), ("validation", point.val_score)):
                if score is not None and not math.isclose(score, expected, abs_tol=1e-9):
                    yield f"node {run.node} step {point.step}: {name} {score}, undisturbed it is {expected}"


def scripted_score(core: CoordinatorCore, script: Mapping[str, Any], node: int, step: int) -> float:
    """What the scripted engine scores after a step of a node's phase when nothing happens to it."""
    spec = core.runs[node].spec
    assert spec is not None
    source = spec.resume_from
    start = BASE_SCORE if source is None else scripted_score(core, script, source.node, source.step)
    if step > 0 and node in (script.get("sink") or ()):
        return start * math.exp(-0.3 * step)
    return learn(start, step, float(str(spec.hyperparameters[LR]))) if step else start


def same_curves(one: Witness, other: Witness) -> tuple[int, list[str]]:
    """How many phases two searches have in common (node, configuration, what it resumed, all the way up), and
    where those differ."""
    found, common = list[str](), 0
    for node, run in one.core.runs.items():
        twin = other.core.runs.get(node)
        if twin is None or _origin(one.core, node) != _origin(other.core, node):
            continue
        if run.outcome is None or twin.outcome is None:
            continue
        common += 1
        ours, theirs = (_by_step(load_points(it.storage, node)) for it in (one, other))
        for step in sorted(ours.keys() & theirs.keys()):
            (metrics, score), (expected, undisturbed) = ours[step], theirs[step]
            # A phase that is stopped early may not validate its last step.
            if metrics != expected or (None not in (score, undisturbed) and score != undisturbed):
                found.append(f"node {node} step {step}: {ours[step]}, undisturbed {theirs[step]}")
    return common, found


def _origin(core: CoordinatorCore, node: int) -> Any:
    """All that decides a phase's curve, the phases before it included; None: it has no spec."""
    run = core.runs.get(node)
    if run is None or run.spec is None:
        return None
    spec, source = run.spec, run.spec.resume_from
    own = (node, dict(spec.hyperparameters), spec.n_steps, spec.test_freq, spec.seed)
    return own if source is None else (own, source.step, _origin(core, source.node))


def _by_step(points: tuple[MetricPoint, ...]) -> dict[int, tuple[dict[str, float], float | None]]:
    """Step -> what it reported, clocks left out, and its validation score."""
    timed = ("timing", "perf/")
    return {
        point.step: (
            {name: value for name, value in point.metrics.items() if not name.startswith(timed)},
            point.val_score,
        )
        for point in points
    }


# --- parts --------------------------------------------------------------------------------------------------


def losses(witness: Witness) -> list[ev.RunnerLost]:
    """Runners lost while they trained."""
    found = [event for event in witness.follower.events if isinstance(event, ev.RunnerLost)]
    return [event for event in found if event.node is not None]


def steps_lost(event: ev.RunnerLost) -> int:
    """Steps that were done and are done again."""
    return 0 if event.salvaged is None else max(0, event.salvaged.steps_done - event.restart_step)


def state_of(core: CoordinatorCore) -> dict[str, str]:
    """Everything that a core remembers, as comparable text by part."""
    parts = {
        "tree": [dataclasses.asdict(node) for node in core.search.nodes.values()],
        "runs": [dataclasses.asdict(run) for run in core.runs.values()],
        "slots": [dataclasses.asdict(slot) for slot in core.slots],
        "finals": [dataclasses.asdict(job) for job in core.final.jobs.values()],
        "hours": [core.gpu_hours, core.meter.gpu_hours(core.now)],
        "end": [core.ending, core.end_reason, core.interrupted, core.written, core.problem],
        "asked": [core.hints, core.n_settings, core.n_interruptions],
        "deletions": [dataclasses.asdict(deletion) for deletion in core.deletions],
        "calls": [core.n_calls, core.dollars],
        "outstanding": [repr(command) for command in core.outstanding()],
    }
    return {key: json.dumps(part, sort_keys=True, default=_plain) for key, part in parts.items()}


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else repr(value)


def _seconds(witness: Witness) -> dict[int, tuple[float, float]]:
    """Node -> seconds of training charged for it over all attempts, and seconds in which they can have run.

    What is charged is what the core adds to its hours: the journal tells the time of an attempt again where a
    lost phase is given up, or where an attempt that counts as lost ends after all. A runner may train for a
    while before its coordinator, killed in between, comes to say so: the time counts from the plan.
    """
    charged, planned, ended = Counter[int](), dict[int, float](), dict[int, float]()
    core = CoordinatorCore(witness.storage.paths)
    for event in witness.follower.events:
        before = core.gpu_hours + core.reference_gpu_hours
        core.apply(event)
        hours = core.gpu_hours + core.reference_gpu_hours - before
        if isinstance(event, ev.PhasePlanned):
            planned.setdefault(event.node, event.time)
        if isinstance(event, ev.PhaseFinished | ev.PhaseFailed | ev.RunnerLost) and event.node is not None:
            charged[event.node] += hours * 3600 / core.config.slots.n_gpus
            ended[event.node] = event.time
    return {node: (charged[node], ended[node] - planned.get(node, ended[node])) for node in charged}
