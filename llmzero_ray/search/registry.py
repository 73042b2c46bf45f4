"""Search methods by name: `llmzero` (the tree search of the paper), or one that an entry point or user names.

Besides the interface of `SearchMethod`, a method's class may have these optional attributes:

- `plans_its_runs`, `needs_model`: see the functions of the same names in base.py;
- `make_agents(config, n_val, agents, services)`: returns the search's agents, made from the backend's
  `agents`;
- `check(config)`: raises `ConfigError` if something is missing, before anything is reserved;
- `check_plan(config)`: raises `ConfigError` if a new search cannot train what the method plans;
- `frozen_facts()`: facts for its agents that are frozen when the search starts (`SearchStarted.agents`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.records import Hyperparameters
from llmzero_ray.search.base import SearchMethod, SearchNode, plans_its_runs
from llmzero_ray.search.tree_search import TreeSearch
from llmzero_ray.utils.plugins import load_factory, make, own_points

TREE = "llmzero"


def shipped_methods() -> tuple[str, ...]:
    """Names of this project's methods. Nothing is imported."""
    return (TREE, *own_points("llmzero_ray.methods"))


def shipped_method(method: str) -> Callable[..., Any] | None:
    """Class of a method of this project. None for any other method, which is not imported."""
    return load_method(method) if method in shipped_methods() else None


def load_method(method: str) -> Callable[..., Any]:
    """Import the class or factory of a method.

    Raises:
        ConfigError: it cannot be loaded.
    """
    return TreeSearch if method == TREE else load_factory(method, field="search.method")


def make_search(
    method: str,
    rules: SearchRules,
    budget: int | None,
    seed: int = 1,
    default: Hyperparameters | None = None,
) -> SearchMethod[SearchNode]:
    """Start a new search with a method.

    Its factory is called with (rules, budget). One that plans its runs also gets the search's seed and the
    configuration of the first run.

    Raises:
        ConfigError: the factory cannot be loaded or raises, or the method lacks what it needs.
    """
    if method == TREE:
        return TreeSearch(rules, budget)
    more = (seed, default) if plans_its_runs(load_method(method)) else ()
    found: SearchMethod[SearchNode] = make(method, rules, budget, *more, field="search.method")
    return found
