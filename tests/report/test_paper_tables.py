"""The paper's tables from recorded searches, and the audit of what agents stated."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.hyperparameters.table import KL_LOSS_COEF, LR, TEMPERATURE
from llmzero_ray.report.audit import Audited, audit
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.paper_figures import best_so_far
from llmzero_ray.report.paper_tables import moves, paper_tables
from tests.searches import CHECKOUT

RUNS = CHECKOUT / "tests" / "blackbox" / "runs"


@pytest.fixture
def demo(tmp_path: Path) -> SearchFacts:
    shutil.copytree(RUNS / "demo", tmp_path / "demo")
    return SearchFacts(tmp_path / "demo")


def stated(facts: SearchFacts, node: int, summary: str = "", *evidence: str) -> list[Audited]:
    """The audit of one statement in place of what a node's proposal said."""
    run = facts.runs[node]
    assert run.proposal is not None
    diagnosis = dataclasses.replace(run.proposal.diagnosis, summary=summary, evidence=evidence)
    run.proposal = dataclasses.replace(run.proposal, diagnosis=diagnosis)
    return [one for one in audit(facts) if one.node == node]


def test_the_recorded_statements_of_the_demo_agree_with_its_series(demo: SearchFacts) -> None:
    found = audit(demo)
    assert len(found) == 25
    assert all(one.agrees for one in found)


@pytest.mark.parametrize(
    ("evidence", "agrees"),
    [
        ("critic/score/mean 0.293 -> 0.398 (x1.36) over steps 1-10", [True, True]),
        ("critic/score/mean 0.293 -> 0.598 (x1.36) over steps 1-10", [True, False]),
        ("validation 0.469 at the start, 0.531@5, 0.862@10", [True, False, True]),
        ("no/such_metric 1 -> 2, validation 0.9@7", []),
    ],
)
def test_numbers_are_those_of_the_series_to_their_digits(
    demo: SearchFacts, evidence: str, agrees: list[bool]
) -> None:
    assert sorted(one.agrees for one in stated(demo, 1, "", evidence)) == sorted(agrees)


@pytest.mark.parametrize(
    ("kind", "factors", "agrees"),
    [
        ("conservative", {LR: 2.0, KL_LOSS_COEF: 2.0, TEMPERATURE: 1.1}, False),
        ("aggressive", {LR: 2.0, KL_LOSS_COEF: 2.0, TEMPERATURE: 1.1}, True),
        ("conservative", {LR: 0.5}, True),
        ("conservative", {}, False),
    ],
)
def test_more_conservative_settings_are_those_that_tighten(
    demo: SearchFacts, kind: str, factors: dict[str, float], agrees: bool
) -> None:
    """The first case is the demo's: a doubled rate and a hotter sampling were called too conservative."""
    on, source = demo.runs[1], demo.runs[0].spec
    assert on.spec is not None and source is not None
    base = dict(source.hyperparameters)
    changed = {key: float(str(base[key])) * factor for key, factor in factors.items()}
    on.spec = dataclasses.replace(on.spec, hyperparameters={**base, **changed})
    (found,) = stated(demo, 2, f"Regressed -0.05 under more {kind} settings.")
    assert found.agrees is agrees
    if factors.get(LR) == 2.0:
        assert found.found.startswith("2 loosened, 1 tightened: lr 0.001 -> 0.002")


def test_the_tables_hold_strategies_nodes_and_directions(demo: SearchFacts) -> None:
    text = paper_tables([demo])
    assert "| 3 | 2 | 20-25 | 0.8594 | lr 0.0005 → 0.00025; kl_loss_coef 0.002 → 0.004; n 12 → 16 |" in text
    assert "| 1* | evolve | node 0 at 10 | 10 | 0.038 |" in text
    assert "| lr | 2 | 0 | 2 | 0 | 0 of 1 |" in text
    assert "| demo | 3 | more | more |" in text
    assert "25 statements were checked, 0 disagree" in text
    assert dict(moves(demo))[LR] == [-1, -1]


def test_compute_counts_every_phase_also_of_searches_that_did_not_count_it(demo: SearchFacts) -> None:
    curve = best_so_far(demo)
    assert curve[0] == (0.0, 0.46875)
    assert [score for _, score in curve] == sorted(score for _, score in curve)
    assert curve[-1][0] > 0


def test_the_command_writes_tables_and_figures(
    demo: SearchFacts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables", str(tmp_path / "demo"), "--out", str(tmp_path / "found")]) == 0
    assert "## Nodes" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "tables.md",
        "best_so_far.png",
        "hyperparameters.png",
    }
