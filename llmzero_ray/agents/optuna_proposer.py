"""Recipes suggested by Optuna's samplers, TPE and CMA-ES, from the scores of the search's earlier recipes.

No study is kept: at each request one is made in memory and given the recipes that were trained, in their
order, each with its score, so that a resumed search suggests what an uninterrupted one would. A recipe that
failed counts as failed, one that still trains as running. Not here: ranges, start and length (methods/).
"""

from __future__ import annotations

import importlib.util
import random
from typing import Any

from llmzero_ray.agents.methods import values
from llmzero_ray.agents.methods.proposer import PlanProposer
from llmzero_ray.agents.methods.values import Values
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import BY_KEY, VERL_SPACE, canonical
from llmzero_ray.records.agents import NodeView, ProposalRequest

STARTUP = 3
"""Recipes of TPE that are drawn at random, of 8; Optuna's own 10 would be all of them."""
POPULATION = 4
"""Recipes of one generation of CMA-ES: two generations of 8."""


def check_optuna(method: str) -> None:
    """Check that Optuna is installed.

    Raises:
        ConfigError: it is not; the extra is named.
    """
    missing = [name for name in ("optuna", "cmaes") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"search.method is {method}, which needs {' and '.join(missing)}: "
            "pip install 'llmzero-ray[optuna]'."
        )


class OptunaProposer(PlanProposer):
    """Fills in the values that a sampler of Optuna suggests; `method` is `tpe` or `cmaes`."""

    def suggest(self, request: ProposalRequest) -> Values:
        """The next suggestion, the same for the same earlier recipes and scores."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        distributions = self._distributions(request)
        study = optuna.create_study(direction="maximize", sampler=self._sampler(request))
        earlier = [view for view in (*request.tree, request.on) if view.kind in ("root", "scratch")]
        for view in sorted(earlier, key=lambda one: one.node):
            if view.node != request.node and view.hyperparameters:
                _tell(study, view, distributions)
        return dict(study.ask(distributions).params)

    def _sampler(self, request: ProposalRequest) -> Any:
        from optuna.samplers import CmaEsSampler, RandomSampler, TPESampler

        # A suggestion that was refused is made again with other random numbers.
        seed = random.Random(f"{self._seed}:{request.node}:{request.tries}").getrandbits(31)
        if self._method == "tpe":
            return TPESampler(n_startup_trials=STARTUP, seed=seed)
        return CmaEsSampler(
            n_startup_trials=1,
            popsize=POPULATION,
            seed=seed,
            independent_sampler=RandomSampler(seed=seed),  # of what is no number
            warn_independent_sampling=False,
        )

    def _distributions(self, request: ProposalRequest) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        found: dict[str, Any] = {}
        inert = VERL_SPACE.inert(request.default)
        for name, given in self.ranges.items():
            key = canonical(name)
            if key in inert:
                continue
            if given.choices:
                known: Any = values.choices(key, given, request.default)
                found[key] = CategoricalDistribution(known)
                continue
            low, high = values.bounds(key, given, request.default)
            if BY_KEY[key].kind == "int":
                found[key] = IntDistribution(max(1, round(low)), max(1, round(high)), log=given.log)
            else:
                found[key] = FloatDistribution(low, high, log=given.log and low > 0)
        return found


def _tell(study: Any, view: NodeView, distributions: dict[str, Any]) -> None:
    """Give the study a recipe that was trained, with what came of it."""
    from optuna.trial import TrialState

    study.enqueue_trial(
        {key: _inside(view.hyperparameters.get(key), one) for key, one in distributions.items()}
    )
    trial = study.ask(distributions)
    _ = trial.relative_params  # CMA-ES counts a trial to a generation where it samples
    if view.status == "failed" or (view.score is None and view.status not in ("pending", "running")):
        study.tell(trial, state=TrialState.FAIL)
    elif view.score is not None and view.status not in ("pending", "running"):
        study.tell(trial, view.score)


def _inside(value: Any, distribution: Any) -> Any:
    """The value within the range: rounding may have put it just outside, a rule of the space elsewhere."""
    if hasattr(distribution, "choices"):
        return value if value in distribution.choices else distribution.choices[0]
    return min(max(value, distribution.low), distribution.high)
