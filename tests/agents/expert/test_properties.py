"""For any configuration and any curves: the expert's proposals are valid, capacity never shrinks, nothing
crashes."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer, ExpertProposer
from llmzero_ray.hyperparameters.verl_keys import CAPACITY
from llmzero_ray.records import FailureClass, Hyperparameters, PhaseFailure, Proposal
from llmzero_ray.records.agents import (
    ErrorRequest,
    NodeView,
    OfferedCheckpoint,
    ProposalRequest,
    StopRequest,
    TaskView,
)
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.signals import annotate
from tests.marks import slow_example

TASK = TaskView(
    name="any", n_train=512, phase_steps=20, max_phase_steps=50, max_model_len=300, max_prompt_length=100
)
LIMITS = hp.Limits(max_model_len=TASK.max_model_len, n_train=TASK.n_train)
METRICS = (
    "critic/score/mean", "actor/kl_loss", "actor/ppo_kl", "actor/entropy", "actor/grad_norm", "actor/lr",
    "actor/pg_clipfrac", "response_length/mean", "response_length/max", "response_length/clip_ratio",
    "critic/advantages/max", "critic/advantages/min",
)  # fmt: skip
numbers = st.one_of(st.none(), st.floats(0, 1), st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    batch = draw(st.integers(1, 64))
    mini = hp.largest_divisor(batch, draw(st.integers(1, 64)))
    asked = {
        "lr": draw(st.one_of(st.just(0.0), st.floats(1e-7, 0.05))),
        "kl": draw(st.one_of(st.just(0.0), st.floats(1e-6, 1.0))),
        "use_kl_loss": draw(st.booleans()),
        "temperature": draw(st.floats(0.05, 2.0)),
        "clip_low": draw(st.floats(0.01, 0.9)),
        "clip_high": draw(st.floats(0.01, 2.0)),
        "grad_clip": draw(st.floats(0.01, 100.0)),
        "weight_decay": draw(st.floats(0.0, 1.0)),
        "adv_norm": draw(st.booleans()),
        "n": draw(st.integers(2, 64)),
        "batch_size": batch,
        "mini_batch_size": mini,
        "ppo_epochs": draw(st.integers(1, 3)),
        "max_prompt_length": 100,
        "max_response_length": draw(st.integers(1, 200)),
    }
    if draw(st.booleans()):
        asked["micro_batch_size"] = hp.largest_divisor(mini * asked["n"], draw(st.integers(1, 32)))
    return hp.complete(hp.defaults(), asked, limits=LIMITS)


@st.composite
def recorded(draw: st.DrawFn) -> Curves:
    n = draw(st.integers(0, 25))
    chosen = draw(st.lists(st.sampled_from(METRICS), unique=True))
    metrics = {name: tuple(draw(st.lists(numbers, min_size=n, max_size=n))) for name in chosen}
    val_steps = tuple(sorted(draw(st.sets(st.integers(1, max(1, n)), max_size=min(n, 6)))))
    scores = draw(st.lists(st.floats(0, 1), min_size=len(val_steps), max_size=len(val_steps)))
    start = draw(st.one_of(st.none(), st.floats(0, 1)))
    return Curves(
        steps=tuple(range(1, n + 1)),
        metrics=metrics,
        val_steps=val_steps,
        val_scores=tuple(scores),
        start_score=start,
    )


@st.composite
def nodes(draw: st.DrawFn, number: int = 0) -> NodeView:
    found = draw(recorded())
    best = max(found.val_scores, default=None)
    return NodeView(
        node=number,
        kind="evolve",
        status="completed",
        hyperparameters=draw(configurations()),
        n_steps=max(1, len(found.steps)),
        base_step=draw(st.integers(0, 100)),
        score=best,
        best_step=None if best is None else found.val_steps[found.val_scores.index(best)],
        curves=found,
    )


def offered(view: NodeView, steps: list[int]) -> tuple[OfferedCheckpoint, ...]:
    scores = dict(zip(view.curves.val_steps, view.curves.val_scores, strict=True))
    return tuple(
        OfferedCheckpoint(node=view.node, step=s, global_step=view.base_step + s, val_score=scores.get(s))
        for s in steps
    )


def applied(base: Hyperparameters, proposal: Proposal) -> dict[str, Any]:
    for change in proposal.changes:
        assert hp.forbidden(change.key) is None
        assert change.old == base.get(change.key)
    full = hp.complete(base, {change.key: change.new for change in proposal.changes}, limits=LIMITS)
    if proposal.resume_from is not None:
        hp.check_transition(base, full)
    assert 1 <= proposal.n_steps <= TASK.max_phase_steps
    assert proposal.rationale
    return full


steps_saved = st.lists(st.integers(1, 25), unique=True, max_size=3)
refusals = st.sampled_from(
    [None, None, "lr=1 must be smaller", "no", "mini_batch_size=3, n=5: must divide", "resume_from"]
)


@slow_example
@given(
    on=nodes(number=3),
    parent=nodes(number=1),
    saved=steps_saved,
    with_parent=st.booleans(),
    n_siblings=st.integers(0, 2),
    rejected=refusals,
    fresh=st.booleans(),
    n_scratch=st.integers(1, 6),
)
def test_any_proposal_is_valid_and_never_shrinks_capacity(
    on: NodeView,
    parent: NodeView,
    saved: list[int],
    with_parent: bool,
    n_siblings: int,
    rejected: str | None,
    fresh: bool,
    n_scratch: int,
) -> None:
    proposer = ExpertProposer(n_val=200)
    siblings: list[NodeView] = []
    for number in range(n_siblings + 1):
        request = ProposalRequest(
            task=TASK,
            on=on,
            path=(parent, on) if with_parent else (on,),
            siblings=tuple(siblings),
            best=on,
            default=parent.hyperparameters,
            checkpoints=() if fresh else offered(on, saved),
            from_scratch=fresh,
            rejected=rejected,
            n_scratch=n_scratch,
        )
        proposal = proposer.propose(request)
        base = parent.hyperparameters if fresh else on.hyperparameters
        full = applied(base, proposal)
        for key in CAPACITY:
            assert int(str(full[key])) >= int(str(base[key]))
        if not fresh:
            assert proposal.resume_from is None or proposal.resume_from.step in saved
        else:
            assert proposal.resume_from is None
        assert proposal == proposer.propose(request)
        siblings.append(NodeView(node=10 + number, kind="evolve", status="running", hyperparameters=full,
                                 n_steps=20, base_step=0, resume_from=proposal.resume_from))  # fmt: skip


classes = st.sampled_from(["oom", "nan", "config", "mismatch", "reward", "engine", "timeout", "resource"])


@slow_example
@given(
    view=nodes(number=3),
    root=configurations(),
    kinds=st.lists(classes, min_size=1, max_size=4),
    saved=steps_saved,
    rejected=refusals,
    cause=st.sampled_from(
        ["boom", "train_batch_size must divide", "lr is not finite", "No available memory for the cache"]
    ),
)
def test_any_fix_is_valid_and_capacity_shrinks_only_when_memory_ran_out(
    view: NodeView,
    root: dict[str, Any],
    kinds: list[FailureClass],
    saved: list[int],
    rejected: str | None,
    cause: str,
) -> None:
    chain = tuple(
        NodeView(
            node=view.node - len(kinds) + 1 + i,
            kind="debug",
            status="failed",
            hyperparameters=view.hyperparameters,
            n_steps=view.n_steps,
            base_step=view.base_step,
            curves=view.curves,
            failure=PhaseFailure(
                node=view.node, failure_class=kind, cause=cause, log_tail="", steps_done=view.n_steps
            ),
        )
        for i, kind in enumerate(kinds)
    )
    request = ErrorRequest(
        task=TASK,
        failed=chain[-1],
        chain=chain,
        default=root,
        checkpoints=offered(view, saved),
        rejected=rejected,
    )
    proposal = ExpertErrorAnalyzer().analyze(request)
    full = applied(view.hyperparameters, proposal)
    assert proposal.diagnosis.state == "failed"
    assert cause in proposal.diagnosis.summary
    if kinds[-1] not in ("oom", "resource"):
        for key in CAPACITY:
            assert int(str(full[key])) >= int(str(view.hyperparameters[key]))
    assert proposal == ExpertErrorAnalyzer().analyze(request)


@slow_example
@given(running=nodes(number=1), incumbent=nodes(number=2), n_steps=st.integers(1, 60), target=st.floats(0, 1))
def test_a_judgement_never_stops_a_run_that_beats_the_incumbent(
    running: NodeView, incumbent: NodeView, n_steps: int, target: float
) -> None:
    shown = NodeView(**{**vars(running), "n_steps": max(n_steps, running.n_steps), "status": "running"})
    best = NodeView(**{**vars(incumbent), "score": target})
    path = tuple(
        (step, score)
        for step, score in zip(running.curves.val_steps, incumbent.curves.val_scores, strict=False)
    )
    decision = ExpertEarlyStopper(n_val=200).judge(
        StopRequest(task=TASK, running=shown, incumbent=best, incumbent_path=path)
    )
    assert decision.reason
    own = max(running.curves.val_scores, default=0.0)
    if decision.stop and not all(v == 0 for v in running.curves.metrics.get("actor/lr", (1,))):
        assert own <= max([target, *(score for _, score in path)]) + 0.01


@slow_example
@given(view=nodes())
def test_any_running_phase_has_its_facts_one_line_each(view: NodeView) -> None:
    names = [fact.split(": ", 1)[0] for fact in annotate(view)]
    assert len(set(names)) == len(names)
    assert not any("\n" in fact for fact in annotate(view))
