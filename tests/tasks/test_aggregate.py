"""Scores over many rows: validation over rows, test over a task's parts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.aggregate import CHEMCOT_19, macro_average, task_score, validation_score
from llmzero_ray.prepared.chem_subtasks import subtask_named
from llmzero_ray.records.metrics import Score, macro_mean


def rows(**counts: tuple[int, int]) -> list[tuple[str, float]]:
    """Right and all rows by data_source."""
    return [(source, float(i < right)) for source, (right, total) in counts.items() for i in range(total)]


def chemcot(**counts: tuple[int, int]) -> list[tuple[str, float]]:
    named = {name: subtask_named(name) for name in counts}
    return rows(**{subtask.data_source: counts[name] for name, subtask in named.items() if subtask})


def value(score: Score | None) -> float:
    assert score is not None
    return score.mean


def test_validation_is_the_mean_over_rows() -> None:
    score = validation_score([1.0, 0.0, 0.0, 1.0, 1.0])
    # Sample variance 0.3, so the error is sqrt(0.3 / 5).
    assert (score.mean, score.n) == (0.6, 5)
    assert score.standard_error == pytest.approx(math.sqrt(0.06))


def test_one_row_has_no_standard_error() -> None:
    assert validation_score([1.0]) == Score(mean=1.0, standard_error=None, n=1)


@pytest.mark.parametrize(
    ("accs", "why"), [([], "no rows"), ([math.nan], "not a finite"), ([math.inf], "finite")]
)
def test_a_score_of_nothing_or_of_no_number_is_refused(accs: list[float], why: str) -> None:
    with pytest.raises(TaskError, match=why):
        validation_score(accs)


def test_a_macro_mean_weighs_parts_equally_and_adds_their_variances() -> None:
    parts = [Score(mean=0.2, standard_error=0.03, n=10), Score(mean=0.6, standard_error=0.04, n=1000)]
    mean = macro_mean(parts)
    assert mean is not None
    assert (mean.mean, mean.n) == (pytest.approx(0.4), 1010)
    assert mean.standard_error == pytest.approx(0.025)
    assert macro_mean([]) is None


def test_a_part_without_an_error_leaves_the_mean_without_one() -> None:
    mean = macro_mean([Score(mean=0.2, standard_error=None, n=1), Score(mean=0.6, standard_error=0.04, n=9)])
    assert mean is not None and mean.standard_error is None


def test_ssmr_is_the_mean_of_four_subtasks() -> None:
    score = task_score(rows(ssmr_scale=(1, 2), ssmr_beat=(1, 4), ssmr_chord=(4, 4), ssmr_interval=(0, 2)))
    assert value(score.headline) == pytest.approx((0.5 + 0.25 + 1 + 0) / 4)
    assert score.micro.mean == 0.5
    assert (score.missing, score.parts) == ((), {})


def test_a_missing_subtask_is_named_and_left_out() -> None:
    score = task_score(rows(ssmr_scale=(1, 2), ssmr_beat=(1, 4)))
    assert value(score.headline) == pytest.approx(0.375)
    assert score.missing == ("ssmr_chord", "ssmr_interval")


def test_wildsci_reports_the_mean_of_disciplines_and_the_mean_of_rows() -> None:
    score = task_score(rows(**{f"wildsci_d{i}": (i, 10) for i in range(8)}, wildsci_d8=(8, 30)))
    assert value(score.headline) == pytest.approx((sum(range(8)) / 10 + 8 / 30) / 9)
    assert score.micro.mean == pytest.approx(36 / 110)
    assert score.missing == ()
    assert task_score(rows(wildsci_physics=(1, 2))).missing == ("8 of 9 disciplines",)


def test_papersearchqa_and_own_tasks_keep_the_mean_over_rows() -> None:
    assert value(task_score(rows(papersearchqa=(3, 4))).headline) == 0.75
    assert value(task_score(rows(mine_a=(1, 1), mine_b=(0, 3))).headline) == 0.25


def test_chemcot_is_the_mean_of_understanding_editing_and_reactions() -> None:
    score = task_score(
        chemcot(
            fg_count=(4, 4), ring_count=(2, 4), ring_system_scaffold=(1, 4), equivalence=(0, 4),
            Murcko_scaffold=(3, 4), add=(1, 4), delete=(2, 4), sub=(3, 4), rcr=(1, 4), fs_by_product=(0, 4),
            retro=(0, 4), nepp=(0, 4), mechsel=(4, 4), qed=(4, 4), fs_major_product=(4, 4),
        )
    )  # fmt: skip
    und, edit, rxn = (1 + 0.5 + 0.25 + 0 + 0.75) / 5, 0.5, 1.25 / 5
    assert {name: part.mean for name, part in score.parts.items()} == {
        "acc_und": pytest.approx(und),
        "acc_edit": pytest.approx(edit),
        "acc_rxn": pytest.approx(rxn),
        "macro_19": pytest.approx((2.5 + 1.5 + 1.25 + 1) / 14),
    }
    assert value(score.headline) == pytest.approx((und + edit + rxn) / 3)
    assert score.missing == ("drd", "gsk", "jnk", "logp", "solubility")


NAMES = ("fg_count", "ring_count", "ring_system_scaffold", "equivalence", "Murcko_scaffold")
NAMES += ("sub", "delete", "add", "rcr", "fs_by_product")
TOTALS = (29, 31, 30, 27, 30, 29, 29, 29, 61, 39)
"""Test rows by subtask, from the fractions of the paper's Table 6."""


