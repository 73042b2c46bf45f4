"""Builders of recorded-looking curves: the shapes of real small runs and of the paper's phases, with fixed
noise."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmzero_ray import hyperparameters as hp
from llmzero_ray.records import Hyperparameters
from llmzero_ray.records.agents import NodeView, OfferedCheckpoint, TaskView
from llmzero_ray.records.metrics import Curves

TINY = hp.complete(
    hp.defaults(),
    {
        "lr": 1e-3,
        "n": 8,
        "batch_size": 16,
        "temperature": 1.0,
        "kl_loss_coef": 1e-3,
        "max_response_length": 24,
        "max_prompt_length": 40,
        "lora_rank": 8,
        "lora_alpha": 16,
    },
)
"""The default recipe of the small real tasks: one update per step, so that clip ranges are inert."""

PRACTITIONER = hp.complete(hp.defaults(), {"mini_batch_size": 64})
"""The paper's Table 12 with two updates per step, so that clip ranges act."""

TASK = TaskView(
    name="csum", n_train=4096, phase_steps=20, max_phase_steps=60, max_model_len=104, max_prompt_length=40
)
BIG_TASK = TaskView(
    name="chem", n_train=5000, phase_steps=60, max_phase_steps=180, max_model_len=9216, max_prompt_length=1024
)


def wave(step: int, seed: int = 0) -> float:
    """Noise in [-1, 1] that is the same on every machine."""
    return math.sin(12.9898 * (step + 1) + 78.233 * (seed + 1)) * math.cos(4.1414 * step + seed)


def line(start: float, end: float, n: int, noise: float = 0.0, seed: int = 0) -> list[float]:
    """n values from start to end, with noise."""
    return [start + (end - start) * i / max(1, n - 1) + noise * wave(i, seed) for i in range(n)]


def recorded(number: int) -> Curves:
    """A phase of a real search on the register machine (VeRL on the CPU, 256 validation items), step by step.

    0: the root, lr 1e-3, 10 steps before anything pays. 1: lr 7e-4, validation begins to move. 2: lr 1.4e-3,
    .219 -> .344. 3, 4 and 5: at .344-.352, with groups of 20 and more from 8 prompts and fewer.
    """
    found = json.loads((Path(__file__).parent / "recorded_register.json").read_text())[str(number)]
    return Curves(
        steps=tuple(found["steps"]),
        base_step=found["base"],
        metrics={name: tuple(values) for name, values in found["metrics"].items()},
        val_steps=tuple(int(step) for step in found["val"]),
        val_scores=tuple(found["val"].values()),
        start_score=found["start"],
    )


def joined(*parts: Sequence[float]) -> list[float]:
    return [value for part in parts for value in part]


def curves(
    n: int,
    *,
    reward: Sequence[float],
    val: dict[int, float] | None = None,
    start: float | None = None,
    base_step: int = 0,
    **metrics: Sequence[float],
) -> Curves:
    """Curves of n steps; keyword names are short names of VeRL's metrics."""
    long = {
        "kl": "actor/kl_loss",
        "ppo_kl": "actor/ppo_kl",
        "entropy": "actor/entropy",
        "grad": "actor/grad_norm",
        "clipfrac": "actor/pg_clipfrac",
        "length": "response_length/mean",
        "longest": "response_length/max",
        "at_longest": "response_length/clip_ratio",
        "lr": "actor/lr",
        "adv_max": "critic/advantages/max",
        "adv_min": "critic/advantages/min",
    }
    named = {"critic/score/mean": reward, **{long[k]: v for k, v in metrics.items()}}
    val = val or {}
    return Curves(
        steps=tuple(range(1, n + 1)),
        base_step=base_step,
        metrics={name: tuple(float(v) for v in values[:n]) for name, values in named.items()},
        val_steps=tuple(val),
        val_scores=tuple(val.values()),
        start_score=start,
    )


def repaid(found: Curves, wrong: float = -1.0, right: float = 1.0) -> Curves:
    """The same phase under a reward that pays these two values instead of 0 and 1, with VeRL's extremes."""
    n = len(found.steps)
    mean = tuple(wrong + (right - wrong) * float(v or 0.0) for v in found.metrics["critic/score/mean"])
    paid = {"critic/score/mean": mean, "critic/score/min": (wrong,) * n, "critic/score/max": (right,) * n}
    return replace(found, metrics={**found.metrics, **paid})


