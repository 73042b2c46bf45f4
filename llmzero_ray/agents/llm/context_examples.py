"""Synthetic requests of every shape, for checking prompts before a search. All numbers are made up."""

from __future__ import annotations

import math
from dataclasses import replace

from llmzero_ray.agents.knowledge import Knowledge
from llmzero_ray.agents.llm.context import (
    Context,
    error_context,
    proposer_context,
    stable_context,
    stop_context,
)
from llmzero_ray.hyperparameters import complete, defaults
from llmzero_ray.records import ComputeLimit, Diagnosis, PhaseFailure, metrics
from llmzero_ray.records.agents import (
    AgentName,
    Answer,
    Budget,
    ErrorRequest,
    MemoryView,
    NodeView,
    OfferedCheckpoint,
    ProposalRequest,
    StopRequest,
    TaskView,
)
from llmzero_ray.records.metrics import STEP_TIME, Curves

TASK = TaskView(
    name="example",
    n_train=5000,
    phase_steps=40,
    max_phase_steps=120,
    max_model_len=8192,
    max_prompt_length=1024,
    data_sources=("first", "second"),
    test_freq=5,
    save_freq=5,
    reward="compute_score",
    reward_says="Pays 1 for the right number.",
)


def example_contexts(agent: AgentName, knowledge: Knowledge) -> list[tuple[Context, Context]]:
    """(stable, call) contexts of requests that reach every branch of an agent's templates: complete, empty,
    and a forced fresh start."""
    full = stable_context(agent, TASK, knowledge)
    bare = stable_context(agent, TASK, knowledge, visual=False, multi_stage=False)
    if agent == "proposer":
        full_request, empty = proposal_request(), proposal_request(bare=True)
        scratch = replace(full_request, from_scratch=True, checkpoints=())
        compute = ComputeLimit(amount=2.4e6)
        budget = Budget(
            runs=3, gpu_hours=12.5, wall_clock_hours=4.0, dollars=1.5, compute=compute, whole_compute=1e7
        )
        return [
            (full, proposer_context(replace(full_request, budget=budget), knowledge)),
            (full, proposer_context(scratch, knowledge)),
            (bare, proposer_context(empty, knowledge)),
        ]
    if agent == "error_analyzer":
        return [
            (full, error_context(replace(error_request(), budget=Budget(runs=3)))),
            (bare, error_context(error_request(bare=True))),
        ]
    checks = ("kl_runaway: actor/kl_loss 0.02 -> 0.2",)
    return [
        (full, stop_context(replace(stop_request(), budget=Budget(runs=3)), checks=checks)),
        (bare, stop_context(stop_request(bare=True))),
    ]


def proposal_request(*, bare: bool = False) -> ProposalRequest:
    """Request with everything that an agent may see, or the smallest possible one if `bare`."""
    root = _node(0, "root", _curves(40))
    if bare:
        alone = replace(root, curves=Curves(), score=None, best_step=None)
        return ProposalRequest(
            task=TASK, on=alone, path=(alone,), siblings=(), best=None, default=root.hyperparameters,
            checkpoints=(), from_scratch=False,
        )  # fmt: skip
    diagnosis = Diagnosis(state="plateau", summary="Validation stands still.", evidence=("0.41 -> 0.41",))
    cooler = complete(root.hyperparameters, {"lr": 2e-5, "temperature": 0.9})
    on = replace(
        _node(1, "evolve", _curves(40, base=40)), hyperparameters=cooler, diagnosis=diagnosis,
        status="early_stopped", stop_reason="verdict: behind the best run",
        doubts=("12 of the 14 validation answers scored as right are empty.",),
        answers=(Answer(prompt="2 + 2?", response="# 4", score=1.0, acc=1.0, pred="4"),),
    )  # fmt: skip
    other = complete(root.hyperparameters, {"lr": 1e-4, "n": 12})
    best = replace(_node(3, "scratch", _curves(40)), hyperparameters=other)
    return ProposalRequest(
        task=TASK, on=on, path=(root, on), siblings=(replace(best, node=2), replace(root, node=4)), best=best,
        default=root.hyperparameters, checkpoints=(_checkpoint(root, 20), _checkpoint(on, 40)),
        from_scratch=False, rejected="lr=9: must be a number in [0, 0.1].", n_scratch=1,
    )  # fmt: skip


