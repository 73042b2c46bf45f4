"""Validation of the user's steering requests, and their effect on the state.

`refusal` validates a request before it becomes an event. The other functions apply the events to the state.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.config.changes import CHANGEABLE, settings_text, with_changes
from llmzero_ray.coordinator.budget import reached_limits
from llmzero_ray.coordinator.price import a_step_fits
from llmzero_ray.coordinator.proposals import answer_problem
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.errors import ConfigError, ProposalError
from llmzero_ray.records import Change, Diagnosis, Event, Proposal, ResumeFrom
from llmzero_ray.records import events as ev
from llmzero_ray.search import plans_its_runs

MAX_HINT = 2000
"""Maximum characters of one hint, which is part of every later request to the proposer."""
MAX_HINTS = 20
"""Maximum hints of one search. The newest ones are shown to the proposer."""
_MORE_RUNS = 4
"""Number of runs by which error messages suggest raising `budget.runs`."""
_LIFTED = {
    "gpu_hours": "budget.gpu_hours",
    "wall_clock": "budget.wall_clock_hours",
    "compute": "budget.compute",
    "dollars": "budget.dollars",
    "target": "budget.target",
}


def refusal(state: SearchState, event: Event) -> str | None:
    """Reason why a user's request cannot be carried out in this state, or None if it can."""
    if isinstance(event, ev.SearchExtended):
        return extension_problem(state, event.changes)
    if state.finished is not None:
        settings = settings_text(_extending(state, state.config))
        root = shlex.quote(str(state.paths.root))
        todo = f" It takes this while it trains; `llmzero resume {root} {settings}` extends it."
        return f"the search has ended.{todo if settings else ''}"
    if isinstance(event, ev.UserStop | ev.SearchPaused | ev.SettingsChanged):
        return _settings_problem(state, event) if isinstance(event, ev.SettingsChanged) else None
    if state.end_reason is not None or state.ending is not None:
        why = state.end_reason or state.ending
        return f"the search is ending ({why}); no further run begins."
    if isinstance(event, ev.HintGiven):
        return _hint_problem(state, event.text)
    if isinstance(event, ev.NodeVetoed):
        return _veto_problem(state, event.node)
    if isinstance(event, ev.ApprovalAnswered):
        return _too_long("reason", event.reason) or answer_problem(state, event)
    return clone_problem(state, event) if isinstance(event, ev.CloneAsked) else None


def clone_problem(state: SearchState, clone: ev.CloneAsked) -> str | None:
    """Reason why a node cannot be cloned as requested, or None if it can.

    Methods that plan their runs ignore `search.multi_stage`.
    """
    run = state.runs.get(clone.of)
    if run is None or clone.of not in state.search.nodes:
        return f"node {clone.of} is unknown; the search has nodes {_listed(state.search.nodes)}."
    if run.outcome is None:
        return f"node {clone.of} is {run.status}; only a node that has ended can be cloned."
    node = state.search.node(clone.of)
    if node.pruned:
        return f"node {clone.of} is pruned; clone a node of the open tree."
    if (problem := state.search.clone_problem()) is not None:
        return problem
    if not (state.config.search.multi_stage or plans_its_runs(state.search)):
        return (
            "search.multi_stage is false, so every phase starts from the base model; a clone needs a search "
            "with search.multi_stage: true."
        )
    saved = [kept.step for kept in run.checkpoints]
    if clone.step is not None and clone.step not in saved:
        return f"step {clone.step} of node {clone.of} is not saved; saved are {_listed(saved) or 'none'}."
    if clone.step is None and not saved:
        return f"node {clone.of} has no saved adapter to continue from."
    try:
        state.planner.proposed_phase(
            _clone_run(state, clone), clone_proposal(state, clone), state.search.resume_chain(clone.of)
        )
    except ProposalError as error:
        return str(error)
    return None


def clone_proposal(state: SearchState, clone: ev.CloneAsked) -> Proposal:
    """Proposal that a clone request stands for."""
    run = state.runs[clone.of]
    old = {} if run.spec is None else run.spec.hyperparameters
    step = run.best_saved_step if clone.step is None else clone.step
    changes = tuple(
        Change(key=key, old=old.get(key), new=value, reason="asked for by a person")
        for key, value in clone.changes.items()
    )
    return Proposal(
        diagnosis=Diagnosis(state="unknown", summary=f"A person's clone of node {clone.of}."),
        changes=changes,
        resume_from=None if step is None else ResumeFrom(node=clone.of, step=step),
        n_steps=state.config.phase.n_steps if clone.n_steps is None else clone.n_steps,
        rationale="Asked for by a person.",
        agent="user",
    )


