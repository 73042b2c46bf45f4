"""Conversion of a Ray Tune search space to a `Space`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.tune.search.sample import Categorical, Domain, Float, Integer, Quantized

from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters import Parameter, Space
from llmzero_ray.tune.trial_space import TrialSpace, category_name
from llmzero_ray.utils.text import nearest

_ALLOWED = "tune.uniform, tune.loguniform, tune.randint, tune.lograndint, tune.choice"


def trial_space(space: Space | Mapping[str, Any], root: Mapping[str, Any]) -> TrialSpace:
    """The space with its complete root configuration.

    A mapping holds a Ray Tune domain for each name, and `root` a value for each. For a `Space`, `root` holds
    only what differs from the defaults.

    Raises:
        ConfigError: a domain is invalid or has no bounds, or the root is outside the space.
    """
    for name, given in (("space", space), ("root", root)):
        odd = [key for key in given if not isinstance(key, str)] if isinstance(given, Mapping) else []
        if odd:
            raise ConfigError(f"{name} has the name {odd[0]!r}; names must be texts.")
    if not isinstance(root, Mapping):
        raise ConfigError(f"root is {root!r}; must be a mapping from names of the space to values.")
    if isinstance(space, Space):
        try:
            return TrialSpace(space=space, root=space.complete(space.defaults(), root))
        except HyperparameterError as error:
            raise ConfigError(f"root: {error}") from error
    if not isinstance(space, Mapping) or not space:
        raise ConfigError(
            f"space is {space!r}; must be a llmzero_ray.hyperparameters.Space or a mapping from names to "
            f"{_ALLOWED}."
        )
    _check_names(space, root)
    categories = {
        key: {category_name(each): each for each in domain.categories}
        for key, domain in space.items()
        if isinstance(domain, Categorical) and not _is_switch(domain)
    }
    made = TrialSpace(
        space=Space(
            trainer="the search space",
            parameters=tuple(_parameter(key, domain, root[key]) for key, domain in space.items()),
        ),
        root={},
        categories=categories,
    )
    try:
        complete = made.space.normalize(made.named(root))
    except HyperparameterError as error:
        raise ConfigError(f"root does not lie in the space: {error}") from error
    return TrialSpace(space=made.space, root=complete, categories=categories)


def _check_names(space: Mapping[str, Any], root: Mapping[str, Any]) -> None:
    missing = [key for key in space if key not in root]
    if missing:
        raise ConfigError(
            f"root has no value for {', '.join(missing)}; the first trial needs one for each name of the "
            "space."
        )
    for key in root:
        if key not in space:
            near = nearest(key, list(space))
            hint = f"did you mean {near!r}?" if near else f"the space has {', '.join(space)}."
            raise ConfigError(
                f"root: {key!r} is not in the space: {hint} Values that never change belong into "
                "Tuner(param_space=...)."
            )


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _is_switch(domain: Any) -> bool:
    """Whether the categories are True and False. A choice of one of them is no switch."""
    return all(isinstance(each, bool) for each in domain.categories) and len(set(domain.categories)) == 2


def _parameter(key: str, domain: Any, value: Any) -> Parameter:
    if isinstance(domain, Categorical):
        if _is_switch(domain):
            return Parameter(
                key=key, alias=key, kind="bool", default=bool(value), doc="", group="optimisation"
            )
        if not domain.categories:
            raise ConfigError(f"space: {key} has no category; give tune.choice at least one.")
        odd = [each for each in domain.categories if not _is_plain(each)]
        if odd:
            raise ConfigError(
                f"space: {key} has the category {odd[0]!r}; must be numbers, texts, True, False, None or "
                "lists of these. Give it a name, and look the object up in the trainable."
            )
        names = tuple(category_name(each) for each in domain.categories)
        if len(set(names)) != len(names):
            raise ConfigError(f"space: two categories of {key} read alike: {', '.join(names)}; rename one.")
        return Parameter(
            key=key,
            alias=key,
            kind="choice",
            choices=names,
            default=category_name(value),
            doc="",
            group="optimisation",
        )
    if isinstance(domain, Float | Integer):
        return _numeric(key, domain, value)
    what = "a value" if not isinstance(domain, Domain) else type(domain).__name__
    raise ConfigError(f"space: {key} is {what}, {domain!r}; must be one of {_ALLOWED}.")


def _numeric(key: str, domain: Any, value: Any) -> Parameter:
    sampler = domain.get_sampler()
    if isinstance(sampler, Quantized):
        raise ConfigError(
            f"space: {key} is quantized; take the domain without q, or tune.choice for a few values."
        )
    whole = isinstance(domain, Integer)
    low, high = float(domain.lower), float(domain.upper) - (1 if whole else 0)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"space: {key} has no bounds; must be one of {_ALLOWED}.")
    return Parameter(
        key=key,
        alias=key,
        kind="int" if whole else "float",
        low=low,
        high=high,
        scale="log" if str(sampler) == "LogUniform" else "linear",
        default=value,
        doc="",
        group="optimisation",
    )
