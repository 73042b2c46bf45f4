"""Parameters of the search rules, with their bounds.

One frozen record, shared by a search, its replay and `explain --set`. Defaults are the paper's (App. B.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from llmzero_ray.config.schedule import Grid, NamedSchedule, Ranges
from llmzero_ray.config.yaml_text import StrictModel, read_yaml, setting, validated
from llmzero_ray.errors import ConfigError

QAggregate: TypeAlias = Literal["f_of_mean", "mean_of_f"]
"""`f_of_mean`: shape the mean normalised score · `mean_of_f`: average the shaped scores."""


class SearchRules(StrictModel):
    """Parameters of selection, expansion and value."""

    C: float = setting(1.414, ge=0)
    """Weight of exploration, unitless. The paper prints 1.414, which is not sqrt 2."""
    T: float = setting(0.3, gt=0)
    """Temperature of the exponential shaping of normalised scores. Large values make it linear; a small one
    such as 0.01 rewards only the best scores."""
    w_f: float = setting(0.5, ge=0)
    """Penalty per failed run's share of visits."""
    w_e: float = setting(0.3, ge=0)
    """Penalty per early-stopped run's share of visits."""
    o_f: int = setting(2, ge=0)
    """Failures of a subtree that cost nothing."""
    max_evolve_children: int = setting(2, ge=1)
    """Maximum children of a node that has not failed. Exempt children are not counted."""
    max_debug_children: int = setting(3, ge=0)
    """Maximum debug children of a failed node. 0 switches debugging off."""
    max_debug_depth: int = setting(5, ge=0)
    """A failed node this deep in a chain of debug runs gets no further debug child."""
    rho_min: float = setting(0.2, ge=0, le=1)
    """Smallest share of from-scratch runs among all but the debug runs; 0 never forces one."""
    q_aggregate: QAggregate = "f_of_mean"
    """Whether scores are averaged before or after they are shaped."""
    multi_stage: bool = True
    """If false, no checkpoint is offered and every node starts from the base model."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> SearchRules:
        """Rules with these values and defaults for the others.

        Raises:
            ConfigError: a name is unknown (the nearest one is given), or a value is not allowed.
        """
        return validated(cls, dict(values), "search rules")

    def with_settings(self, settings: Iterable[str]) -> SearchRules:
        """These rules with `key=value` strings applied in order. The last value of a repeated key counts.

        Raises:
            ConfigError: a string has no `=`, its key is unknown (the nearest one is given), or its value is
                not allowed.
        """
        changed: dict[str, Any] = {}
        for text in settings:
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"setting {text!r} has no '='; write key=value, such as C=1.0.")
            changed[name.strip()] = read_yaml(value.strip(), source=name.strip())
        return self.read({**self.model_dump(), **changed})


class MethodRules(SearchRules):
    """Further parameters of the other search methods."""

    n_trials: int = setting(8, "trials", ge=1)
    """Runs over which `random`, `grid`, `tpe` and `cmaes` split the budget evenly. For `grid`: the number of
    its cells."""
    population: int = setting(4, "members", ge=2)
    """Members of `pbt`, trained in turn."""
    quantile: float = setting(0.25, "share of the population", gt=0, le=0.5)
    """`pbt`: share of members that copy another's adapter and settings, and share of members that are
    copied."""
    resample: float = setting(0.25, "probability", ge=0, le=1)
    """`pbt`: probability that a copied hyper-parameter is drawn again instead of multiplied by 0.8 or 1.2."""
    eta: int = setting(2, "trials", ge=2)
    """`asha`: one of this many trials continues, for this many times its steps."""
    ranges: Ranges | None = None
    """Hyper-parameter -> its range, for `random`, `tpe`, `cmaes`, `asha` and `pbt`: `relative` (the default),
    `paper`, or a file."""
    grid: Grid | None = None
    """Hyper-parameter -> factors of the root's value, for `grid`: `lr_kl` (the default), `paper`,
    `paper_ssmr` (16 `n_trials`), or a file."""
    schedule: NamedSchedule | None = None
    """Phases of `schedule`: `chemcot`, `papersearchqa`, `ssmr`, `wildsci`, `guidebook`, or a file, such as
    the strategy.yaml of a search."""
