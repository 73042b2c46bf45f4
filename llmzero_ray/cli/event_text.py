"""Events of a search in one line each: for logs and for terminals that cannot redraw."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from llmzero_ray.config.changes import changed_text
from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.coordinator.final_evaluation import POLICY_NAMES
from llmzero_ray.coordinator.proposals import deadline, edits_text, waiting
from llmzero_ray.hyperparameters import diff, format_value, short
from llmzero_ray.records import Event, PhaseSpec
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.stopping.request import saving_text
from llmzero_ray.utils.text import one_line, plural, short_duration, size, whole_sentences

_MAX_CHANGES = 5


def event_line(core: CoordinatorCore, event: Event) -> str | None:
    """One line of text for an event, or None for events that a follower need not see.

    `core` is the state after the event or later.
    """
    describe = _DESCRIPTIONS.get(type(event))
    return None if describe is None else describe(core, event)


def changes_text(core: CoordinatorCore, spec: PhaseSpec) -> str:
    """Differences of a phase's hyper-parameters from the resumed phase, or from the default recipe if it
    starts from scratch, as in the report: `lr 0.001 -> 5e-4, n 4 -> 8`."""
    assert core.started is not None
    source = None if spec.resume_from is None else core.runs[spec.resume_from.node].spec
    changed = diff(core.started.root if source is None else source.hyperparameters, spec.hyperparameters)
    if source is None and not changed:
        return "the root's configuration"
    parts = [
        f"{short(key)} {format_value(key, old)} → {format_value(key, new)}"
        for key, (old, new) in changed.items()
    ]
    more = f" and {len(parts) - _MAX_CHANGES} more" if len(parts) > _MAX_CHANGES else ""
    return ", ".join(parts[:_MAX_CHANGES]) + more if parts else "nothing changed"


def approval_texts(core: CoordinatorCore, *, to_do: bool = False) -> list[str]:
    """A sentence on each proposal that waits for a person. `to_do` adds the command that answers it."""
    root, found = shlex.quote(str(core.paths.root)), []
    for run in waiting(core):
        assert run.asked is not None
        found.append(f"Node {run.node} waits for approval: {_approval(core, run.asked)}.")
        if to_do:
            command = f"llmzero approve {root}:{run.node}"
            found[-1] += f" `{command} [KEY=VALUE ...]` accepts it; --refuse sends it back."
    return found


def _approval(core: CoordinatorCore, asked: ev.ApprovalAsked) -> str:
    """`20 steps from node 0 step 10, lr 0.001 → 5e-4, about 1.2 h; accepted on 2026-11-27 ...`."""
    spec, until = asked.spec, deadline(core, asked)
    what = f"{spec.n_steps} steps from {_start(spec)}, {changes_text(core, spec)}"
    at = "" if until is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(until))
    then = f"accepted on {at} if nobody answers" if at else "no deadline"
    return f"{what}{asked.price and f', {asked.price}'}; {then}"


def _describe_answered(_: CoordinatorCore, event: ev.ApprovalAnswered) -> str:
    what = "refused; it goes back to its author"
    if event.accepted:
        what = f"accepted with {edits_text(event)}" if event.edits else "accepted"
    return f"node={event.node} proposal {what}" + (f": {one_line(event.reason, 120)}" if event.reason else "")


def global_step(core: CoordinatorCore, node: int, step: int) -> int:
    """Global step of a step of a node's phase, as used in reports and displays."""
    return core.runs[node].base_step + step


def _describe_decided(_: CoordinatorCore, event: ev.Decided) -> str:
    if event.action == "stop":
        return f"the search ends: {event.stop_reason}"
    on = "" if event.on is None else f" on node {event.on}"
    return f"node={event.node} decided: {event.action}{on} in slot {event.slot}"


def _describe_refused(_: CoordinatorCore, event: ev.ProposalRefused) -> str:
    return f"node={event.node} proposal refused ({event.tries}): {event.message}"


def _describe_planned(core: CoordinatorCore, event: ev.PhasePlanned) -> str:
    spec = event.spec
    name = "default recipe" if event.node == REFERENCE else f"node={event.node}"
    why = f"; {event.proposal.diagnosis.state}: {event.proposal.diagnosis.summary}" if event.proposal else ""
    note = f" [{event.note}]" if event.note else ""
    return f"{name} planned: {spec.n_steps} steps from {_start(spec)}, {changes_text(core, spec)}{why}{note}"


