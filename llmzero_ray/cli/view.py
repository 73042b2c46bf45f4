"""View of a followed search on a terminal: the live tree, and the outcome at the end.

Steps of scores are global steps, and differences refer to the resumed phase, as in the report:
`0.8320@15  completed  from 0@10: lr 0.001 → 0.0005` resumes step 10 of node 0's phase.

Pure text and rich renderables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from llmzero_ray.cli.event_text import approval_texts, changes_text, global_step, policy_name, score_text
from llmzero_ray.config import TokenCostConfig
from llmzero_ray.coordinator import CoordinatorCore, budget_limits, gpu_hours, time_left
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.coordinator.runs import FinalJob, PhaseRun
from llmzero_ray.dynamics.incumbent import base_problem
from llmzero_ray.hyperparameters.compute import amount, tokens_so_far
from llmzero_ray.records import PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import REWARDS
from llmzero_ray.records.significance import score_interval
from llmzero_ray.search.base import Cut
from llmzero_ray.storage.metric_files import last_written, load_curves
from llmzero_ray.storage.presence import last_heartbeat
from llmzero_ray.utils.text import short_duration

_STYLES = {"completed": "green", "early_stopped": "yellow", "failed": "red", "running": "cyan"}
_LIMITS = {
    "wall_clock": "hours",
    "gpu_hours": "GPU hours",
    "compute": "seconds of compute",
    "dollars": "dollars",
}
"""Limit of a budget -> its unit."""
_MARKS = {
    "completed": "✓",
    "early_stopped": "■",
    "failed": "✗",
    "running": "▶",
    "pending": "…",
    "cancelled": "–",
}


def live_view(follower: Follower, *, now: float | None = None, stage: str | None = None) -> RenderableType:
    """Headline, tree and progress of running phases at the follower's last poll. `stage` overrides the
    journal's stage, for example for an interrupted search, in which nothing trains."""
    core = follower.core
    if core.started is None and core.initialization is not None:
        return Text("\n".join(initialization_lines(core)))
    if core.started is None:
        return Text("waiting for the coordinator ...")
    stage = stage or core.stage
    parts: list[RenderableType] = [headline(follower, now=now, stage=stage)]
    parts += [Text(line, style="yellow") for line in approval_texts(core, to_do=True)]
    if problem := base_problem(base_score(follower)):
        parts.append(Text(problem, style="yellow"))
    # The tree comes last: it may be taller than the terminal, which shows the beginning.
    parts += [_progress(follower, run, stage) for run in _training(core)]
    parts += [Text(line) for line in final_lines(core)]
    if now is not None and stage == "searching":
        parts += [Text(line, style="dim") for line in _outlook(follower, now)]
    if core.search.nodes:
        parts.append(_tree(core, stage))
    return Group(*parts)


def _outlook(follower: Follower, now: float) -> Iterator[str]:
    """Used shares of the limits, time left, and the age of each process's last sign of life."""
    core, worked_s = follower.core, follower.worked_s(now)
    budget = core.config.budget
    shares: list[tuple[str, float, float]] = [("runs", len(core.search.nodes), budget.runs)]
    shares += [
        (_unit(core, kind), used, most)
        for kind, used, most in budget_limits(core, core.config, worked_s=worked_s, now=now)
    ]
    cells = (f"{name} {used:.3g} of {most:g} ({used / most:.0%})" for name, used, most in shares)
    yield f"budget: {', '.join(cells)}"
    seconds, kind = time_left(core, worked_s=worked_s, now=now)
    if math.isfinite(seconds):
        yield f"about {short_duration(seconds)} of training left, until {_unit(core, kind)} end it"
    root = follower.storage.paths.root
    heard = {"coordinator": last_heartbeat(root)}
    heard |= {_named(run): last_written(follower.storage, run.node) for run in _training(core)}
    ages = (f"{who} {short_duration(max(0.0, now - at))} ago" for who, at in heard.items() if at is not None)
    if said := ", ".join(ages):
        yield f"last sign of life: {said}"


def _unit(core: CoordinatorCore, kind: str) -> str:
    """Unit of a limit of the budget."""
    if kind == "compute" and core.config.budget.token_cost == TokenCostConfig():
        return "tokens of compute"
    return _LIMITS.get(kind, kind)


def initialization_lines(core: CoordinatorCore) -> list[str]:
    """Progress of a search's initialization."""
    begun = core.initialization
    assert begun is not None
    stage = "drafted" if core.drafted is not None else "being drafted"
    if core.drafted is not None and core.drafted.problems:
        stage += ", not trainable yet"
    if core.confirmed is not None:
        stage += ", confirmed"
    lines = [f"{core.paths.root.name}  initializing  from {begun.folder}: {begun.sentence}", f"  {stage}"]
    if core.drafted is not None:
        lines += [f"  {line}" for line in (*core.drafted.found, *core.drafted.problems)]
    return lines + ([f"  {core.n_calls} calls, ${core.dollars:.4f}"] if core.n_calls else [])


