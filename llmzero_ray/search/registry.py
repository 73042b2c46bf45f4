"""Search methods by name: `llmzero`, the tree search of the paper, or a user's factory."""

from __future__ import annotations

from collections.abc import Callable

from llmzero_ray.plugin import load_factory
from llmzero_ray.search.base import SearchMethod
from llmzero_ray.search.rules import SearchRules
from llmzero_ray.search.tree_search import TreeSearch

_METHODS: dict[str, Callable[[SearchRules, int | None], SearchMethod]] = {"llmzero": TreeSearch}


def make_search(method: str, rules: SearchRules, budget: int | None) -> SearchMethod:
    """A new search by a method: `llmzero`, or `package.module:factory`, called with (rules, budget).

    Raises:
        ConfigError: the factory cannot be loaded.
    """
    factory = _METHODS.get(method) or load_factory(method, field="search.method")
    found: SearchMethod = factory(rules, budget)
    return found
