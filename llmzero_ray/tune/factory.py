"""`tree_search`: the pair of search algorithm and scheduler that a `ray.tune.Tuner` is given."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, get_args

from ray import cloudpickle

from llmzero_ray.config import AgentsConfig, parse_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import Space
from llmzero_ray.search import SearchRules
from llmzero_ray.tune.domains import trial_space
from llmzero_ray.tune.early_stop import EarlyStops
from llmzero_ray.tune.internals import check_ray
from llmzero_ray.tune.named_proposers import NAMES, made_proposer
from llmzero_ray.tune.phase_start import CONFIG_KEY, LINEAGE_KEY
from llmzero_ray.tune.proposals import AsyncProposals
from llmzero_ray.tune.scheduler import TreeScheduler
from llmzero_ray.tune.searcher import TreeSearcher
from llmzero_ray.tune.state import NO_LIMIT, Mode, TuneSearch
from llmzero_ray.utils.plugins import load_factory


def tree_search(
    *,
    metric: str,
    mode: Mode = "max",
    space: Space | Mapping[str, Any],
    root: Mapping[str, Any],
    proposer: Any = "local",
    stopper: Any = None,
    rules: SearchRules | None = None,
    budget: int = 16,
    phase_steps: int | None = None,
    seed: int = 1,
    dollars: float | None = None,
) -> tuple[TreeSearcher, TreeScheduler]:
    """(search_alg, scheduler) for `TuneConfig`: a tree search over phases, where each trial is a phase.

    `metric` is a key that trials report, not necessarily in every result. `space` is a mapping from names to
    Ray Tune's domains, or a `Space`; `root` is the configuration of the first trial. `budget` counts trials.
    A trial ends after `phase_steps` results (if None, the trainable ends by itself).

    `proposer` is `local`, `random`, `expert` or `claude` (VeRL's space only), the `AgentsConfig` of a
    language model, `package.module:factory` (called without arguments where the search runs), an object with
    `propose(ProposalRequest)`, or a function of the request that gives a `Proposal` or a mapping from names
    to new values. It runs on its own thread. `dollars` caps the cost of a language model. `stopper` is
    `StopperSettings`, a `ray.tune.Stopper`, or a function of the running phase and the best one that returns
    True or a reason to stop.

    Raises:
        ConfigError: the root is outside the space, or an argument is none of these.
        AgentError: the language model cannot be called: no key, or its server refuses.
        EngineVersionError: the installed Ray is not a tested version.
    """
    check_ray()
    if mode not in get_args(Mode):
        raise ConfigError(f"mode is {mode!r}; must be 'max' or 'min'.")
    for name, value, least in (("budget", budget, 2), ("phase_steps", phase_steps, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ConfigError(f"{name} is {value!r}; must be a whole number >= {least}.")
    if not isinstance(metric, str) or not metric:
        raise ConfigError(f"metric is {metric!r}; must be the name of a number that trials report.")
    if dollars is not None and (not isinstance(dollars, int | float) or not dollars > 0):
        raise ConfigError(f"dollars is {dollars!r}; must be a number > 0, or None.")
    if not isinstance(rules, SearchRules | None):
        raise ConfigError(f"rules is {rules!r}; must be a SearchRules, or None.")
    trials = trial_space(space, root)
    for row in trials.space.parameters:
        if row.key in (CONFIG_KEY, LINEAGE_KEY):
            raise ConfigError(f"space: {row.key!r} is the search's own name in a trial; take another one.")
    stops = EarlyStops(stopper)
    _check_pickle("stopper", stopper)
    rules = SearchRules() if rules is None else rules
    steps = phase_steps or NO_LIMIT
    config = {
        "name": f"llmzero-{uuid.uuid4().hex[:12]}",
        "seed": seed,
        "search": rules.model_dump(),
        "budget": {"runs": budget},
        "phase": {"n_steps": steps, "max_steps": NO_LIMIT, "test_freq": 1, "save_freq": 1},
        "engine": {"max_prompt_length": NO_LIMIT, "max_response_length": NO_LIMIT},
        "confirm": {"k": 0},
        "final": {"test": False, "default_recipe": False},
    }
    search = TuneSearch(
        config=parse_config(config, source="tree_search"),
        metric=metric,
        mode=mode,
        trials=trials,
        phase_steps=phase_steps,
    )
    proposals = AsyncProposals(search, _proposer(proposer, trials.space, seed, dollars))
    searcher = TreeSearcher(search, proposals)
    return searcher, TreeScheduler(searcher, stops)


def _proposer(given: Any, space: Space, seed: int, dollars: float | None) -> Any:
    allowed = (
        f"must be {', '.join(map(repr, NAMES))}, an AgentsConfig, 'package.module:factory', an object with "
        "propose, or a function."
    )
    if isinstance(given, AgentsConfig):
        return made_proposer(given, space, seed, dollars)
    if isinstance(given, str):
        if given in NAMES:
            return made_proposer(given, space, seed, dollars)
        if ":" in given:
            return NamedProposer(given)
        raise ConfigError(f"proposer is {given!r}; {allowed}")
    if not callable(given) and not callable(getattr(given, "propose", None)):
        raise ConfigError(f"proposer is {given!r}; {allowed}")
    _check_pickle("proposer", given)
    return given


class NamedProposer:
    """Proposer of a factory, created where it is used, so that its clients and keys are never pickled."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: Any = None
        load_factory(name, field="proposer")

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_made": None}

    def __call__(self, request: Any) -> Any:
        """Answer of the proposer."""
        if self._made is None:
            self._made = load_factory(self._name, field="proposer")()
        return getattr(self._made, "propose", self._made)(request)


def _check_pickle(what: str, given: Any) -> None:
    try:
        cloudpickle.dumps(given)
    except Exception as error:
        raise ConfigError(
            f"{what} {given!r} cannot be pickled ({error}), and Tuner keeps it in tuner.pkl for "
            "Tuner.restore. Make what it holds (clients, locks, files) inside it when it is first called"
            + (", or name a factory: proposer='package.module:factory'." if what == "proposer" else ".")
        ) from error
