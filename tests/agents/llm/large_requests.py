"""Requests as large as searches make them: all that VeRL logs, long phases, deep paths, several siblings."""

from __future__ import annotations

import functools
from dataclasses import replace

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.knowledge import expected_metrics
from llmzero_ray.records import Answer, Diagnosis, PhaseFailure, ResumeFrom
from llmzero_ray.records.agents import ErrorRequest, KindScore, NodeView, ProposalRequest, StopRequest
from llmzero_ray.records.metrics import Curves
from tests.agents import curves as c

PICTURE_TOKENS = 850
"""Of the largest picture: tests/agents/llm/test_figures.py."""
FAMILIES = ("chem_edit", "chem_reaction", "chem_understanding")

ANSWERS = (
    Answer(prompt="Which product? " * 90, response="By the rule, B. " * 90, score=1, acc=1, pred="B"),
    Answer(prompt="Which product? " * 90, response="By the rule, C. " * 90, score=0, acc=0, pred="C"),
    Answer(prompt="Which? " * 90, response="We see that " * 90, score=0, acc=0, pred="", cut=True),
)
"""A long right, wrong and cut-off answer."""


@functools.cache
def long_curves(n: int = 120, base: int = 0, seed: int = 0) -> Curves:
    """A phase that logs everything VeRL logs, with noise in all of it, and validates every 5 steps."""
    shaped = {
        "critic/score/mean": c.line(0.31, 0.52, n, 0.03, seed),
        "critic/score/min": [0.0] * n,
        "critic/score/max": [1.0] * n,
        "actor/kl_loss": c.joined(
            c.line(0.004, 0.03, n // 2, 0.002, 1), c.line(0.09, 0.11, n - n // 2, 0.005)
        ),
        "actor/entropy": c.line(0.71, 0.38, n, 0.01, 2),
        "response_length/mean": c.line(1630.0, 2278.0, n, 40.0, 4),
        "response_length/max": [6144.0] * n,
        "response_length/clip_ratio": c.line(0.01, 0.06, n, 0.01, 5),
        "actor/grad_norm": c.line(0.05, 0.03, n, 0.006, 3),
        "timing_s/step": c.line(231.0, 262.0, n, 9.0, 6),
        "actor/lr": [5e-5] * n,
        "actor/kl_coef": [1e-3] * n,
    }
    others = sorted(expected_metrics(c.PRACTITIONER) - set(shaped))
    noisy = {name: c.line(10.0 + i, 11.3 + i, n, 0.7, i) for i, name in enumerate(others)}
    scores = {f"val-core/{name}/acc/mean@1": [0.3 + 0.001 * s for s in range(n)] for name in FAMILIES}
    val = tuple(range(5, n + 1, 5))
    return Curves(
        steps=tuple(range(1, n + 1)),
        base_step=base,
        metrics={name: tuple(values) for name, values in {**shaped, **noisy, **scores}.items()},
        val_steps=val,
        val_scores=tuple(0.31 + 0.0012 * s + 0.01 * c.wave(s, seed) for s in val),
        start_score=0.309,
    )


@functools.cache
def proposal_request() -> ProposalRequest:
    """The fourth phase of a path of 360 steps, with five siblings and a best node elsewhere."""
    steps = ({}, {"lr": 1e-4, "kl": 5e-3}, {"resp": 7680, "temperature": 0.9}, {"n": 12, "batch": 96})
    path: list[NodeView] = []
    full = c.PRACTITIONER
    for i, changes in enumerate(steps):
        full = hp.complete(full, changes)
        output = Diagnosis(
            state="plateau", summary="Validation flattens while KL rises; the groups lose contrast. " * 2
        )
        path.append(
            c.node(
                long_curves(120, 90 * i, i),
                full,
                node=2 * i,
                kind="evolve" if i else "root",
                diagnosis=output,
                resume_from=ResumeFrom(node=2 * (i - 1), step=90) if i else None,
                predicted=0.45,
            )
        )
    on = replace(
        path[-1],
        status="early_stopped",
        stop_reason="verdict: cannot reach 0.47 any more " * 4,
        kinds=tuple(KindScore(kind=kind, n=200, start=0.3, last=0.419) for kind in FAMILIES),
        answers=(
            *(replace(one, below=(14, one.response, True)) for one in ANSWERS),
            *(replace(one, step=120) for one in ANSWERS),
        ),
        wrong=(272, 31, 12),
        by_length=(1234, 0.512, 0.431),
        places=(0.41, 0.45, 0.33, 0.35),
    )
    siblings = tuple(
        c.node(
            long_curves(60, 360, 9 + i),
            hp.complete(full, {"lr": 1e-5 * (i + 1), "kl": 1e-3 * (i + 2), "temperature": 0.8, "n": 16}),
            node=10 + i,
            kind="evolve",
            status="early_stopped",
            stop_reason="verdict: its validation flattens below the best run of the search",
            resume_from=ResumeFrom(node=6, step=90),
            parent=6,
            wrong=(290, 40, 2),
        )
        for i in range(5)
    )
    offered = tuple(one for view in path for one in c.checkpoints(view, every=5))
    return ProposalRequest(
        tree=(*path[:-1], *siblings, *elsewhere()),
        task=replace(
            c.BIG_TASK,
            data_sources=FAMILIES,
            eval_response_length=6144,
            base_model="Qwen3-4B",
            n_parameters=4_022_468_096,
            description="Choose the product of the reaction. " * 30,
            reward="accuracy",
            chance=0.25,
        ),
        on=on,
        path=(*path[:-1], on),
        siblings=siblings,
        best=siblings[2],
        default=c.PRACTITIONER,
        checkpoints=offered,
        from_scratch=False,
        n_scratch=2,
    )


def elsewhere() -> tuple[NodeView, ...]:
    """Seven phases of other branches: one fails, one runs, one waits, one is being proposed."""
    found = [
        c.node(
            replace(long_curves(60, 120, 20 + i).selected(), val_gains=((0.0312, 0.0124),) * 12),
            hp.complete(c.PRACTITIONER, {"lr": 2e-5 * (i + 1), "temperature": 0.9, "n": 12}),
            node=20 + i,
            kind="evolve",
            resume_from=ResumeFrom(node=0, step=60 + 5 * (i % 2)),
            parent=0,
            n_steps=60,
            predicted=0.41,
        )
        for i in range(7)
    ]
    failure = PhaseFailure(node=23, failure_class="oom", cause="CUDA out of memory", log_tail="")
    found[3] = replace(found[3], status="failed", failure=failure)
    found[4] = replace(found[4], status="running", score=None)
    found[5] = replace(found[5], status="pending", score=None, curves=Curves())
    bare = {"hyperparameters": {}, "resume_from": None, "curves": Curves(), "score": None, "predicted": None}
    found[6] = replace(found[6], status="pending", **bare)  # type: ignore[arg-type]
    return tuple(found)


def error_request(log: str = "step 41\n" * 400, cause: str = "CUDA out of memory") -> ErrorRequest:
    """A phase that fails for the fourth time."""
    asked = proposal_request()
    failure = PhaseFailure(node=9, failure_class="oom", cause=cause, log_tail=log, steps_done=40)
    chain = tuple(
        replace(asked.on, node=20 + i, kind="debug" if i else "evolve", status="failed", failure=failure)
        for i in range(4)
    )
    return ErrorRequest(
        task=asked.task,
        failed=chain[-1],
        chain=chain,
        default=asked.default,
        checkpoints=asked.checkpoints,
    )


def stop_request() -> StopRequest:
    """A phase of 200 steps at its 120th, beside a best strategy of 400 steps."""
    asked = proposal_request()
    running = replace(asked.on, status="running", n_steps=200, score=None, best_step=None)
    history = tuple((s, 0.3 + 0.0005 * s) for s in range(5, 401, 5))
    best = replace(asked.siblings[0], score=history[-1][1])
    return StopRequest(task=asked.task, running=running, incumbent=best, incumbent_path=history)
