"""Request to the early stopper: the running phase, the incumbent's whole path, their item-by-item
differences, earlier verdicts, and the savings of a stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from llmzero_ray.config import SearchConfig
from llmzero_ray.dynamics.incumbent import LoadItems, scores_along, standings
from llmzero_ray.hyperparameters.compute import amount, step_tokens, token_cost
from llmzero_ray.records import Saving
from llmzero_ray.records.agents import Budget, EarlierVerdict, NodeView, StopRequest, TaskView
from llmzero_ray.records.metrics import STEP_TIME, series
from llmzero_ray.utils.text import short_duration


def stop_request(
    config: SearchConfig,
    task: TaskView,
    running: NodeView,
    chain: Sequence[NodeView],
    verdicts: Sequence[EarlierVerdict],
    load_items: LoadItems,
    *,
    n_val: int,
    budget: Budget | None = None,
    ended: Sequence[NodeView] = (),
) -> StopRequest:
    """Request to judge `running` against the incumbent. `chain` is the incumbent's resume chain, itself last.
    `budget` and `ended` are the remaining budget and the other scored phases when `running` began."""
    return StopRequest(
        task=task,
        running=running,
        incumbent=chain[-1],
        incumbent_path=scores_along(chain),
        incumbent_chain=tuple(chain),
        standings=standings(running, chain, load_items, n_val=n_val),
        ended=tuple(ended),
        verdicts=tuple(verdicts),
        saves=saving(config, running),
        budget=budget or Budget(),
    )


def saving(config: SearchConfig, running: NodeView) -> Saving:
    """Savings if this phase is stopped after its last step so far."""
    steps = max(0, running.n_steps - max(running.curves.steps, default=0))
    times = series(running.curves, STEP_TIME).values
    seconds = steps * fmean(times) if times else None
    limit, whole = config.budget.gpu_hours, config.budget.runs * config.phase.n_steps
    share, tokens = steps / whole, step_tokens(running.hyperparameters, running.curves)
    if config.budget.compute is not None and tokens is not None:
        share = steps * amount(tokens, token_cost(config)) / config.budget.compute
    elif limit is not None and seconds is not None:
        share = seconds / 3600 * config.slots.n_gpus / limit
    rounded = None if seconds is None or not math.isfinite(seconds) else round(seconds, 1)
    return Saving(steps=steps, seconds=rounded, share=round(share, 4))


def saving_text(saves: Saving) -> str:
    """Savings as text: `5 steps, 40 s, 6.3% of the budget`."""
    parts = [f"{saves.steps} step{'' if saves.steps == 1 else 's'}"]
    if saves.seconds is not None:
        parts.append(short_duration(saves.seconds))
    if saves.share is not None:
        parts.append(f"{saves.share:.1%} of the budget")
    return ", ".join(parts)
