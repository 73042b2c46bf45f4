"""Search methods by name: `llmzero`, the tree search of the paper, or what an entry point or a user names.

A method's class may say more of itself than `SearchMethod` asks for; each of these may be left out:

- `plans_its_runs`, `needs_model`: see `plans_its_runs` and `needs_model` in base.py;
- `make_agents(config, n_val, agents, services)`: the agents of the search, made of the backend's `agents`;
- `check(config)`: raises `ConfigError` where something is missing, before anything is reserved;
- `frozen_facts()`: what is frozen with the search for its agents (`SearchStarted.agents`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.records import Hyperparameters
from llmzero_ray.search.base import SearchMethod, SearchNode, plans_its_runs
from llmzero_ray.search.tree_search import TreeSearch
from llmzero_ray.utils.plugins import load_factory, own_points

TREE = "llmzero"


def shipped_methods() -> tuple[str, ...]:
    """Names of the methods of this project; nothing is imported."""
    return (TREE, *own_points("llmzero_ray.methods"))


def shipped_method(method: str) -> Callable[..., Any] | None:
    """The class of a method of this project; None for any other, which is not imported."""
    return load_method(method) if method in shipped_methods() else None


def load_method(method: str) -> Callable[..., Any]:
    """The class or factory of a method, imported.

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
    """A new search by a method.

    A factory is called with (rules, budget); one that plans its runs is also given the search's seed and the
    configuration of its first run.

    Raises:
        ConfigError: the factory cannot be loaded, or the method lacks what it needs.
    """
    factory = load_method(method)
    more = (seed, default) if plans_its_runs(factory) else ()
    found: SearchMethod[SearchNode] = factory(rules, budget, *more)
    return found