def veto(state: SearchState, event: ev.NodeVetoed) -> None:
    """Prune a subtree. Running phases in it are stopped; those that have not started are cancelled."""
    reason = f"veto: {event.reason}" if event.reason else "veto"
    for node in state.search.veto(event.node):
        run = state.runs[node]
        state.stop_or_cancel(run, reason)
        if run.stage == "cancelled":
            state.search.tell(node, "completed")


def change_settings(state: SearchState, event: ev.SettingsChanged) -> None:
    """Apply changed settings.

    If the search is ending because of a limit that is changed, it continues. If it is already in its final
    evaluation, it continues after that.
    """
    _use(state, event.changes)
    if state.end_reason is not None:
        wanted = state.extension_wanted or _lifts(event.changes)
        state.extension_wanted = wanted and not any(_causes_to_end(state, state.config))
    elif _LIFTED.get(state.ending or "") in event.changes:
        state.ending = None
        _revive(state)


def extension_problem(state: SearchState, changes: Mapping[str, Any]) -> str | None:
    """Reason why a search that has ended, or is in its final evaluation, cannot continue with these settings,
    or None if it can."""
    if state.end_reason is None:
        return "the search has not ended; its settings are changed with `llmzero set`."
    try:
        config = with_changes(state.config, changes)
    except ConfigError as error:
        return str(error)
    if measures_alone(changes):
        return None if _best_is_known(state) else "no phase has a score, so there is nothing to measure."
    causes = [cause for cause, *_ in _causes_to_end(state, config)]
    if not causes and not _lifts(changes):
        causes = [f"it ended for another reason ({state.end_reason}), and they raise no limit"]
    if not causes:
        return None
    said = f"{settings_text(changes) or 'no change'} would not extend the search: {'; '.join(causes)}."
    if not (settings := _extending(state, config)):
        return f"{said} Start a search of another name to go further."
    return (
        f"{said} Higher limits do, such as {settings_text(settings)}, together or with other settings; what "
        f"may be changed: {', '.join(CHANGEABLE)}."
    )


def _extending(state: SearchState, config: SearchConfig) -> dict[str, Any]:
    """Settings that would make an ended search with this `config` continue. Empty if there are none."""
    budget = config.budget
    wanted = {key: value for _, key, value in _causes_to_end(state, config) if key is not None}
    if not wanted and (own := _LIFTED.get(state.end_reason or "")) is not None:
        limit = getattr(budget, own.removeprefix("budget."))
        wanted = {} if limit is None else {own: None if own == "budget.target" else 2 * limit}
    wanted = wanted or {"budget.runs": max(len(state.search.nodes), budget.runs) + _MORE_RUNS}
    try:
        return {} if any(_causes_to_end(state, with_changes(config, wanted))) else wanted
    except ConfigError:
        return {}


def extend(state: SearchState, event: ev.SearchExtended) -> None:
    """Continue a search that has ended, with its runs and scores. Its outcome is written again at the next
    end. If only `final` settings change, just the final evaluation is repeated."""
    if event.changes:
        _use(state, event.changes)
    state.n_extensions += 1
    state.finished, state.written, state.problem, state.stop_deadline_s = None, False, None, None
    state.extension_wanted = False
    state.final = state.final.for_extension(state.n_extensions)
    if measures_alone(event.changes):
        state.final.begin(state.search.nodes.values(), skip=False)
        return
    state.ending, state.end_reason = None, None
    _revive(state)


def measures_alone(changes: Mapping[str, Any]) -> bool:
    """Whether all changes are `final` settings, which affect only measurements after the search."""
    return bool(changes) and all(key.startswith("final.") for key in changes)


def _best_is_known(state: SearchState) -> bool:
    return any(node.score is not None for node in state.search.nodes.values())


def _use(state: SearchState, changes: Mapping[str, Any]) -> None:
    """Apply changed settings."""
    state.config = with_changes(state.config, changes)
    state.planner = dataclasses.replace(state.planner, config=state.config)
    state.final.use(state.config, state.planner)
    state.search.budget = state.config.budget.runs
    state.fit_slots()
    state.n_settings += 1


def _revive(state: SearchState) -> None:
    """Queue the runs again that were cancelled because the search was ending."""
    for run in state.runs.values():
        if run.stage != "cancelled" or run.node == ev.REFERENCE or not state.search.node(run.node).is_running:
            continue  # a vetoed run has ended in the tree
        run.stage = "proposing" if run.spec is None else "planned"
        run.revived, state.slots[run.slot].node = run.revived + 1, run.node


