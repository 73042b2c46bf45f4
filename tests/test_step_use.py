"""What the steps of a search went into, counted by hand on scripted searches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import step_use
from benchmarks.step_use import StepUse, count_steps, text_of, together
from llmzero_ray.report.facts import SearchFacts
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder, proposal


def searched(directory: Path, *, phases: dict[int, Phase] | None = None) -> SearchFacts:
    """Four phases: the root gains, node 1 raises the rate and gains, node 2 raises it again and loses, node 3
    is a forced start from scratch with a higher rate than the root's, which is not a raise."""
    config = make_config(budget={"runs": 4}, search={"rho_min": 0.4}, final={"default_recipe": False})
    search = SearchBuilder(directory, config=config)
    search.answers = {
        1: proposal(resume=(0, 20), lr=2e-3),
        2: proposal(resume=(1, 10), lr=4e-3),
        3: proposal(lr=5e-3, n_steps=10),
    }
    search.phases = {
        0: Phase(val={0: 30, 10: 40, 20: 60}),
        1: Phase(val={0: 60, 10: 80, 20: 75}),
        2: Phase(val={0: 80, 10: 62, 20: 10}),
        3: Phase(val={0: 30, 10: 35}),
        **(phases or {}),
    }
    search.ready().play()
    return SearchFacts(search.root)


def test_steps_beside_the_strategy_and_second_raises_that_lose_are_counted(tmp_path: Path) -> None:
    facts = searched(tmp_path)
    assert [run.kind for run in facts.runs.values()] == ["root", "evolve", "evolve", "scratch"]
    assert count_steps(facts) == StepUse(
        steps=70,
        in_strategy=30,  # node 1 is left at its best step, 10 of 20
        scratch=1,
        scratch_steps=10,
        scratch_won=0,
        raised=2,
        raised_lost=1,
        raised_again=1,
        raised_again_lost=1,
    )


def test_a_start_from_scratch_can_win_and_a_failed_raise_has_lost(tmp_path: Path) -> None:
    failed = Phase(val={0: 80, 10: 90}, steps=12, fails="oom")
    phases = {2: failed, 3: Phase(val={0: 30, 10: 95})}
    facts = searched(tmp_path, phases=phases)
    found = count_steps(facts)
    assert facts.runs[2].status == "failed"
    assert (found.scratch_won, found.in_strategy) == (1, 10)
    assert (found.steps, found.raised_again_lost) == (62, 1)


def test_searches_of_other_seeds_are_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (
        count_steps(searched(tmp_path / "a")),
        count_steps(searched(tmp_path / "b", phases={3: Phase(val={10: 95})})),
    )
    both = together([one, other])
    assert (both.steps, both.in_strategy, both.scratch_won) == (140, 40, 1)
    text = text_of([("sum-expert-1", one), ("sum-expert-2", other), ("sum-pbt-1", one)])
    assert "| sum-expert | 2 | 140 | 40 | 0.29 | 2: 20, 1 | 4: 2 | 2: 2 | 10 to 30 | 70 |" in text
    assert "| sum-pbt |" not in text  # one search has its own row and nothing to be summed with
    monkeypatch.setattr(sys, "argv", ["step_use", str(tmp_path / "a")])
    step_use.main()
    assert "| 70 | 30 | 0.43 | 1: 10, 0 | 2: 1 | 1: 1 |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["step_use", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match="nothing"):
        step_use.main()
