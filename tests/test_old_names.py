"""Settings and commands that have another name since 0.2: the old one is taken for one release."""

from __future__ import annotations

from typing import Any

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.config import RENAMED, change_settings, parse_config, resolve_config, stored_config
from llmzero_ray.errors import ConfigError

SCHEDULE = {"phases": [{"steps": 10}]}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "agents.backend: replay": (
        {"agents": {"backend": "replay", "recorded_from": "/runs/a"}},
        {"agents": {"backend": "recorded", "recorded_from": "/runs/a"}},
    ),
    "agents.replay_from": (
        {"agents": {"replay_from": "/runs/a"}},
        {"agents": {"recorded_from": "/runs/a"}},
    ),
    "search.method: replay": (
        {"search": {"method": "replay", "schedule": SCHEDULE}},
        {"search": {"method": "schedule", "schedule": SCHEDULE}},
    ),
    "search.recipes": ({"search": {"recipes": 3}}, {"search": {"n_trials": 3}}),
}


def test_every_renamed_setting_is_tried_here() -> None:
    assert set(CASES) == set(RENAMED)


@pytest.mark.parametrize("name", CASES)
def test_an_old_name_means_the_new_one_and_a_note_says_so(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = CASES[name]
    assert parse_config({"name": "x", **old}) == parse_config({"name": "x", **new})
    note = f"search.yaml: {name} is called {RENAMED[name]} since 0.2. Rename it: 0.3 refuses the old name."
    assert caplog.messages == [note]


@pytest.mark.parametrize("name", CASES)
def test_a_stored_search_with_an_old_name_opens_without_a_note(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = CASES[name]
    assert stored_config({"name": "x", **old}, source="journal") == parse_config({"name": "x", **new})
    assert caplog.messages == []


def test_an_old_name_given_as_an_override_replaces_the_value_under_the_new_one() -> None:
    given = {"name": "x", "search": {"n_trials": 8}}
    assert resolve_config(given, ["search.recipes=3"]).search.n_trials == 3
    for settings in ({"search.recipes": 4}, {"search": {"recipes": 4}}):
        data = parse_config(given).to_json()
        change_settings(data, settings)
        assert parse_config(data).search.n_trials == 4


def test_an_old_value_given_as_an_override_is_noted_without_the_files_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = resolve_config({"name": "x"}, ["agents.backend=replay", "agents.recorded_from=/runs/a"])
    assert config.agents.backend == "recorded"
    (note,) = caplog.messages
    assert note.startswith("a setting: agents.backend: replay is called agents.backend: recorded since 0.2.")


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'recipes' in search"):
        parse_config({"name": "x", "search": {"recipes": 3, "n_trials": 4}})


def test_an_old_command_runs_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "nowhere"]) == main(["retrain", "nowhere"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("nowhere: there is no strategy.yaml here") == 2
    assert printed.count("`replay` is called `retrain` since 0.2; 0.3 refuses the old name.") == 1