def _start(spec: PhaseSpec) -> str:
    at = spec.resume_from
    return "the base model" if at is None else f"node {at.node} step {at.step}"


def _describe_corrupt(core: CoordinatorCore, event: ev.CheckpointCorrupt) -> str:
    said = f"adapter of node {event.node} step {event.step} is not used: {event.problem}"
    run = None if event.found_by is None else core.runs.get(event.found_by)
    if run is None or run.spec is None:
        return said
    return f"{said}; {_name(run.node)} starts from {_start(run.spec)}"


def _describe_started(_: CoordinatorCore, event: ev.PhaseStarted) -> str:
    again = f" (attempt {event.phase_attempt})" if event.phase_attempt else ""
    return f"{_name(event.node)} training in slot {event.slot}{again}"


def _describe_finished(core: CoordinatorCore, event: ev.PhaseFinished) -> str:
    result, score = event.result, "no score"
    if result.best_score is not None:
        score = f"validation {result.best_score:.4f}"
        if result.best_step is not None:
            score += f" at global step {global_step(core, event.node, result.best_step)}"
    taken = f", as {_name(result.start_from.node)} had it" if result.start_from is not None else ""
    start = f" (from {result.start_score:.4f}{taken})" if result.start_score is not None else ""
    warmth = "warm" if result.warm else f"cold: {result.cold_reason}"
    return (
        f"{_name(event.node)} {result.status}: {score}{start}, {result.steps_done} steps, "
        f"{short_duration(result.wall_s)} ({warmth}), {result.stop_reason}{doubt_text(result.doubts)}"
    )


def doubt_text(doubts: Sequence[str] | None) -> str:
    """`; IN DOUBT: ...`, or nothing."""
    return f"; IN DOUBT: {' '.join(doubts)}" if doubts else ""


def _describe_failed(_: CoordinatorCore, event: ev.PhaseFailed) -> str:
    return f"{_name(event.node)} failed ({event.failure.failure_class}): {event.failure.cause}"


def _describe_lost(core: CoordinatorCore, event: ev.RunnerLost) -> str:
    what = "" if event.node is None else f" while it trained {_name(event.node)}"
    again = ""
    if event.node is not None and event.restart_step:
        again = f"; a repeat continues from global step {global_step(core, event.node, event.restart_step)}"
    return f"slot {event.slot}: runner lost{what}: {whole_sentences(event.reason)}{again}"


def _describe_verdict(core: CoordinatorCore, event: ev.VerdictPosted) -> str:
    word = "STOP" if event.decision.stop else "CONTINUE"
    rule_and_reason = f"{event.decision.rule}: {event.decision.reason}"
    saves = "" if event.saves is None else f" (a stop saves {saving_text(event.saves)})"
    at = global_step(core, event.node, event.step)
    return f"{_name(event.node)} verdict at global step {at}: {word}, {rule_and_reason}{saves}"


def policy_name(what: ev.FinalWhat) -> str:
    """Name of a policy that was evaluated after the search."""
    return POLICY_NAMES.get(what) or f"node {what.rpartition('-')[2]}"


def _describe_scored(_: CoordinatorCore, event: ev.FinalScored) -> str:
    return f"{event.split}: {policy_name(event.what)} {score_text(event)}"


def _describe_unscored(_: CoordinatorCore, event: ev.FinalFailed) -> str:
    split = "confirm" if event.what.startswith("confirm-") else "test"
    return f"{split}: {policy_name(event.what)} not measured: {event.reason}"


def score_text(scored: ev.FinalScored) -> str:
    """Test score over all items, and over the task's parts if it has some."""
    rows = f"{scored.mean:.4f} ± {scored.standard_error:.4f} ({scored.n} items)"
    if scored.macro is None:
        return rows
    error = "" if scored.macro_error is None else f" ± {scored.macro_error:.4f}"
    return f"{rows}, over the task's parts {scored.macro:.4f}{error}"


def _describe_clone(_: CoordinatorCore, event: ev.CloneAsked) -> str:
    step = "its best step" if event.step is None else f"step {event.step}"
    changes = ", ".join(f"{short(key)} = {value}" for key, value in event.changes.items())
    return f"a clone of node {event.of} from {step} is asked for: {changes or 'nothing changed'}"


def _describe_settings(_: CoordinatorCore, event: ev.SettingsChanged) -> str:
    return f"settings changed: {changed_text(event.before, event.changes)}"


