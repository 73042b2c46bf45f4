"""Settings of early stopping: the block `stopper` of search.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llmzero_ray.config.yaml_text import PLUGIN, StrictModel, setting


class StopperSettings(StrictModel):
    """Early stopping of running phases."""

    enabled: bool = True
    """If false, no stopper runs: phases end at n_steps, at a limit, or when the user stops them. If not
    given, it is false for search methods other than `llmzero` and `skills`: their runs go to the end, as the
    paper's baselines do."""
    interval_s: float = setting(0.0, "seconds", ge=0)
    """Seconds of training between two questions to the early-stopper agent. 0: it is asked at every
    validation; the paper asks every 900 s."""
    interval_steps: int | None = setting(None, "training steps", ge=1)
    """Steps between two questions. If null, `interval_s` applies."""
    min_steps: int = setting(10, "training steps", ge=1)
    """Steps before which the agent is not asked; in a phase of fewer than twice as many, half of the phase.
    The paper judges nothing before step 10."""
    stop_below: float = setting(0.03, "share", ge=0, le=1)
    """Chance below which a phase is stopped: a language model gives the chance that the phase's peak still
    passes the best score. The rules do not use it."""
    collapse: bool = True
    """Whether the collapse detector may end a phase: a KL of 3 times its earlier median, after which the
    mean reward lost 60% of its best level."""
    rules: list[Annotated[str, Field(pattern=PLUGIN)]] = Field(default_factory=list)
    """Further rules that may end a phase. Each is the name of an entry point in the group
    llmzero_ray.stop_rules, or `package.module:factory`; the factory gets this block's settings and gives a
    `llmzero_ray.stopping.rules.StopRule`."""

    def first_question(self, n_steps: int) -> int:
        """Step of a phase of `n_steps` steps from which the agent is asked."""
        return min(self.min_steps, max(1, n_steps // 2))
