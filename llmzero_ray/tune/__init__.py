"""The search as a plug-in of Ray Tune: `tree_search` for any `Tuner`, `StrategyRetraining` for the strategy
that it found.

    search_alg, scheduler = tree_search(
        metric="accuracy", space={"lr": tune.loguniform(1e-4, 1e-1)}, root={"lr": 1e-2}, phase_steps=10
    )
    tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=search_alg, scheduler=scheduler, num_samples=-1, max_concurrent_trials=2
        ),
    ).fit()

Each trial is a phase: it starts from scratch or from a checkpoint of another trial, with other
hyper-parameters. `verl_trainable` trains such phases with VeRL on this project's slots. Not here: searches on
VeRL (actors/), which need no Tune.
"""

import logging
from typing import Any

from llmzero_ray.tune.internals import check_ray, get_checkpoint

check_ray()  # first: the modules below import names that another Ray may not have

from llmzero_ray.tune.factory import tree_search  # noqa: E402
from llmzero_ray.tune.retraining import StrategyRetraining  # noqa: E402
from llmzero_ray.tune.verl_trainable import verl_trainable  # noqa: E402

__all__ = ["StrategyRetraining", "get_checkpoint", "tree_search", "verl_trainable"]


def __getattr__(name: str) -> Any:
    """`StrategyReplay`, the name that `StrategyRetraining` had in 0.1; 0.2 takes both."""
    if name != "StrategyReplay":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    logging.getLogger(__name__).warning(
        "StrategyReplay is called StrategyRetraining since 0.2. Rename it: 0.3 refuses the old name."
    )
    return StrategyRetraining