def _causes_to_end(state: SearchState, config: SearchConfig) -> Iterator[tuple[str, str | None, Any]]:
    """Causes for which a search with this configuration would end now: (sentence, setting to change, its new
    value). The setting is None if no change helps."""
    begun, best = len(state.search.nodes), state.search.best
    before, state.search.budget = state.search.budget, config.budget.runs
    try:
        decision = state.search.ask()
    finally:
        state.search.budget = before
    reason = decision.stop_reason
    if reason == "budget":
        said = f"budget.runs is {config.budget.runs} and {begun} runs have begun"
        yield said, "budget.runs", begun + _MORE_RUNS
    elif reason is not None:
        yield "no node can get another child, whatever the budget", None, None
    target = config.budget.target
    if target is not None and best is not None and best.score is not None and best.score >= target:
        said = f"budget.target is {target:g} and the best validation score is {best.score:.4f}"
        yield said, "budget.target", None
    worked_s = state.active_time.seconds()
    reached = list(reached_limits(state, config, worked_s=worked_s, now=state.now))
    for kind, used, limit in reached:
        yield f"{_LIFTED[kind]} is {limit:g} and {used:.4g} are used", _LIFTED[kind], float(f"{2 * used:.3g}")
    if not a_step_fits(state, decision.on, config) and all(kind != "compute" for kind, *_ in reached):
        left = f"budget.compute is {config.budget.compute:g} and {state.compute:.4g} are used"
        said = f"{left}, so that no step with its validation fits"
        yield said, "budget.compute", float(f"{2 * state.compute:.3g}")


def _lifts(changes: Mapping[str, Any]) -> bool:
    """Whether a limit is among the changes."""
    return any(key.startswith("budget.") or key == "agents.on_cap" for key in changes)


# --- parts --------------------------------------------------------------------------------------------------


def _settings_problem(state: SearchState, event: ev.SettingsChanged) -> str | None:
    try:
        config = with_changes(state.config, event.changes)
    except ConfigError as error:
        return str(error)
    if state.end_reason is not None and any(key.startswith("final.") for key in event.changes):
        return "the search is being evaluated; change what is measured once it has ended."
    if (problem := _lift_problem(state, config, event.changes)) is not None:
        return problem
    runs = event.changes.get("budget.runs")
    if isinstance(runs, int) and runs < len(state.search.nodes):
        return f"budget.runs is {runs}; {len(state.search.nodes)} runs have begun already."
    return None


def _lift_problem(state: SearchState, config: SearchConfig, changes: Mapping[str, Any]) -> str | None:
    """Reason why a search that is ending cannot continue as these changes of its limits ask, or None.

    It is checked here and not when they are applied, because older journals have such changes.
    """
    if state.end_reason is None:
        own = _LIFTED.get(state.ending or "")
        if own in changes:
            for said, key, _ in _causes_to_end(state, config):
                if key == own:
                    return f"the search is ending, and would end again: {said}."
        elif own == "budget.dollars" and "agents.on_cap" in changes:
            return "the search is ending (dollars); agents.on_cap does not change that, budget.dollars does."
    elif _lifts(changes) and state.final.done and any(not slot.idle for slot in state.slots):
        root = shlex.quote(str(state.paths.root))
        todo = f"`llmzero resume {root} {settings_text(changes)}` extends it once it has ended"
        return f"the search was stopped during its final evaluation and is about to end; {todo}."
    return None


def _hint_problem(state: SearchState, text: str) -> str | None:
    if not text.strip():
        return "the hint is empty; say what the proposer should know."
    if len(state.hints) >= MAX_HINTS:
        return f"there are {MAX_HINTS} hints already; more would crowd out the training dynamics."
    return _too_long("hint", text)


def _too_long(what: str, text: str) -> str | None:
    if len(text) <= MAX_HINT:
        return None
    return f"the {what} has {len(text)} characters; at most {MAX_HINT} are shown to the proposer. Shorten it."


def _veto_problem(state: SearchState, node: int) -> str | None:
    if node not in state.search.nodes:
        return f"node {node} is unknown; the search has nodes {_listed(state.search.nodes)}."
    if state.search.node(node).kind == "root":
        return f"node {node} is the root; stop the search instead of vetoing it."
    return f"node {node} is pruned already." if state.search.node(node).pruned else None


def _clone_run(state: SearchState, clone: ev.CloneAsked) -> PhaseRun:
    return PhaseRun(node=len(state.search.nodes), kind="evolve", on=clone.of, slot=0, clone=clone)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
