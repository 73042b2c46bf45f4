"""What stops and confirmation are worth in hindsight, worked out by hand on scripted searches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import hindsight
from benchmarks.hindsight import regret, searches, selection, stops, summary, text_of
from llmzero_ray.hyperparameters.verl_keys import ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.records import StopDecision
from llmzero_ray.records.metrics import LENGTH
from llmzero_ray.report.facts import SearchFacts
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder, items

STEP = {LENGTH: [10.0] * 20}
"""Ten tokens an answer at every step: each step of a phase computes the same."""


def searched(directory: Path, *, k: int = 0, **blocks: Any) -> SearchBuilder:
    """Four phases of 20 steps, validated every ten. Node 1 is the best, node 2 never comes above it, node 3
    neither and is stopped at step 10."""
    final = {"test": "all", "default_recipe": False}
    config = make_config(
        budget={"runs": 4}, search={"rho_min": 0.0}, final=final, confirm={"k": k}, stopper={"min_steps": 5}
    )
    search = SearchBuilder(directory, config=config)
    stop = StopDecision(stop=True, reason="far behind", rule="early_stopper")
    search.phases = {
        0: Phase(val={0: 30, 10: 40, 20: 60}, metrics=STEP),
        1: Phase(val={0: 60, 10: 65, 20: 75}, metrics=STEP),
        2: Phase(val={0: 60, 10: 62, 20: 74}, metrics=STEP),
        3: Phase(val={0: 75, 10: 50}, metrics=STEP, steps=10, status="early_stopped", stop=stop),
        **blocks.get("phases", {}),
    }
    search.finals = {"base": items(30), **blocks.get("finals", {})}
    return search


def facts_of(search: SearchBuilder) -> SearchFacts:
    search.ready().play()
    return SearchFacts(search.root)


def test_a_phase_that_never_came_above_the_best_could_have_been_stopped_at_its_first_validation(
    tmp_path: Path,
) -> None:
    facts = facts_of(searched(tmp_path))
    steps = {node: run.outcome.steps_done for node, run in facts.runs.items() if run.outcome is not None}
    assert steps == {0: 20, 1: 20, 2: 20, 3: 10}
    found = stops(facts)
    one = found.compute / 70  # each of the 70 steps
    assert (found.n_hopeless, found.n_stopped) == (2, 1)
    assert found.could_be_saved == pytest.approx(10 * one)  # node 2 after step 10; node 3 ended there
    planned = facts.runs[3].spec
    assert planned is not None
    assert found.was_saved == pytest.approx((planned.n_steps - 10) * one)
    assert found.share_left == pytest.approx(10 / 70)


def test_a_phase_that_the_strategy_passes_through_is_never_hopeless(tmp_path: Path) -> None:
    """Node 2 is no better than node 1, but node 3 goes on from it and wins."""
    phases = {3: Phase(val={0: 74, 10: 85, 20: 80}, metrics=STEP)}
    search = searched(tmp_path, phases=phases)
    facts = facts_of(search)
    assert stops(facts).n_hopeless == 1  # node 2, beside the strategy
    facts.__dict__["path_nodes"] = frozenset({0, 2, 3})
    assert stops(facts).n_hopeless == 0


def test_regret_is_what_the_other_half_of_the_items_says() -> None:
    """By the even items node 1 is the best, by the odd ones node 2."""
    tested = {
        0: dict.fromkeys(range(8), 0.0),
        1: {i: float(i % 2 == 0) for i in range(8)},
        2: {i: float(i % 2 == 1) for i in range(8)},
    }
    assert regret(tested, 0) == 0.0  # what each half names is no better by the other
    everything = {**tested, 3: dict.fromkeys(range(8), 1.0)}
    assert regret(everything, 3) == 0.0
    assert regret({0: tested[0], 3: everything[3]}, 0) == 1.0


def test_confirmation_that_finds_the_better_node_has_no_regret(tmp_path: Path) -> None:
    """Validation prefers node 1 by one item; on fresh and on test items node 2 is far better."""
    finals = {
        "confirm-1": items(50),
        "confirm-2": items(80),
        "best": items(80),
        "node-1": items(50),
        "node-0": items(40),
        "node-3": items(20),
    }
    facts = facts_of(searched(tmp_path, k=2, finals=finals))
    assert facts.core.final.winner == 2
    found = selection(facts)
    assert found is not None
    assert (found.by_validation, found.by_confirmation) == (pytest.approx(0.3), 0.0)
    both = summary([facts, facts])
    assert both["regret_ratio"] == 0.0
    text = text_of(both)
    assert "Regret over 2 searches: +0.3000 ± 0.0000 by the best validation score" in text
    assert "0.00 times as much (goal: at most 0.5)" in text


def test_a_search_that_confirmed_nothing_or_tested_one_node_has_no_regret(tmp_path: Path) -> None:
    facts = facts_of(searched(tmp_path))
    assert selection(facts) is None
    assert "set final.test: all, confirm.k: 3." in text_of(summary([facts]))


def test_the_command_takes_searches_and_directories_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = facts_of(searched(tmp_path / "first"))
    assert [one.config.name for one in searches([tmp_path / "first"])] == [facts.config.name]
    monkeypatch.setattr(sys, "argv", ["hindsight", str(tmp_path / "first"), "--json"])
    hindsight.main()
    found = json.loads(capsys.readouterr().out)
    assert found["could_be_saved"] == pytest.approx(10 / 70)
    monkeypatch.setattr(sys, "argv", ["hindsight", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match="nothing"):
        hindsight.main()


def test_compute_counts_rollouts_of_each_recipe(tmp_path: Path) -> None:
    facts = facts_of(searched(tmp_path))
    root = facts.runs[0].spec
    assert root is not None
    a_step = (
        float(str(root.hyperparameters[TRAIN_BATCH])) * float(str(root.hyperparameters[ROLLOUT_N])) * 20.0
    )
    assert stops(facts).compute == pytest.approx(70 * a_step)
