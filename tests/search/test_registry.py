"""Methods by name: the tree, and those that extensions of this project register."""

from __future__ import annotations

import pytest

from llmzero_ray.search import TreeSearch
from llmzero_ray.search.base import needs_model, plans_its_runs
from llmzero_ray.search.registry import shipped_method, shipped_methods


def test_a_shipped_method_says_who_decides_on_its_runs() -> None:
    assert shipped_method("llmzero") is TreeSearch
    traits = {
        name: (plans_its_runs(m), needs_model(m)) for name in shipped_methods() if (m := shipped_method(name))
    }
    assert traits["llmzero"] == (False, False)
    assert traits["skills"] == (False, True)
    assert traits["pbt"] == (True, False)


@pytest.mark.parametrize("name", ["of_a_stranger", "no.such_module:Method"])
def test_another_method_is_not_imported(name: str) -> None:
    assert shipped_method(name) is None
