"""Requests to the proposer, built from the strategies that the LLMZero paper prints (Tables 8 to 11).

    python -m benchmarks.published_requests [--out FILE]

Writes a request set for `llmzero prompt-eval`: for each of the four tasks one request before every transition
of its best strategy, one after its last phase, and one for a fresh start. Configurations, step ranges,
validation scores and the few published metric values at the first and last step of a phase are the paper's
(arXiv 2606.18388; scores: Tables 18 to 21 and section 4.3). Everything unpublished is absent. What the paper
says about a phase without giving a value is paraphrased in the hints.

The better direction of a transition counts as known if the scores before and after it differ by more than one
standard error of 500 items. Node 2 of ChemCoT resumed from a failed node that the paper does not describe;
here it resumes from the root. Not here: asking, scoring (llmzero_ray/methods/prompt_eval).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmzero_ray.config import parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.hyperparameters.root import limits, root_hyperparameters
from llmzero_ray.methods.prompt_eval.cases import RECORDED, RecordedRequest, write_cases
from llmzero_ray.records import Hyperparameters, ResumeFrom
from llmzero_ray.records.agents import Budget, NodeView, OfferedCheckpoint, ProposalRequest, TaskView
from llmzero_ray.records.metrics import Curves

CONFIG = Path(__file__).parent.parent / "jobs" / "configs" / "paper_4b.yaml"
FILE = RECORDED / "published.json.gz"
N_VAL, N_TRAIN, N_GPUS, RUNS = 500, 5000, 32, 16
LENGTH, TRUNCATED, ENTROPY = "response_length/mean", "response_length/clip_ratio", "actor/entropy"


@dataclass(frozen=True)
class Phase:
    """One phase of a printed strategy."""

    node: int
    first: int
    last: int
    """Global steps, both within the phase."""
    score: float
    """Best validation score."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes from the phase before, under this project's names."""
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Metric -> values at the phase's first and last step."""
    said: str = ""
    """What the paper says about the phase's dynamics without giving a value."""


@dataclass(frozen=True)
class Strategy:
    """One of Tables 8 to 11."""

    task: str
    description: str
    chance: float | None
    phases: tuple[Phase, ...]


STRATEGIES = (
    Strategy(
        "chemcot",
        "Chemistry questions of 19 kinds: molecules as SMILES, reactions, editing; mixed answer formats.",
        None,
        (
            Phase(0, 0, 59, 0.292, said="The reward varied little within groups."),
            Phase(
                2, 60, 79, 0.310,
                {"temperature": 0.85, "clip_high": 0.3, "adv_norm": True},
                {LENGTH: (1630, 2278)},
                "The KL loss rose to sixteen times its value, answers grew longer, validation did not gain.",
            ),
            Phase(
                3, 80, 116, 0.332,
                {"lr": 2.5e-5, "kl": 0.005, "temperature": 0.7, "clip_high": 0.25},
                {TRUNCATED: (0.03, 0.08)},
                "More and more answers reached the length cap.",
            ),
            Phase(
                5, 117, 119, 0.328,
                {"lr": 2e-5, "kl": 0.003, "resp": 7168, "clip_high": 0.28},
                said="Gradient norms were below 0.001, and validation was flat.",
            ),
            Phase(
                11, 120, 180, 0.356,
                {"lr": 3e-5, "kl": 0.005, "temperature": 0.8, "n": 12, "batch": 96, "clip_high": 0.25},
            ),
        ),
    ),
    Strategy(
        "papersearchqa",
        "Biomedical questions with a short text as answer; exact match.",
        None,
        (
            Phase(0, 0, 99, 0.388, said="The reward was noisy from step to step."),
            Phase(
                1, 100, 119, 0.408,
                {"lr": 2.5e-5, "kl": 0.002, "temperature": 0.9},
                said="The noise went on, and validation gained less per step.",
            ),
            Phase(
                2, 120, 139, 0.408,
                {"lr": 1e-5, "kl": 0.005, "temperature": 0.7, "clip_high": 0.25},
                said="Validation was flat; almost nothing was clipped, and gradient norms were low.",
            ),
            Phase(
                5, 140, 312, 0.420,
                {"lr": 2e-5, "kl": 0.01, "temperature": 0.8, "clip_high": 0.3, "batch": 96},
            ),
        ),
    ),
    Strategy(
        "ssmr_bench",
        "Music theory; one of four choices, A to D.",
        0.25,
        (
            Phase(0, 0, 19, 0.700, said="It learnt the form of the questions within few steps."),
            Phase(
                1, 20, 39, 0.672,
                {
                    "lr": 3e-5, "kl": 0.002, "temperature": 1.1, "clip_high": 0.25, "grad_clip": 0.5,
                    "adv_norm": True,
                },
            ),
            Phase(4, 40, 139, 0.830, {"lr": 5e-5, "kl": 0.001, "clip_high": 0.3}),
            Phase(
                5, 140, 200, 0.870,
                {"lr": 3e-5, "kl": 0.002, "resp": 7168, "temperature": 1.0, "clip_high": 0.25},
            ),
        ),
    ),
    Strategy(
        "wildsci",
        "Questions from many sciences; one of up to ten choices, A to J.",
        0.1,
        (
            Phase(0, 0, 99, 0.608, said="Progress was slow on a mixture of domains."),
            Phase(
                5, 100, 119, 0.620,
                {"lr": 1e-4, "kl": 0.002, "temperature": 0.9, "clip_high": 0.25, "adv_norm": True},
                said="The KL loss rose without a gain in validation.",
            ),
            Phase(
                13, 120, 139, 0.622,
                {"lr": 5e-5, "kl": 0.005, "temperature": 0.85, "clip_high": 0.22},
                {ENTROPY: (0.75, 0.2)},
                "The policy's distribution narrowed early.",
            ),
            Phase(
                15, 140, 195, 0.640,
                {"lr": 3e-5, "kl": 0.002, "temperature": 0.95, "clip_high": 0.28, "clip_low": 0.15},
            ),
        ),
    ),
)  # fmt: skip


