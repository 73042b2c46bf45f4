"""Requests to the agents: views of the state without test scores.

Pure. Metric series are loaded by a function that the caller passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

from llmzero_ray.coordinator.price import step_tokens
from llmzero_ray.coordinator.state import SearchState
from llmzero_ray.records import PhaseFailure, PhaseResult, StopDecision, to_json
from llmzero_ray.records import commands as cmd
from llmzero_ray.records.agents import (
    Budget,
    EarlierVerdict,
    ErrorRequest,
    MemoryView,
    NodeView,
    OfferedCheckpoint,
    ProposalRequest,
    StopRequest,
    TaskView,
)
from llmzero_ray.records.metrics import Curves
from llmzero_ray.search import TreeSearch

LoadCurves: TypeAlias = Callable[[int], Curves]
"""Node -> its metrics so far."""


def build_request(
    state: SearchState,
    command: cmd.Propose | cmd.Analyze,
    curves: LoadCurves,
    validations: LoadCurves | None = None,
) -> ProposalRequest | ErrorRequest:
    """Request to the proposer or to the error analyzer. `validations` loads only the validations of a node
    (default: those of `curves`)."""
    on = node_view(state, command.on, curves)
    if isinstance(command, cmd.Analyze):
        return ErrorRequest(
            task=task_view(state),
            failed=on,
            chain=tuple(node_view(state, node, curves) for node in _debug_chain(state, command.on)),
            default=state.planner.root,
            checkpoints=_offered(state, command.node),
            rejected=command.rejected,
            node=command.node,
            tries=command.tries,
            budget=budget_of(state, command.node, validations or curves),
            refused=state.runs[command.node].refused,
            memory=_memory_view(state, command.on),
        )
    children = [child for child in state.search.node(command.on).children if child != command.node]
    best = state.best
    return ProposalRequest(
        task=task_view(state),
        on=on,
        path=tuple(node_view(state, node, curves) for node in state.search.resume_chain(command.on)),
        siblings=tuple(node_view(state, node, curves) for node in children),
        best=None if best is None else node_view(state, best.node, curves),
        default=state.planner.root,
        checkpoints=() if command.from_scratch else _offered(state, command.node),
        from_scratch=command.from_scratch,
        rejected=command.rejected,
        hints=(*state.approvals, *state.hints),
        n_scratch=sum(
            run.kind in ("root", "scratch") for node, run in state.runs.items() if 0 <= node != command.node
        ),
        node=command.node,
        tries=command.tries,
        budget=budget_of(state, command.node, validations or curves),
        refused=state.runs[command.node].refused,
        plan=dict(state.runs[command.node].plan),
        tree=tuple(
            node_view(state, node, validations or (lambda number: curves(number).selected()))
            for node in sorted(state.search.nodes)
            if node not in (command.node, command.on)
        ),
    )


def _memory_view(state: SearchState, failed: int) -> MemoryView | None:
    spec = state.runs[failed].spec
    found = None if state.memory is None or spec is None else state.memory.assess(spec.hyperparameters)
    if state.memory is None or spec is None or found is None:
        return None
    chain = [state.runs[node].outcome for node in _debug_chain(state, failed)]
    ran_out = sum(isinstance(one, PhaseFailure) and one.failure_class == "oom" for one in chain)
    relief = state.memory.relief(spec.hyperparameters, n_repairs=max(0, ran_out - 1))
    return MemoryView(
        verdict=found.reason,
        remedies=tuple(map(str, found.remedies)),
        fix=relief.values,
        fix_verdict=relief.status,
    )


def _facts(state: SearchState) -> Mapping[str, Any]:
    return state.started.agents if state.started is not None else {}


def budget_of(state: SearchState, node: int, curves: LoadCurves | None = None) -> Budget:
    """Budget that remains for a node's run; `runs` counts the runs after it. Without `curves`, the price of
    the root's steps is left out."""
    root = state.runs[0].outcome if 0 in state.runs else None
    budget, spent = state.config.budget, state.meter.gpu_hours(state.now)
    n_asked = sum(run.proposal is not None for run in state.runs.values())
    return Budget(
        runs=max(0, budget.runs - len(state.search.nodes)),
        gpu_hours=None if budget.gpu_hours is None else max(0.0, budget.gpu_hours - spent),
        wall_clock_hours=None
        if budget.wall_clock_hours is None
        else max(0.0, budget.wall_clock_hours - state.active_time.seconds() / 3600),
        dollars=None if budget.dollars is None else max(0.0, budget.dollars - state.dollars),
        compute=state.planner.compute_limit(node),
        whole_compute=budget.compute,
        whole_gpu_hours=budget.gpu_hours,
        whole_wall_clock_hours=budget.wall_clock_hours,
        root_step=None if root is None or curves is None else step_tokens(root, len(curves(0).val_steps)),
        n_slots=state.config.slots.count,
        fresh_start_in=state.search.runs_before_fresh_start if isinstance(state.search, TreeSearch) else None,
        dollars_per_run=state.dollars / n_asked if n_asked else None,
        validates_start=state.planner.validates_every_start,
        dollars_end_it=state.config.agents.on_cap == "stop",
    )