def cut(found: Curves, n: int) -> Curves:
    """The first n steps: what was known at that time."""
    return found.until(n)


def node(found: Curves, hyperparameters: Hyperparameters = TINY, **more: Any) -> NodeView:
    """A finished node with these curves."""
    best = max(found.val_scores, default=None)
    values: dict[str, Any] = {
        "node": 0,
        "kind": "root",
        "status": "completed",
        "hyperparameters": hyperparameters,
        "n_steps": len(found.steps),
        "base_step": found.base_step,
        "score": best,
        "best_step": found.val_steps[found.val_scores.index(best)] if best is not None else None,
        "curves": found,
    }
    return NodeView(**{**values, **more})


def checkpoints(view: NodeView, every: int = 10) -> tuple[OfferedCheckpoint, ...]:
    """What a phase that saves every `every` steps offers."""
    scores = dict(zip(view.curves.val_steps, view.curves.val_scores, strict=True))
    return tuple(
        OfferedCheckpoint(node=view.node, step=s, global_step=view.base_step + s, val_score=scores.get(s))
        for s in range(every, view.n_steps + 1, every)
    )


# --- small real runs (their numbers at steps that were written down, lines between them) --------------------


def csum_steady() -> Curves:
    """lr 1e-3 on sums: .416 -> .635 -> .824, KL to .17, entropy .63 -> .48."""
    return curves(
        20,
        start=0.416,
        val={10: 0.635, 20: 0.824},
        reward=line(0.38, 0.66, 20, 0.04),
        kl=line(0.001, 0.17, 20, 0.004, 1),
        entropy=line(0.63, 0.48, 20, 0.01, 2),
        grad=line(0.5, 0.6, 20, 0.05, 3),
        length=line(7.0, 4.5, 20, 0.1, 4),
        longest=[16.0] * 20,
        at_longest=[0.02] * 20,
        clipfrac=[0.0] * 20,
        ppo_kl=[0.0] * 20,
        lr=[1e-3] * 20,
    )


def csum_swinging() -> Curves:
    """lr 3e-3 on sums: validation .723, .582, .723, .529; gradients up to 1.9."""
    return curves(
        40,
        start=0.416,
        val={10: 0.723, 20: 0.582, 30: 0.723, 40: 0.529},
        reward=joined(line(0.38, 0.57, 10, 0.05), line(0.57, 0.55, 30, 0.06)),
        kl=joined(line(0.001, 0.3, 10, 0.01, 1), line(0.3, 0.5, 30, 0.05, 1)),
        entropy=line(0.65, 0.26, 40, 0.02, 2),
        grad=line(0.6, 1.4, 40, 0.4, 3),
        length=line(7.0, 3.8, 40, 0.1, 4),
        longest=[9.0] * 40,
        at_longest=[0.4] * 40,
        lr=[3e-3] * 40,
    )


def reg_success() -> Curves:
    """lr 3e-3 on the register machine: reward .17 -> .91 in ten steps, entropy .57 -> .04, validation .957,
    .990."""
    return curves(
        30,
        start=0.230,
        val={15: 0.957, 30: 0.990},
        reward=joined(line(0.17, 0.91, 9, 0.02), line(0.92, 0.99, 21, 0.005)),
        kl=joined(line(0.001, 0.4, 10, 0.01, 1), line(0.4, 0.45, 20, 0.01, 1)),
        entropy=joined(line(0.57, 0.06, 10, 0.01, 2), line(0.06, 0.04, 20, 0.003, 2)),
        grad=joined(line(0.6, 0.9, 10, 0.05, 3), line(0.4, 0.05, 20, 0.02, 3)),
        length=joined(line(6.0, 13.0, 10, 0.1, 4), line(13.0, 13.2, 20, 0.1, 4)),
        longest=[17.0] * 30,
        at_longest=[0.05] * 30,
        lr=[3e-3] * 30,
    )


