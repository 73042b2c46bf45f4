"""Explanations of the paper's trees, VeRL's configuration of every preset, and rewards to the digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox import inputs, tables


def record(name: str) -> Any:
    return json.loads((inputs.DATA / name).read_text())


@pytest.mark.parametrize("name", list(tables.EXPLANATIONS))
def test_an_explanation_says_what_it_said(name: str, tmp_path: Path) -> None:
    assert tables.explanation(name, tmp_path) == record("explanations.json")[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in sorted(tables.CONFIGS.glob("*.yaml"))])
def test_a_preset_becomes_the_same_configuration_of_verl(name: str) -> None:
    recorded, found = record("presets.json")[name], json.loads(json.dumps(tables.preset(name)))
    assert found["root"] == recorded["root"]
    assert found["overrides"] == recorded["overrides"]
    assert found.get("composed") == recorded.get("composed")


def test_no_preset_has_gone() -> None:
    assert set(record("presets.json")) <= {path.stem for path in tables.CONFIGS.glob("*.yaml")}


@pytest.mark.parametrize("group", tables.reward_groups(), ids=lambda group: str(group["name"]))
def test_a_reward_pays_what_it_paid(group: dict[str, Any], tmp_path: Path) -> None:
    assert tables.scored(group, tmp_path) == group
