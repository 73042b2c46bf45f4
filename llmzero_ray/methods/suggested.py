"""Recipes from Optuna's samplers TPE and CMA-ES, based on the scores of the search's earlier recipes.

No study is stored: each request creates one in memory and adds the trained recipes with their scores, in
order, so that a resumed search suggests the same as an uninterrupted one. A failed recipe is a failed trial,
one that still trains is a running trial. Not here: number and length of runs (independent.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import VERL_SPACE, canonical
from llmzero_ray.methods import values
from llmzero_ray.methods.independent import IndependentRuns
from llmzero_ray.methods.run_plan import RunPlan
from llmzero_ray.methods.values import PlannedStart
from llmzero_ray.records import Hyperparameters, HyperparameterValue
from llmzero_ray.records.agents import NodeView

STARTUP = 3
"""Number of random start-up recipes of TPE, of 8 in total. Optuna's default is 10, more than all of them."""
POPULATION = 4
"""Number of recipes in one generation of CMA-ES: 8 recipes make two generations."""


class TpeSearch(IndependentRuns):
    """Recipes that Optuna's TPE suggests."""

    source, words = "suggest", "suggested recipe"

    @classmethod
    def check(cls, config: SearchConfig) -> None:
        """Check that Optuna is installed.

        Raises:
            ConfigError: it is not; the message names the extra to install.
        """
        missing = [name for name in ("optuna", "cmaes") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"search.method is {config.search.method}, which needs {' and '.join(missing)}: "
                "pip install 'llmzero-ray[optuna]'."
            )

    def values(self, plan: RunPlan, at: PlannedStart) -> Mapping[str, HyperparameterValue]:
        """The next suggestion. It depends only on the search's seed, the try, and earlier recipes and
        scores."""
        if plan.source != "suggest":
            return {}
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        distributions, request = self._distributions(at.root), at.request
        # A new try after a rejection has other random numbers.
        study = optuna.create_study(direction="maximize", sampler=self._sampler(at.rng.getrandbits(31)))
        earlier = [view for view in (*request.tree, request.on) if view.kind in ("root", "scratch")]
        for view in sorted(earlier, key=lambda one: one.node):
            if view.node != request.node and view.hyperparameters:
                _tell(study, view, distributions)
        return dict(study.ask(distributions).params)

    def _sampler(self, seed: int) -> Any:
        from optuna.samplers import TPESampler

        return TPESampler(n_startup_trials=STARTUP, seed=seed)

    def _distributions(self, root: Hyperparameters) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        found: dict[str, Any] = {}
        inert = VERL_SPACE.inert(root)
        for name, given in self.ranges.items():
            key = canonical(name)
            if key in inert:
                continue
            if given.choices:
                known: Any = values.choices(key, given, root)
                found[key] = CategoricalDistribution(known)
                continue
            low, high = values.bounds(key, given, root)
            row = VERL_SPACE.bounds(key)
            if row is not None and row.kind == "int":
                found[key] = IntDistribution(max(1, round(low)), max(1, round(high)), log=given.log)
            else:
                found[key] = FloatDistribution(low, high, log=given.log and low > 0)
        return found


class CmaEsSearch(TpeSearch):
    """Recipes that Optuna's CMA-ES suggests."""

    def _sampler(self, seed: int) -> Any:
        from optuna.samplers import CmaEsSampler, RandomSampler

        return CmaEsSampler(
            n_startup_trials=1,
            popsize=POPULATION,
            seed=seed,
            independent_sampler=RandomSampler(seed=seed),  # for values that are not numbers
            warn_independent_sampling=False,
        )


def _tell(study: Any, view: NodeView, distributions: dict[str, Any]) -> None:
    """Add a trained recipe and its outcome to the study."""
    from optuna.trial import TrialState

    study.enqueue_trial(
        {key: _inside(view.hyperparameters.get(key), one) for key, one in distributions.items()}
    )
    trial = study.ask(distributions)
    _ = trial.relative_params  # CMA-ES assigns a trial to a generation when it samples
    if view.status == "failed" or (view.score is None and view.status not in ("pending", "running")):
        study.tell(trial, state=TrialState.FAIL)
    elif view.score is not None and view.status not in ("pending", "running"):
        study.tell(trial, view.score)


def _inside(value: Any, distribution: Any) -> Any:
    """The value clipped to the range, because rounding or a rule of the space may have moved it outside."""
    if hasattr(distribution, "choices"):
        return value if value in distribution.choices else distribution.choices[0]
    return min(max(value, distribution.low), distribution.high)