def _describe_extended(_: CoordinatorCore, event: ev.SearchExtended) -> str:
    return f"the search continues: {changed_text(event.before, event.changes)}".removesuffix(": ")


def _name(node: int) -> str:
    return "default recipe" if node == REFERENCE else f"node={node}"


def _describe_called(_: CoordinatorCore, event: ev.AgentCalled) -> str | None:
    if event.outcome == "ok":
        return None
    return f"{_name(event.node)} {event.agent} call failed ({event.outcome}), ${event.dollars:.4f}"


def _describe_coordinator(core: CoordinatorCore, event: ev.CoordinatorStarted) -> str | None:
    # If a command initialized the search, it wrote the journal in epochs before the first coordinator's.
    is_first = event.epoch == 1 or (core.initialization is not None and event.previous_alive is None)
    return None if is_first else f"a new coordinator runs (number {event.epoch})"


def _describe_drafted(_: CoordinatorCore, event: ev.TaskDrafted) -> str:
    left = plural(len(event.problems), "thing")
    what = f"{left} left to decide or to fix" if event.problems else "it works"
    return f"the task is drafted: {what}"


_DESCRIPTIONS: dict[type[Event], Callable[[CoordinatorCore, Any], str | None]] = {
    ev.InitializationStarted: lambda _, e: f"a task is drafted from {e.folder}: {one_line(e.sentence, 120)}",
    ev.TaskDrafted: _describe_drafted,
    ev.InitializationConfirmed: lambda _, e: f"the task is confirmed ({e.by})",
    ev.CoordinatorStarted: _describe_coordinator,
    ev.Decided: _describe_decided,
    ev.ProposalFailed: lambda _, e: f"node={e.node} no proposal: {e.reason}",
    ev.ProposalRefused: _describe_refused,
    ev.ApprovalAsked: lambda core, e: f"node={e.node} waits for approval: {_approval(core, e)}",
    ev.ApprovalAnswered: _describe_answered,
    ev.PhasePlanned: _describe_planned,
    ev.PhaseStarted: _describe_started,
    ev.PhaseFinished: _describe_finished,
    ev.PhaseFailed: _describe_failed,
    ev.RunnerLost: _describe_lost,
    ev.PhaseInterrupted: lambda _, e: (
        f"{_name(e.node)} had trained {e.salvaged.steps_done} steps before the search was interrupted"
    ),
    ev.VerdictPosted: _describe_verdict,
    ev.AgentCalled: _describe_called,
    ev.BudgetReached: lambda _, e: (
        f"budget reached: {e.kind} {e.used:.2f} of {e.limit:g}"
        + ("" if e.used >= e.limit else "; the rest pays for no step with its validation")
    ),
    ev.UserStop: lambda _, e: f"stopped by a person: {e.reason}",
    ev.HintGiven: lambda _, e: f"hint for the proposer: {one_line(e.text, 120)}",
    ev.NodeVetoed: lambda _, e: (
        f"node={e.node} vetoed with all below it" + (f": {e.reason}" if e.reason else "")
    ),
    ev.CloneAsked: _describe_clone,
    ev.SettingsChanged: _describe_settings,
    ev.SearchExtended: _describe_extended,
    ev.RequestRefused: lambda _, e: f"refused ({e.kind}): {e.message}",
    ev.BackgroundTaskFailed: lambda _, e: f"{e.task} failed and continues: {one_line(e.reason)}",
    ev.RunnerSilent: lambda _, e: (
        f"{_name(e.node)} hangs: {e.since_s:.0f} s in stage {e.stage} (limit {e.limit_s:.0f} s); it is killed"
    ),
    ev.SlotsNeeded: lambda *_: "a second phase can begin: the other slots are reserved now",
    ev.SlotClosed: lambda _, e: f"slot {e.slot} was given back",
    ev.CheckpointsDeleted: lambda _, e: (
        f"{len(e.items)} adapter(s) thinned out: all took {size(e.used_bytes)} (limit {size(e.limit_bytes)})"
    ),
    ev.CheckpointCorrupt: _describe_corrupt,
    ev.SearchPaused: lambda _, e: f"paused: {e.reason}" if e.reason else "paused",
    ev.SearchAborted: lambda _, e: f"aborted: {e.reason}",
    ev.FinalScored: _describe_scored,
    ev.FinalFailed: _describe_unscored,
    ev.OutcomeWritten: lambda _, e: f"the outcome could not be written: {e.problem}" if e.problem else None,
}
