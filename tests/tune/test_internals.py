"""The contract with the installed Ray: every name that is relied on is there, another version is refused."""

from __future__ import annotations

import pytest
import ray

from llmzero_ray.errors import EngineVersionError
from llmzero_ray.tune import internals


def test_the_installed_ray_has_every_name_that_is_relied_on() -> None:
    internals.check_ray()
    assert internals.missing_attributes() == []


def test_another_version_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    internals.check_ray.cache_clear()
    with pytest.raises(EngineVersionError, match=r"Ray 2\.61\.0 is installed.*Install 'ray\[tune\]==2\.60"):
        internals.check_ray()


@pytest.mark.parametrize("module", sorted(internals.RELIED_ON))
def test_a_missing_name_is_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(internals.RELIED_ON, module, ("gone",))
    internals.check_ray.cache_clear()
    with pytest.raises(EngineVersionError, match=f"lacks {module}.gone"):
        internals.check_ray()
    internals.check_ray.cache_clear()
