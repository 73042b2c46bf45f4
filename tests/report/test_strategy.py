"""strategy.yaml: what is in it, that it comes back as it was, that a broken one is refused in one message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import canonical
from llmzero_ray.report import Strategy, load_strategy, phase_specs
from tests.report.conftest import Written

LR = canonical("lr")


@pytest.fixture(scope="session")
def strategy(finished: Written) -> Strategy:
    return load_strategy(finished.root / "strategy.yaml")


def test_phases_are_the_resume_chain_each_cut_where_the_next_one_starts(strategy: Strategy) -> None:
    chain = [(p.node, p.base_step, p.cut_step, p.end_step) for p in strategy.phases]
    assert chain == [(0, 0, 20, 20), (1, 20, 10, 30), (2, 30, 20, 50)]
    assert [p.resume_from and (p.resume_from.phase, p.resume_from.step) for p in strategy.phases] == [
        None,
        (1, 20),
        (2, 10),
    ]
    assert strategy.total_steps == 50


def test_phases_hold_every_hyper_parameter_under_verls_keys(strategy: Strategy, finished: Written) -> None:
    for phase in strategy.phases:
        spec = finished.search.core.runs[phase.node].spec
        assert spec is not None
        assert set(phase.hyperparameters) == set(spec.hyperparameters)
    assert [phase.hyperparameters[LR] for phase in strategy.phases] == [1e-3, 5e-4, 2e-4]


def test_phases_say_what_changed_and_why(strategy: Strategy) -> None:
    changes = [[(c.key, c.old, c.new, c.reason) for c in phase.changes] for phase in strategy.phases]
    assert changes == [
        [],
        [(LR, 1e-3, 5e-4, "because")],
        [(LR, 5e-4, 2e-4, "because"), (canonical("temperature"), 1.0, 0.9, "because")],
    ]
    assert [phase.diagnosis for phase in strategy.phases] == ["", "flat since step 10", "flat since step 10"]


def test_scores_are_those_of_the_journal(strategy: Strategy) -> None:
    test = strategy.scores["test"]
    assert test.base is not None
    assert test.best is not None
    assert test.default_recipe is not None
    assert (test.base.mean, test.default_recipe.mean, test.best.mean) == (0.3, 0.75, 0.8)
    assert test.best.standard_error == pytest.approx((0.8 * 0.2 / 99) ** 0.5)
    assert [(p.validation_at_start, p.validation_at_cut) for p in strategy.phases] == [
        (0.4, 0.6),
        (0.6, 0.7),
        (0.7, 0.78),
    ]


def test_reading_and_writing_it_again_changes_nothing(strategy: Strategy, tmp_path: Path) -> None:
    again = tmp_path / "strategy.yaml"
    again.write_text(strategy.to_yaml())
    assert load_strategy(again) == strategy


def test_its_phases_are_the_very_phases_that_the_search_trained(
    strategy: Strategy, finished: Written, tmp_path: Path
) -> None:
    specs = phase_specs(strategy, tmp_path, "again")
    for spec, phase in zip(specs, strategy.phases, strict=True):
        original = finished.search.core.runs[phase.node].spec
        assert original is not None
        assert dict(spec.hyperparameters) == dict(original.hyperparameters)
        same = ("base_step", "n_steps", "seed", "save_freq", "test_freq")
        assert [getattr(spec, name) for name in same] == [getattr(original, name) for name in same]
    assert [(s.node, s.kind, s.parent) for s in specs] == [
        (0, "root", None),
        (1, "evolve", 0),
        (2, "evolve", 1),
    ]
    assert specs[0].adapter is None
    assert specs[2].adapter == str(tmp_path / "checkpoints" / "0001" / "step_000010")


# --- broken files -------------------------------------------------------------------------------------------


def set_at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for part in path[:-1]:
            data = data[part]
        data[path[-1]] = value

    return change


def without_phase_two(data: dict[str, Any]) -> None:
    del data["phases"][1]


def misspelt_seed(data: dict[str, Any]) -> None:
    data["phases"][0]["sead"] = data["phases"][0].pop("seed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("format", value=2), r"strategy.yaml: format is 2; this version reads 1"),
        (misspelt_seed, r"phase 1: unknown key 'sead'; did you mean 'seed'\?"),
        (set_at("phases", value=[]), r"phases"),
        (without_phase_two, r"phase 3 \(node 2\) must be number 2 and resume from phase 1, step 20"),
        (set_at("phases", 1, "base_step", value=25), r"phase 2: base_step is 25; must be 20"),
        (
            set_at("phases", 2, "cut_step", value=21),
            r"phase 3: cut_step is 21; must be <= n_steps, which is 20",
        ),
        (set_at("total_steps", value=60), r"total_steps is 60; must be 50"),
        (
            set_at("phases", 0, "resume_from", value={"phase": 1, "step": 1}),
            r"phase 1 must start from the base",
        ),
        (set_at("phases", 1, "hyperparameters", LR, value=5.0), r"phase 2: lr=5.0 .*must be a number in"),
        (
            set_at("phases", 1, "hyperparameters", "optim.rl", value=1.0),
            r"phase 2: hyper-parameter 'optim.rl'",
        ),
        (set_at("phases", 2, "hyperparameters", canonical("lora_rank"), value=8), r"phase 3: .*lora_rank"),
        (set_at("phases", 0, "seed", value="one"), r"phase 1: seed is 'one'; must be a whole number >= 0"),
    ],
)
def test_a_broken_strategy_is_refused_with_the_place_and_the_reason(
    finished: Written, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = yaml.safe_load((finished.root / "strategy.yaml").read_text())
    change(data)
    path = tmp_path / "strategy.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(ConfigError, match=message):
        load_strategy(path)


@pytest.mark.parametrize(
    ("text", "message"), [("", "holds nothing"), ("phases: [", "broken YAML"), ("- 1", "holds a list")]
)
def test_a_file_that_is_no_strategy_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "strategy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_strategy(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist; name the strategy\.yaml"):
        load_strategy(tmp_path / "strategy.yaml")