def regh_late() -> Curves:
    """lr 1e-3 on the harder register machine: flat for 12 steps, then reward, length and KL rise; validation
    last."""
    return curves(
        30,
        start=0.176,
        val={15: 0.166, 30: 1.000},
        reward=joined(line(0.17, 0.19, 11, 0.025), line(0.20, 0.29, 4, 0.01), line(0.31, 0.95, 15, 0.02)),
        kl=joined(line(0.0005, 0.02, 11, 0.001, 1), line(0.03, 0.3, 19, 0.01, 1)),
        entropy=joined(line(0.60, 0.55, 11, 0.01, 2), line(0.54, 0.1, 19, 0.01, 2)),
        grad=line(0.5, 0.8, 30, 0.05, 3),
        length=joined(line(3.5, 4.0, 11, 0.1, 4), line(4.2, 11.0, 19, 0.2, 4)),
        longest=[18.0] * 30,
        at_longest=[0.02] * 30,
        lr=[1e-3] * 30,
    )


def regh_capped() -> Curves:
    """The same with responses capped at 10 tokens: take-off into truncated chains, .168 -> .287."""
    return curves(
        20,
        start=0.176,
        val={10: 0.168, 20: 0.287},
        reward=joined(line(0.17, 0.18, 9, 0.02), line(0.2, 0.28, 11, 0.02)),
        kl=line(0.0005, 0.25, 20, 0.005, 1),
        entropy=joined(line(0.6, 0.5, 9, 0.01, 2), line(0.45, 0.07, 11, 0.01, 2)),
        grad=line(0.5, 0.5, 20, 0.05, 3),
        length=joined(line(3.5, 5.0, 9, 0.1, 4), line(6.0, 9.0, 11, 0.1, 4)),
        longest=[10.0] * 20,
        at_longest=joined(line(0.01, 0.1, 9), line(0.2, 0.7, 11)),
        lr=[3e-3] * 20,
    )


def sort_collapse() -> Curves:
    """lr 3e-3 on sorting: reward .13-.30, then .02-.03 while KL goes .16 -> .36."""
    return curves(
        19,
        start=0.3125,
        val={10: 0.301},
        reward=joined(line(0.18, 0.28, 10, 0.04), line(0.27, 0.22, 5, 0.02), [0.03, 0.02, 0.025, 0.02]),
        kl=joined(line(0.001, 0.10, 14, 0.004, 1), [0.16, 0.22, 0.30, 0.36, 0.36]),
        entropy=line(0.9, 0.5, 19, 0.02, 2),
        grad=line(0.8, 2.0, 19, 0.2, 3),
        length=line(14.0, 15.0, 19, 0.2, 4),
        longest=[20.0] * 19,
        at_longest=[0.1] * 19,
        lr=[3e-3] * 19,
    )


def untrained(n: int = 15, level: float = 0.42, base_step: int = 0, kl: float = 0.0) -> Curves:
    """Learning rate 0: sampling noise only, and greedy validation that never changes."""
    return curves(
        n,
        start=level,
        base_step=base_step,
        val=dict.fromkeys(range(5, n + 1, 5), level),
        reward=line(level - 0.04, level - 0.04, n, 0.06),
        kl=[kl + (0.1 * kl * wave(i, 1)) for i in range(n)],
        entropy=line(0.6, 0.6, n, 0.01, 2),
        grad=line(0.5, 0.5, n, 0.05, 3),
        length=line(7.0, 7.0, n, 0.1, 4),
        longest=[12.0] * n,
        at_longest=[0.02] * n,
    )


def small_steps() -> Curves:
    """Ten steps of SmolLM2-135M at a rate far too low for it: nearly all answers are cut off, 128 validation
    items, two of them change."""
    return curves(
        10,
        start=0.2656,
        val={5: 0.25, 10: 0.2656},
        reward=[0.0938, 0.1562, 0.25, 0.125, 0.1562, 0.0312, 0.2188, 0.1562, 0.1875, 0.2188],
        kl=[0.0, 0.0018, 0.0019, 0.0014, 0.0019, 0.0022, 0.0021, 0.0023, 0.0026, 0.0024],
        entropy=[1.8906, 1.7812, 1.7031, 1.6328, 1.625, 1.7734, 1.5625, 1.7266, 1.7188, 1.8906],
        grad=[0.1085, 0.1164, 0.1444, 0.0909, 0.1212, 0.0712, 0.1458, 0.136, 0.1189, 0.1554],
        length=[14.125, 15.75, 14.4375, 15.3438, 15.4062, 14.5625, 14.8125, 15.5938, 15.0938, 15.8438],
        longest=[16.0] * 10,
        at_longest=[0.7812, 0.9062, 0.7812, 0.8438, 0.9062, 0.875, 0.7812, 0.9688, 0.875, 0.9688],
    )