def error_request(*, bare: bool = False) -> ErrorRequest:
    """Request about a phase that ran out of memory again, or one with the least information if `bare`."""
    root = _node(0, "root", _curves(20))
    if bare:
        lost = replace(root, curves=Curves(), status="failed", score=None, best_step=None)
        return ErrorRequest(
            task=TASK, failed=lost, chain=(lost,), default=root.hyperparameters, checkpoints=()
        )
    failure = PhaseFailure(
        node=1, failure_class="oom", cause="out of memory", log_tail="step 9\nout of memory", steps_done=9
    )
    failed = replace(root, node=1, kind="debug", status="failed", failure=failure)
    return ErrorRequest(
        task=TASK, failed=failed, chain=(replace(failed, node=0), failed), default=root.hyperparameters,
        checkpoints=(_checkpoint(root, 10),), rejected="n=0: must be at least 2.",
        memory=MemoryView(
            verdict="does not fit: tightest is update", remedies=("max_token_len_per_gpu 16384 -> 8192",),
            fix={"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 8192}, fix_verdict="fits",
        ),
    )  # fmt: skip


def stop_request(*, bare: bool = False) -> StopRequest:
    """Request about a running phase and the best one, without a history if `bare`."""
    best = _node(0, "root", _curves(40))
    running = _node(1, "evolve", Curves() if bare else _curves(15, base=20))
    path = () if bare else tuple(zip(best.curves.val_steps, best.curves.val_scores, strict=True))
    ended = () if bare else (best,)
    return StopRequest(task=TASK, running=running, incumbent=best, incumbent_path=path, ended=ended)


def _curves(n: int, base: int = 0) -> Curves:
    steps = range(1, n + 1)
    shapes = {
        metrics.REWARDS[0]: [0.3 + 0.01 * s + 0.02 * math.sin(s) for s in steps],
        metrics.KL: [0.002 * s for s in steps],
        metrics.ENTROPY: [0.7 - 0.005 * s for s in steps],
        metrics.LENGTH: [500.0 + 5 * s for s in steps],
        metrics.LENGTH_MAX: [2000.0 + s for s in steps],
        metrics.GRAD_NORM: [0.1 + 0.01 * math.cos(s) for s in steps],
        metrics.LEARNING_RATE: [5e-5 for _ in steps],
        STEP_TIME: [60.0 + math.sin(s) for s in steps],
        "actor/perf/max_memory_reserved_gb": [30.0 for _ in steps],
        "val-core/first/acc/mean@1": [0.4 for _ in steps],
        "val-core/second/acc/mean@1": [0.5 for _ in steps],
        "own/metric": [float(s) for s in steps],
    }
    validated = tuple(range(5, n + 1, 5))
    return Curves(
        steps=tuple(steps),
        base_step=base,
        metrics={name: tuple(values) for name, values in shapes.items()},
        val_steps=validated,
        val_scores=tuple(0.4 + 0.002 * s for s in validated),
        start_score=0.39,
    )


def _node(number: int, kind: str, curves: Curves) -> NodeView:
    best = max(curves.val_scores, default=None)
    return NodeView(
        node=number, kind=kind, status="completed", hyperparameters=complete(defaults(), {}), n_steps=40,
        base_step=curves.base_step, score=best, curves=curves,
        best_step=None if best is None else curves.val_steps[curves.val_scores.index(best)],
    )  # fmt: skip


def _checkpoint(node: NodeView, step: int) -> OfferedCheckpoint:
    return OfferedCheckpoint(node=node.node, step=step, global_step=node.base_step + step, val_score=0.45)