def progress_lines(follower: Follower) -> list[str]:
    """One line per running phase: its progress, reward and validation score."""
    return [", ".join(filter(None, _training_cells(follower, run))) for run in _training(follower.core)]


def base_score(follower: Follower) -> float | None:
    """Base model's validation score before the root's first step. None unless the root trains and validated
    it."""
    roots = [run.node for run in _training(follower.core) if run.kind == "root"]
    return load_curves(follower.storage, roots[0]).start_score if roots else None


def headline(follower: Follower, *, now: float | None = None, stage: str | None = None) -> Text:
    """One line: name, stage, runs, best score, time and GPU hours."""
    core = follower.core
    best = core.best
    text = Text(core.paths.root.name, style="bold")
    text.append(f"  {stage or core.stage}", style="default")
    text.append(f"  run {len(core.search.nodes)} of {core.config.budget.runs}")
    if best is not None and best.score is not None:
        text.append(f"  best {best.score:.4f}{_confirmed(core)} (node {best.node})", style="green")
    spent = f"{_hours(core, now)}{_dollars(core)}"
    text.append(f"  {short_duration(follower.worked_s(now))}{spent}", style="dim")
    return text


def final_lines(core: CoordinatorCore) -> list[str]:
    """Final scores so far, one line each, with the validation score of a confirmed node."""
    lines = []
    for job in core.final.jobs.values():
        begin = f"{job.split:<5} {policy_name(job.what):<15}"
        if job.score is not None:
            raw = None if job.split == "test" or job.node is None else core.runs[job.node].score
            beside = "" if raw is None else f"{_interval(job)}, validation {raw:.4f}"
            lines.append(f"{begin} {score_text(job.score)}{beside}")
        elif job.problem is not None:
            lines.append(f"{begin} not measured: {job.problem}")
    return lines


def outcome_lines(follower: Follower) -> list[str]:
    """Result of a search that has ended, and the paths of its files."""
    core, paths = follower.core, follower.storage.paths
    finished = core.finished
    assert finished is not None
    lines = [
        f"search {core.paths.root.name} has ended ({finished.reason}) after {len(core.search.nodes)} runs, "
        f"{short_duration(follower.worked_s())}{_hours(core, None)}{_dollars(core)}"
    ]
    if finished.best is None or finished.best_score is None:
        lines.append("no phase has a validation score, so there is no strategy")
    else:
        strategy = " -> ".join(_cut_text(core, cut) for cut in core.search.cuts(finished.best))
        scores = f"validation {finished.best_score:.4f}{_confirmed(core)}"
        lines.append(f"best: node {finished.best}, {scores}; strategy: {strategy}")
        doubted = [core.runs[cut.node] for cut in core.search.cuts(finished.best)]
        lines += [f"IN DOUBT: node {run.node}: {run.doubts[0]}" for run in doubted if run.doubts]
    lines += final_lines(core)
    if core.problem:
        lines.append(f"the outcome could not be written in full: {core.problem}")
    lines += [
        f"{path.name + ':':<15} {path}"
        for path in (paths.strategy, paths.best, paths.report, paths.page)
        if path.exists()
    ]
    return lines


def _confirmed(core: CoordinatorCore) -> str:
    """`, confirmed 0.7910 (95 % 0.7651 to 0.8149)`: the winner's score on fresh items. Empty if it has
    none."""
    job = core.final.confirmation
    return "" if job is None or job.score is None else f", confirmed {job.score.mean:.4f}{_interval(job)}"


def _interval(job: FinalJob) -> str:
    bounds = None if job.measured is None else score_interval(job.measured)
    return "" if bounds is None else f" (95 % {bounds[0]:.4f} to {bounds[1]:.4f})"


def _cut_text(core: CoordinatorCore, cut: Cut) -> str:
    """`node 5 to global step 25`."""
    end = "its end" if cut.step is None else f"global step {global_step(core, cut.node, cut.step)}"
    return f"node {cut.node} to {end}"


def _hours(core: CoordinatorCore, now: float | None) -> str:
    """GPU hours of training, and GPU hours in which reserved slots were idle. Empty for a search in Ray Tune,
    whose phases count none."""
    ended = [run.outcome for run in core.runs.values() if isinstance(run.outcome, PhaseResult)]
    if ended and all(result.gpu_hours == 0 for result in ended):
        return ""
    busy, idle = gpu_hours(core, core.now if now is None else now)
    return f", {busy:.2f} GPU hours (and {idle:.2f} idle)"