# --- phases of the paper ------------------------------------------------------------------------------------


def chem_kl_spike() -> Curves:
    """ChemCoT, phase 2: KL loss x16, responses 1630 -> 2278 tokens, validation .310 and no better."""
    return curves(
        20,
        start=0.292,
        base_step=59,
        val={3: 0.296, 6: 0.305, 9: 0.310, 12: 0.306, 15: 0.304, 18: 0.307},
        reward=line(0.34, 0.34, 20, 0.02),
        kl=joined(line(0.010, 0.012, 11, 0.001, 1), [0.05, 0.11, 0.16, 0.19, 0.18, 0.19, 0.18, 0.19, 0.19]),
        entropy=line(0.7, 0.66, 20, 0.01, 2),
        grad=line(0.02, 0.03, 20, 0.002, 3),
        length=joined(line(1630.0, 1660.0, 10, 8.0, 4), line(1700.0, 2278.0, 10, 10.0, 4)),
        longest=[6100.0] * 20,
        at_longest=[0.01] * 20,
        clipfrac=line(0.02, 0.03, 20, 0.002, 5),
    )


def chem_truncated() -> Curves:
    """ChemCoT, phase 3: the share of cut-off responses rises from 3 % to 8 %."""
    return curves(
        36,
        start=0.310,
        base_step=79,
        val={9: 0.318, 18: 0.322, 27: 0.330, 36: 0.332},
        reward=line(0.34, 0.37, 36, 0.02),
        kl=line(0.05, 0.06, 36, 0.004, 1),
        entropy=line(0.66, 0.62, 36, 0.01, 2),
        length=line(2278.0, 2900.0, 36, 40.0, 4),
        longest=[6144.0] * 36,
        at_longest=line(0.03, 0.09, 36, 0.004, 5),
    )


def paper_plateau() -> Curves:
    """PaperSearchQA, phase 3: validation flat at .408, near-zero clip fraction, shrinking gradients."""
    return curves(
        20,
        start=0.408,
        base_step=119,
        val={3: 0.404, 6: 0.408, 9: 0.406, 12: 0.402, 15: 0.408, 18: 0.404},
        reward=line(0.42, 0.42, 20, 0.015),
        kl=line(0.05, 0.052, 20, 0.003, 1),
        entropy=line(0.5, 0.49, 20, 0.01, 2),
        grad=line(0.004, 0.0008, 20, 0.0001, 3),
        clipfrac=line(0.0012, 0.0006, 20, 0.0001, 5),
        length=line(900.0, 905.0, 20, 10.0, 4),
        longest=[4000.0] * 20,
        at_longest=[0.01] * 20,
    )


def ssmr_regressed() -> Curves:
    """SSMR-ProposalBase, phase 2: .700 -> .672 under conservative settings (500 items)."""
    return curves(
        20,
        start=0.700,
        base_step=19,
        val={4: 0.660, 9: 0.652, 14: 0.672, 19: 0.665},
        reward=line(0.68, 0.67, 20, 0.02),
        kl=line(0.010, 0.011, 20, 0.001, 1),
        entropy=line(0.6, 0.61, 20, 0.01, 2),
        grad=line(0.02, 0.018, 20, 0.002, 3),
        clipfrac=line(0.01, 0.01, 20, 0.002, 5),
    )


def wildsci_entropy() -> Curves:
    """WildSci, phase 3: entropy down to .2 of .7-.8, reward flat, validation up by less than its noise."""
    return curves(
        20,
        start=0.600,
        base_step=119,
        val={3: 0.606, 9: 0.610, 15: 0.618, 20: 0.622},
        reward=line(0.61, 0.61, 20, 0.02),
        kl=line(0.03, 0.06, 20, 0.003, 1),
        entropy=line(0.75, 0.2, 20, 0.01, 2),
        grad=line(0.02, 0.015, 20, 0.002, 3),
        clipfrac=line(0.02, 0.01, 20, 0.002, 5),
    )