def node_view(state: SearchState, node: int, curves: LoadCurves) -> NodeView:
    """The agents' view of one node. A node without a plan has no configuration."""
    run = state.runs[node]
    outcome, spec = run.outcome, run.spec
    found = curves(node) if run.started or outcome is not None else Curves()
    return NodeView(
        node=node,
        kind=run.kind,
        status=run.status,
        hyperparameters={} if spec is None else spec.hyperparameters,
        n_steps=0 if spec is None else spec.n_steps,
        base_step=run.base_step,
        score=run.score,
        best_step=None if outcome is None else outcome.best_step,
        stop_reason=outcome.stop_reason if isinstance(outcome, PhaseResult) else "",
        curves=found,
        failure=outcome if isinstance(outcome, PhaseFailure) else None,
        tokens=None if outcome is None else outcome.tokens,
        step_tokens=None if outcome is None else step_tokens(outcome, len(found.val_steps)),
        val_tokens=None if outcome is None else outcome.val_tokens,
        gpu_hours=None if outcome is None else outcome.gpu_hours,
        diagnosis=None if run.proposal is None else run.proposal.diagnosis,
        parent=run.on,
        resume_from=None if spec is None else spec.resume_from,
        predicted=None if run.proposal is None else run.proposal.predicted,
        changes=() if run.proposal is None else run.proposal.changes,
        doubts=run.doubts,
    )


def task_view(state: SearchState) -> TaskView:
    """Facts about the task and the limits of the search."""
    assert state.started is not None
    facts, config = state.started.task, state.config
    own_model = config.model.path is None
    return TaskView(
        name=str(facts["name"]),
        n_train=int(facts["n_train"]),
        phase_steps=config.phase.n_steps,
        max_phase_steps=config.phase.max_steps,
        max_model_len=config.engine.max_prompt_length + config.engine.max_response_length,
        max_prompt_length=config.engine.max_prompt_length,
        eval_response_length=config.eval.max_response_length,
        base_model=""
        if config.model.path is None
        else PurePath(config.model.hub_id or config.model.path).name,
        n_parameters=facts.get("model_params") if own_model else _facts(state).get("n_parameters"),
        description=str(facts.get("description") or ""),
        reward=str(facts.get("reward_kind") or facts.get("reward_name") or ""),
        reward_says=str(facts.get("reward_says") or ""),
        reward_ships=bool(facts.get("reward_kind")),
        test_freq=config.phase.test_freq,
        save_freq=config.phase.save_freq,
        chance=facts.get("majority_baseline"),
        data_sources=tuple(facts.get("data_sources", ())),
    )


def _offered(state: SearchState, node: int) -> tuple[OfferedCheckpoint, ...]:
    return tuple(
        OfferedCheckpoint(
            node=source,
            step=saved.step,
            global_step=state.runs[source].base_step + saved.step,
            val_score=saved.val_score,
        )
        for source in state.offered(node)
        for saved in state.runs[source].checkpoints
    )


def _debug_chain(state: SearchState, failed: int) -> list[int]:
    """Failed nodes from the first failure to `failed`, parent to child."""
    chain = [failed]
    while state.runs[chain[0]].kind == "debug":
        on = state.runs[chain[0]].on
        if on is None or state.runs[on].status != "failed":
            break
        chain.insert(0, on)
    return chain


def incumbent_chain(
    state: SearchState, command: cmd.PushIncumbent, curves: LoadCurves
) -> tuple[NodeView, ...]:
    """The incumbent's resume chain, base first. The curves of each node are cut where the path leaves it."""
    views = ((node_view(state, node, curves), cut) for node, cut, _ in command.path)
    return tuple(
        view if cut is None else dataclasses.replace(view, curves=view.curves.until(cut))
        for view, cut in views
    )


def earlier_verdicts(state: SearchState, node: int, attempt: int) -> tuple[EarlierVerdict, ...]:
    """Earlier verdicts on this attempt at a node's phase, oldest first."""
    return tuple(
        EarlierVerdict(step=v.step, stop=v.decision.stop, rule=v.decision.rule, reason=v.decision.reason)
        for v in state.runs[node].verdicts
        if v.phase_attempt == attempt
    )


def request_record(request: ProposalRequest | ErrorRequest) -> dict[str, Any]:
    """A request as JSON data for its record, without metric series, which the nodes' metric files have."""
    data = _without_series(to_json(request))
    assert isinstance(data, dict)
    if "tree" in data:  # each node of the tree has its own records
        data["tree"] = [view["node"] for view in data["tree"]]
    return data


def overlay_record(running: NodeView, decision: StopDecision, request: StopRequest | None) -> dict[str, Any]:
    """Record of a verdict on a running phase with its evidence: both curves by global step, their
    differences, and what a stop saves. `request` is None for a rule, which looks only at the phase."""
    curves = running.curves
    scores = zip(curves.val_steps, curves.val_scores, strict=True)
    return {
        "decision": decision,
        "running": [(running.base_step + step, score) for step, score in scores],
        "incumbent": None if request is None else request.incumbent.node,
        "incumbent_path": () if request is None else request.incumbent_path,
        "standings": () if request is None else request.standings,
        "saves": None if request is None else request.saves,
    }


def _without_series(data: Any) -> Any:
    if isinstance(data, dict):
        kept = {key: _without_series(value) for key, value in data.items()}
        return (
            {**kept, "steps": len(data["steps"]), "metrics": sorted(data["metrics"])}
            if _is_curves(data)
            else kept
        )
    return [_without_series(value) for value in data] if isinstance(data, list) else data


def _is_curves(data: dict[str, Any]) -> bool:
    return data.get("type") == "Curves"