@pytest.mark.parametrize(
    ("right", "percent"),
    [
        # Base model and best strategy: the three categories and the headline of Table 1, Table 6's last line.
        ((22, 5, 21, 10, 1, 0, 6, 1, 7, 0), (40.5, 8.0, 2.3, 16.9, 12.5)),
        ((28, 29, 26, 15, 5, 17, 10, 2, 55, 1), (69.8, 33.3, 18.5, 40.5, 28.5)),
    ],
)
def test_the_papers_averages_follow_from_its_subtasks(
    right: tuple[int, ...], percent: tuple[float, ...]
) -> None:
    counts = dict(zip(NAMES, zip(right, TOTALS, strict=True), strict=True))
    empty = {name: (0, 22 if name == "mechsel" else 18) for name in CHEMCOT_19 if name not in counts}
    score = task_score(chemcot(**counts, **empty))
    found = [100 * score.parts[name].mean for name in ("acc_und", "acc_edit", "acc_rxn", "macro_19")]
    assert [round(part, 1) for part in found] == [*percent[:3], percent[4]]
    # The paper averages the rounded categories.
    assert 100 * value(score.headline) == pytest.approx(percent[3], abs=0.07)
    assert (score.micro.n, score.micro.mean) == (500, sum(right) / 500)
    assert (score.missing, len(task_score(chemcot(**counts)).missing)) == ((), 9)


def test_missing_subtasks_are_left_out() -> None:
    found = task_score(chemcot(rcr=(1, 4), fs_by_product=(0, 4)))
    assert value(found.parts["acc_rxn"]) == pytest.approx(0.25 / 2)
    assert value(found.headline) == pytest.approx(0.25 / 2)


def test_a_chemistry_task_without_headline_subtasks_has_no_headline() -> None:
    score = task_score(chemcot(qed=(1, 2)))
    assert score.headline is None
    assert list(score.parts) == ["macro_19"]


def test_the_nineteen_subtasks_are_nineteen() -> None:
    assert len(CHEMCOT_19) == len(set(CHEMCOT_19)) == 19


@pytest.mark.parametrize(
    "sources",
    [["ssmr_rhythm"], ["chemcot_und_unheard"], ["ssmr_beat", "wildsci_physics"], ["ssmr_beat", "mine"]],
)
def test_unknown_parts_and_mixed_tasks_are_refused(sources: list[str]) -> None:
    with pytest.raises(TaskError, match=sources[-1]):
        task_score([(source, 1.0) for source in sources])


def test_no_rows_have_no_test_score() -> None:
    with pytest.raises(TaskError, match="no rows"):
        task_score([])


@given(
    st.lists(
        st.tuples(st.sampled_from(["ssmr_beat", "ssmr_scale"]), st.sampled_from([0.0, 1.0])), min_size=1
    ),
    st.randoms(),
)
def test_the_order_of_rows_changes_nothing(pairs: list[tuple[str, float]], rng: object) -> None:
    shuffled = list(pairs)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = task_score(pairs), task_score(shuffled)
    assert one == other
    assert 0.0 <= value(one.headline) <= 1.0


def test_only_tasks_with_parts_have_an_average_over_them(caplog: pytest.LogCaptureFixture) -> None:
    rows = [("wildsci_physics", 1.0), ("wildsci_physics", 0.0), ("wildsci_biology", 1.0)]
    assert macro_average(rows) == task_score(rows).headline
    assert macro_average([("chain_sum", 1.0), ("chain_sum", 0.0)]) is None
    assert not caplog.records
    assert macro_average([("wildsci_physics", 1.0), ("chain_sum", 1.0)]) is None
    assert "rows of several tasks cannot share one test score" in caplog.text
