"""Which answers of a phase agents are shown, and that none are made up where files are incomplete."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.agents.llm.context_examples import proposal_request
from llmzero_ray.dynamics.stored_outcomes import (
    by_length,
    choose,
    kind_scores,
    load_answers,
    load_rows,
    number_places,
    with_outcomes,
    wrong_answers,
)
from llmzero_ray.engines.verl.cpu.batched_rollouts import ROW_KEY
from llmzero_ray.engines.verl.verl_hooks import MOST_PRED, outcomes_of
from llmzero_ray.records import Answer, ItemOutcome, MetricPoint
from llmzero_ray.records.agents import KindScore
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter, compact, load_items, write_parquet


def item(index: int, acc: float, *, cut: bool | None = False, text: str = "the answer is 4") -> ItemOutcome:
    return ItemOutcome(
        index=index, data_source="toy", score=acc, acc=acc, response=text, pred=text[-1:], cut=cut
    )


def sampled(step: int) -> Answer:
    return Answer(prompt="What is 2 + 2?", response="it is é", score=0.0, acc=0.0, expected="4", step=step)


def kinds(items: list[ItemOutcome]) -> list[tuple[bool, bool]]:
    return [(one.acc >= 0.5, bool(one.cut)) for one in choose(items)]


def test_a_right_two_wrong_and_a_cut_answer_are_chosen() -> None:
    items = [item(i, 1.0) for i in range(4)] + [item(4 + i, 0.0) for i in range(4)]
    assert kinds(items) == [(True, False), (False, False), (False, False)]
    assert kinds([*items, item(9, 0.0, cut=True)]) == [(True, False), *2 * [(False, False)], (False, True)]


@pytest.mark.parametrize("acc", [0.0, 1.0])
def test_two_prompts_are_shown_where_all_answers_are_alike(acc: float) -> None:
    chosen = choose([item(i, acc) for i in range(5)])
    assert len({one.index for one in chosen}) == 2


def test_no_answer_is_shown_twice_or_without_its_text() -> None:
    assert choose([item(0, 1.0)]) == (item(0, 1.0),)
    assert choose([]) == ()
    assert choose([item(i, 1.0, text="") for i in range(3)]) == ()
    both = choose([item(0, 1.0, cut=True), item(1, 0.0)])
    assert sorted(one.index for one in both) == [0, 1]


@pytest.fixture
def stored(tmp_path: Path) -> tuple[SearchStorage, str]:
    storage = SearchStorage(str(tmp_path), "demo")
    storage.paths.node(3).mkdir(parents=True)
    with MetricWriter(storage, 3, 0) as writer:
        for step in (0, 5, 10):
            items = tuple(item(i, float(i < step), text=f"{step}: {i}") for i in range(8))
            point = MetricPoint(
                node=3,
                attempt=0,
                step=step,
                global_step=step,
                wall_s=step,
                metrics={},
                val_score=0.5,
                items=items,
                sampled=(sampled(step),) if step else (),
            )
            assert writer.write(point).sampled == ()
    rows = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is {i}?"}]
        for i in range(8)
    ]
    truths = [{"style": "rule", "ground_truth": f"{i + 1}"} for i in range(8)]
    write_parquet(tmp_path / "val.parquet", {"prompt": rows, "reward_model": truths})
    return storage, str(tmp_path / "val.parquet")


def answers(
    storage: SearchStorage, node: int, val_file: str | None, below: int | None = None
) -> tuple[Answer, ...]:
    items = {one: load_items(storage, one) for one in (node, below) if one is not None}
    return load_answers(storage, node, items, load_rows(val_file), below)


@pytest.mark.parametrize("compacted", [False, True])
def test_the_last_validations_answers_are_read_with_their_prompts(
    stored: tuple[SearchStorage, str], compacted: bool
) -> None:
    storage, rows = stored
    if compacted:
        compact(storage, 3, 0)
    *found, last = answers(storage, 3, rows)
    assert last == sampled(10), "of the last validated step, as it was written"
    assert found
    for one in found:
        number = one.response.removeprefix("10: ")
        assert one.prompt == f"Be brief.\nWhat is {number}?"
        assert one.pred == number
        assert one.expected == f"{int(number) + 1}"


def test_missing_rows_or_outcomes_give_no_answers_and_no_error(stored: tuple[SearchStorage, str]) -> None:
    storage, rows = stored
    assert answers(storage, 4, rows) == ()
    for lost in (None, rows + ".gone"):
        assert answers(storage, 3, lost) == (sampled(10),)
    file = storage.paths.node(3) / "sampled.json"
    for damaged in ("[{", '[{"prompt": "alone"}]', "3"):
        file.write_text(damaged)
        assert [one.step for one in answers(storage, 3, rows)] == [None] * 2
    file.unlink()  # of a search before they were kept
    assert [one.step for one in answers(storage, 3, rows)] == [None] * 2
    Path(rows).write_bytes(b"no parquet")
    assert answers(storage, 3, rows) == ()


@pytest.mark.parametrize("cut", [False, None])
def test_wrong_answers_are_counted_with_those_cut_off(tmp_path: Path, cut: bool | None) -> None:
    storage = SearchStorage(str(tmp_path), "demo")
    items = (item(0, 1.0, cut=True), item(1, 0.0, cut=True), item(2, 0.0, cut=cut), item(3, 0.0, cut=True))
    with MetricWriter(storage, 3, 0) as writer:
        for step in (0, 5):
            point = MetricPoint(
                node=3, attempt=0, step=step, global_step=step, wall_s=0.0, metrics={}, items=items
            )
            writer.write(point)
    assert wrong_answers(load_items(storage, 3)) == (None if cut is None else (3, 2, 0))
    compact(storage, 3, 0)
    assert wrong_answers(load_items(storage, 3, responses=False)) == (None if cut is None else (3, 2, 0))
    assert wrong_answers(load_items(storage, 4)) is None


@pytest.mark.parametrize(("pred", "unanswered"), [(" ", 1), ("7", 0), (None, None)])
def test_wrong_answers_in_which_the_reward_found_none_are_counted(
    pred: str | None, unanswered: int | None
) -> None:
    wrong = dataclasses.replace(item(1, 0.0, cut=False), pred=pred)
    assert wrong_answers({5: (wrong, item(2, 0.0, cut=True), item(3, 1.0))}) == (2, 1, unanswered)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        # (characters, right, cut off at the cap)
        ([(2, 1, 0), (4, 1, 0), (6, 0, 0), (8, 0, 0), (9, 1, 0), (50, 0, 1)], (6, 1.0, 1 / 3)),
        ([(6, 1, 0)] * 12 + [(2, 0, 0), (9, 1, 0)], None),
        ([(2, 0, 0)] * 2 + [(6, 1, 0)] * 8 + [(9, 0, 0)] * 2, (6, 0.0, 0.8)),
        ([(6, 1, 0)] * 8 + [(9, 0, 0)] * 2, (7, 1.0, 0.0)),
        ([(6, 1, 0)] * 8, None),
        ([(0, 0, 0)] * 8, None),
    ],
)
def test_shorter_and_longer_answers_have_an_accuracy_of_their_own(
    told: list[tuple[int, int, int]], found: tuple[int, float, float] | None
) -> None:
    items = tuple(
        dataclasses.replace(item(i, acc, cut=bool(cut)), response="x" * size)
        for i, (size, acc, cut) in enumerate(told)
    )
    assert by_length({5: items}) == found
    assert by_length({0: items}) is None


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        # (prompt, right answer, number named)
        (
            [("7 or 12?", "12", "7"), ("30 or 4?", "30", "30"), ("5 or 6?", "6", "")],
            (2 / 3, 0.0, 1 / 3, 2 / 3),
        ),
        ([("7, 9 or 12?", "9", "9"), ("1, 2 or 3?", "2", "3")], (0.0, 0.5, 0.0, 0.0)),
        ([("7 or 12?", "12", "7"), ("7 + 12?", "19", "19")], None),  # a sum is no number of its prompt
        ([("7?", "7", "7")], None),
        ([("7 or 12?", "12", None)], None),  # the reward does not say what it took
    ],
)
def test_where_the_named_numbers_stand_in_their_prompts_is_counted(
    asked: list[tuple[str, str, str | None]], found: tuple[float, ...] | None
) -> None:
    rows = [{"prompt": prompt, "reward_model": {"ground_truth": gold}} for prompt, gold, _ in asked]
    items = tuple(dataclasses.replace(item(i, 0.0), pred=pred) for i, (_, _, pred) in enumerate(asked))
    assert number_places({5: items}, rows) == (None if found is None else pytest.approx(found))
    assert number_places({5: items}, ()) is None
    assert number_places({0: items}, rows) is None


def test_a_request_says_where_the_named_numbers_of_the_shown_phase_stand(tmp_path: Path) -> None:
    storage, request = SearchStorage(str(tmp_path), "demo"), proposal_request()
    row = {"prompt": ["7 or 12?"], "reward_model": [{"ground_truth": "12"}]}
    write_parquet(tmp_path / "val.parquet", row)
    named = (dataclasses.replace(item(0, 0.0), pred="7"),)
    with MetricWriter(storage, request.on.node, 0) as writer:
        writer.write(
            MetricPoint(
                node=request.on.node, attempt=0, step=5, global_step=5, wall_s=0.0, metrics={}, items=named
            )
        )
    shown = with_outcomes(storage, request, str(tmp_path / "val.parquet")).on
    assert shown.places == (1.0, 0.0, 0.0, 1.0)


@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(-9, 99), min_size=1, max_size=4), st.integers(-9, 99)), min_size=1
    )
)
def test_a_blind_pick_among_a_prompts_numbers_scores_its_share_of_them(
    rows: list[tuple[list[int], int]],
) -> None:
    asked = [
        [{"role": "user", "content": f"Which is it, {', '.join(map(str, known))}?"}] for known, _ in rows
    ]
    truths = [{"ground_truth": f"{gold}"} for _, gold in rows]
    exact = fmean((gold in known) / len(set(known)) for known, gold in rows)
    with tempfile.TemporaryDirectory() as directory:
        file = str(Path(directory, "val.parquet"))
        write_parquet(Path(file), {"prompt": asked, "reward_model": truths})
        request = with_outcomes(SearchStorage(directory, "demo"), proposal_request(), file)
    assert request.task.blind_pick == pytest.approx(exact)
    firsts = fmean(gold == known[0] for known, gold in rows)
    lasts = fmean(gold == known[-1] for known, gold in rows)
    assert request.task.fixed_pick == (
        "first" if firsts >= lasts else "last",
        pytest.approx(max(firsts, lasts)),
    )


def test_the_newest_phase_below_answers_the_same_prompts_beside(stored: tuple[SearchStorage, str]) -> None:
    storage, rows = stored
    with MetricWriter(storage, 4, 0) as writer:
        for step in (0, 5):
            items = tuple(item(i, float(i == 7), text=f"below {step}: {i}") for i in range(8))
            writer.write(
                MetricPoint(
                    node=4, attempt=0, step=step, global_step=step, wall_s=0.0, metrics={}, items=items
                )
            )
    *greedy, sampled_one = answers(storage, 3, rows, below=4)
    assert len(greedy) > 1 and sampled_one.below is None
    for one in greedy:
        number = one.response.removeprefix("10: ")
        assert one.below == (4, f"below 5: {number}", number == "7")
    assert {one.below for one in answers(storage, 3, rows, below=5)} == {None}


@pytest.mark.parametrize("sources", [("chem", "bio"), ("toy", "toy")])
def test_scores_by_kind_are_those_of_its_items_at_the_start_and_at_the_end(
    tmp_path: Path, sources: tuple[str, str]
) -> None:
    """Even rows are of one source and odd ones of another, or all of one with two abilities."""
    storage, right = SearchStorage(str(tmp_path), "demo"), {0: (0, 1), 5: (0, 1, 2), 10: (1, 2, 3, 5)}
    with MetricWriter(storage, 3, 0) as writer:
        for step, rows in right.items():
            items = tuple(
                ItemOutcome(index=i, data_source=sources[i % 2], score=float(i in rows), acc=float(i in rows))
                for i in range(6)
            )
            point = MetricPoint(
                node=3,
                attempt=0,
                step=step,
                global_step=step,
                wall_s=0.0,
                metrics={},
                val_score=0.5,
                items=items,
            )
            writer.write(point)
    write_parquet(tmp_path / "val.parquet", {"ability": ["chem", "bio"] * 3})
    found = kind_scores(load_items(storage, 3), load_rows(str(tmp_path / "val.parquet")))
    assert found == (
        KindScore(kind="bio", n=3, start=1 / 3, last=1.0),
        KindScore(kind="chem", n=3, start=1 / 3, last=1 / 3),
    )
    write_parquet(tmp_path / "val.parquet", {"prompt": ["?"] * 6})
    assert bool(kind_scores(load_items(storage, 3), load_rows(str(tmp_path / "val.parquet")))) == (
        len(set(sources)) == 2
    )
    assert kind_scores(load_items(storage, 4), ()) == ()


def test_an_outcome_keeps_what_the_reward_took_and_whether_it_was_cut() -> None:
    infos = {ROW_KEY: [1, 0, 2], "reward": [1.0, 0.0, 0.0], "pred": ["7", None, "x" * 999]}
    found = outcomes_of(["toy"] * 3, infos, ["#7", "on and", "#x"], [False, True, False])
    assert [(one.index, one.pred, one.cut) for one in found] == [
        (0, None, True),
        (1, "7", False),
        (2, "x" * MOST_PRED, False),
    ]
    bare = outcomes_of(["toy"], {ROW_KEY: [0], "reward": [1.0]}, ["#7"], [False])
    assert (bare[0].pred, bare[0].cut) == (None, False)