def main() -> None:
    """Write the set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    out: Path = parser.parse_args().out
    found = tuple(published_cases())
    write_cases(found, out)
    print(
        f"{len(found)} requests, the direction of {sum(bool(case.better) for case in found)} is known: {out}"
    )


def published_cases() -> Iterator[RecordedRequest]:
    """All requests, strategy by strategy."""
    config = parse_config(read_yaml(CONFIG))
    allowed, root = limits(config, N_TRAIN), root_hyperparameters(config, N_TRAIN)
    for strategy in STRATEGIES:
        full: Hyperparameters = root
        views: list[NodeView] = []
        for place, phase in enumerate(strategy.phases):
            full = VERL_SPACE.complete(full, phase.changes, n_gpus=N_GPUS, limits=allowed)
            views.append(_view(phase, views[-1] if views else None, full))
            later = strategy.phases[place + 1] if place + 1 < len(strategy.phases) else None
            request = _request(strategy, place, views, root, allowed.max_model_len)
            better = {} if later is None else _better(phase, later, full)
            name = f"published/{strategy.task} after node {phase.node}"
            yield _case(name, request, better)
        fresh = dataclasses.replace(request, from_scratch=True, checkpoints=())
        yield _case(f"published/{strategy.task} afresh", fresh, {})


def _case(name: str, request: ProposalRequest, better: Mapping[str, int]) -> RecordedRequest:
    return RecordedRequest(
        name=name, agent="proposer", request=request, n_val=N_VAL, n_gpus=N_GPUS, better=dict(better)
    )


def _view(phase: Phase, before: NodeView | None, full: Hyperparameters) -> NodeView:
    n_steps = phase.last - phase.first + 1
    steps = (1, n_steps)
    curves = Curves(
        steps=steps if phase.metrics else (),
        base_step=phase.first,
        metrics=dict(phase.metrics),
        val_steps=(n_steps,),
        val_scores=(phase.score,),
        start_score=None if before is None else before.score,
    )
    resumed = None if before is None else ResumeFrom(node=before.node, step=phase.first - before.base_step)
    return NodeView(
        node=phase.node,
        kind="root" if before is None else "evolve",
        status="completed",
        hyperparameters=full,
        n_steps=n_steps,
        base_step=phase.first,
        score=phase.score,
        best_step=n_steps,
        curves=curves,
        parent=None if before is None else before.node,
        resume_from=resumed,
    )


def _request(
    strategy: Strategy, place: int, views: list[NodeView], root: Hyperparameters, max_model_len: int
) -> ProposalRequest:
    on = views[-1]
    hints = (phase.said for phase in strategy.phases[: place + 1])
    return ProposalRequest(
        task=TaskView(
            name=strategy.task,
            n_train=N_TRAIN,
            phase_steps=39,
            max_phase_steps=320,
            max_model_len=max_model_len,
            max_prompt_length=2048,
            data_sources=(strategy.task,),
            eval_response_length=8192,
            base_model="Qwen3-4B",
            n_parameters=4_022_468_096,
            description=strategy.description,
            chance=strategy.chance,
        ),
        on=on,
        path=tuple(views),
        siblings=(),
        best=max(views, key=lambda view: view.score or 0.0),
        default=root,
        checkpoints=tuple(
            OfferedCheckpoint(
                node=view.node,
                step=view.n_steps,
                global_step=view.base_step + view.n_steps,
                val_score=view.score,
            )
            for view in views
        ),
        from_scratch=False,
        node=on.node + 1,
        hints=tuple(
            f"Node {view.node}: {said}" for view, said in zip(views, hints, strict=True) if said
        ),
        tree=tuple(views[:-1]),
        budget=Budget(runs=RUNS - on.node - 1),
    )  # fmt: skip


def _better(phase: Phase, later: Phase, full: Hyperparameters) -> dict[str, int]:
    """Hyper-parameter -> 1 or -1: the direction of change after which the score was better. Empty if not
    known."""
    error = math.sqrt(phase.score * (1 - phase.score) / N_VAL)
    gain = later.score - phase.score
    if abs(gain) <= error:
        return {}
    found: dict[str, int] = {}
    for name, value in later.changes.items():
        key = VERL_SPACE.canonical(name)
        old = full[key]
        if isinstance(value, bool) or not isinstance(old, int | float) or value == old:
            continue
        found[key] = (1 if value > old else -1) * (1 if gain > 0 else -1)
    return found


if __name__ == "__main__":
    main()