def _dollars(core: CoordinatorCore) -> str:
    """Cost of the agents and their cap; empty when no language model was called."""
    limit = core.config.budget.dollars
    return "" if core.n_calls == 0 else f", ${core.dollars:.2f}" + ("" if limit is None else f" of {limit:g}")


# --- the tree -----------------------------------------------------------------------------------------------


def _tree(core: CoordinatorCore, stage: str) -> Tree:
    root = next(iter(core.search.nodes))
    found = Tree(_label(core, core.runs[root], stage), guide_style="dim")
    todo = [(root, found)]
    while todo:
        node, branch = todo.pop()
        for child in core.search.nodes[node].children:
            todo.append((child, branch.add(_label(core, core.runs[child], stage))))
    return found


def _label(core: CoordinatorCore, run: PhaseRun, stage: str) -> Text:
    left = stage == "interrupted" and run.started and run.active
    style = "dim" if left else _STYLES.get(run.status, "dim")
    text = Text(f"{'–' if left else _MARKS.get(run.status, '?')} {run.node}", style=style)
    text.append(f" {run.kind}", style="dim")
    if run.score is not None:
        best = core.best
        is_best = best is not None and best.node == run.node
        text.append(f"  {run.score:.4f}", style="bold green" if is_best else "bold")
        if run.outcome is not None and run.outcome.best_step is not None:
            text.append(f"@{run.base_step + run.outcome.best_step}", style="dim")
    text.append(f"  {'interrupted' if left else _ending(run)}", style=style)
    if (spec := run.shown.spec) is not None:
        text.append(f"  {_origin(spec)}{changes_text(core, spec)}", style="dim")
    if core.search.node(run.node).pruned:
        text.append("  (pruned)", style="dim")
    return text


def _ending(run: PhaseRun) -> str:
    if isinstance(run.outcome, PhaseFailure):
        return f"failed ({run.outcome.failure_class}): {run.outcome.cause}"
    if isinstance(run.outcome, PhaseResult):
        reason = run.outcome.stop_reason
        return run.status if reason == "n_steps" else f"{run.status} ({reason})"
    if run.stage == "proposing":
        return "waits for approval" if run.waits else "being proposed"
    return run.status


def _origin(spec: PhaseSpec) -> str:
    source = spec.resume_from
    return "" if source is None else f"from {source.node}@{source.step}: "


def _training(core: CoordinatorCore) -> list[PhaseRun]:
    return [run for run in core.runs.values() if run.active and run.started]


def _progress(follower: Follower, run: PhaseRun, stage: str) -> RenderableType:
    point, _ = follower.newest(run.node)
    done = 0 if point is None else point.step
    row, cells = Table.grid(padding=(0, 2)), _training_cells(follower, run)
    if stage == "interrupted":
        cells[0] = f"{_named(run)} was interrupted"
    row.add_row(cells[0], ProgressBar(total=_length(follower, run), completed=done, width=24), *cells[1:])
    return row


def _training_cells(follower: Follower, run: PhaseRun) -> list[str]:
    """Cells of a running phase: name, progress, mean reward of the newest step, best validation so far;
    empty cells where there is nothing to say yet."""
    point, best = follower.newest(run.node)
    base = point.val_score if run.kind == "root" and point is not None and point.step == 0 else None
    reward = None if point is None else point.metrics.get(REWARDS[0])
    return [
        f"{_named(run)} in slot {run.slot}",
        "starting" if point is None else f"step {point.step}{_of(follower, run)}",
        "" if reward is None else f"reward {reward:.3f}",
        "" if best is None else f"validation {best:.4f}",
        "" if base is None else f"base model {base:.4f}",
    ]


def _of(follower: Follower, run: PhaseRun) -> str:
    length = _length(follower, run)
    if length is None:
        return ", until its compute is spent"
    ends_early = run.spec is not None and run.spec.compute is not None and length < run.spec.n_steps
    return f"{' of about ' if ends_early else '/'}{length}"


def _named(run: PhaseRun) -> str:
    return "default recipe" if run.node == REFERENCE else f"node {run.node}"


def _length(follower: Follower, run: PhaseRun) -> int | None:
    """Steps of a phase. If its compute may end it, an estimate from the cost of the steps so far, at most its
    own number; None before the first one."""
    if run.spec is None or run.spec.compute is None:
        return 1 if run.spec is None else max(run.spec.n_steps, 1)
    curves, limit = load_curves(follower.storage, run.node), run.spec.compute
    spent = amount(tokens_so_far(run.spec.hyperparameters, curves), limit.cost)
    return min(run.spec.n_steps, round(len(curves.steps) * limit.amount / spent)) if spent > 0 else None
