"""What holds for the splits of every data set, whatever its rows are and wherever they stand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.prepared.splits import SPLITS
from llmzero_ray.tasks.sources.base import Shares
from llmzero_ray.tasks.sources.selection import (
    ROW_KEYS,
    SPLIT_CODES,
    RowKeys,
    Selection,
    allot,
    select,
    set_aside,
)


@dataclass(frozen=True)
class Fact:
    group: int
    prompt: int
    gold: int
    source: int
    only_split: int

    def as_tuple(self, file: int, row: int) -> tuple[int, ...]:
        key = hash((self.prompt, self.source, self.group)) & (2**63 - 1)
        content = hash((key, self.gold)) & (2**63 - 1)
        return (self.group, key, self.prompt, self.gold, content, self.source, self.only_split, file, row)


def keys_of(rows: list[Fact]) -> RowKeys:
    return np.array([row.as_tuple(0, number) for number, row in enumerate(rows)], dtype=ROW_KEYS)


def contents(keys: RowKeys, selection: Selection) -> dict[str, list[tuple[int, ...]]]:
    names = [name for name in ROW_KEYS.names or () if name not in ("file", "row")]
    return {split: keys[names][rows].tolist() for split, rows in selection.splits.items()}


ROWS = st.lists(
    st.builds(
        Fact,
        group=st.integers(0, 12),
        prompt=st.integers(0, 40),
        gold=st.integers(0, 2),
        source=st.integers(0, 3),
        only_split=st.sampled_from([0, 0, 0, SPLIT_CODES["val"], SPLIT_CODES["test"]]),
    ),
    max_size=120,
)
SIZES = st.fixed_dictionaries({split: st.integers(0, 30) for split in SPLITS})
SHARES: Any = st.sampled_from(["equal", "proportional"])


@given(ROWS, SIZES, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(
    rows: list[Fact], sizes: Any, shares: Shares, rng: Any
) -> None:
    keys = keys_of(rows)
    shuffled = keys_of(rng.sample(rows, len(rows)))
    assert contents(keys, select(keys, sizes, shares)) == contents(shuffled, select(shuffled, sizes, shares))


@given(ROWS, SIZES, SHARES)
def test_no_prompt_stands_twice_and_no_group_in_two_splits(
    rows: list[Fact], sizes: Any, shares: Shares
) -> None:
    keys = keys_of(rows)
    chosen = select(keys, sizes, shares).splits
    prompts = np.concatenate([keys["prompt"][chosen[split]] for split in SPLITS])
    assert len(set(prompts.tolist())) == len(prompts)
    groups = [set(keys["group"][chosen[split]].tolist()) for split in SPLITS]
    assert len(set().union(*groups)) == sum(map(len, groups))


@given(ROWS, SIZES, SHARES)
def test_splits_keep_their_sizes_and_every_row_is_accounted_for(
    rows: list[Fact], sizes: Any, shares: Shares
) -> None:
    selection = select(keys_of(rows), sizes, shares)
    assert all(len(selection.splits[split]) <= sizes[split] for split in SPLITS)
    n_chosen = sum(map(len, selection.splits.values()))
    assert n_chosen + sum(selection.dropped.values()) == len(rows)


@given(ROWS, SIZES, SHARES, st.integers(0, 30), st.integers(0, 30))
def test_the_test_set_hangs_on_nothing_but_its_own_size(
    rows: list[Fact], sizes: Any, shares: Shares, n_train: int, n_val: int
) -> None:
    keys = keys_of(rows)
    one = contents(keys, select(keys, sizes, shares))
    other = contents(keys, select(keys, {**sizes, "train": n_train, "val": n_val}, shares))
    assert one["test"] == other["test"]
    assert contents(keys, select(keys, {**sizes, "train": n_train}, shares))["val"] == one["val"]


@given(ROWS, SIZES, SHARES)
def test_bound_rows_enter_their_own_split_alone_and_then_no_others_do(
    rows: list[Fact], sizes: Any, shares: Shares
) -> None:
    keys = keys_of(rows)
    chosen = select(keys, sizes, shares).splits
    only_splits = {split: set(keys["only_split"][chosen[split]].tolist()) for split in SPLITS}
    assert only_splits["train"] <= {0}
    for split in ("val", "test"):
        assert only_splits[split] in (set(), {0}, {SPLIT_CODES[split]})
    if any(row.only_split == SPLIT_CODES["test"] for row in rows):
        assert 0 not in only_splits["test"]


@given(ROWS, SIZES, SHARES)
def test_a_split_that_is_not_full_has_left_nothing_behind_that_it_might_take(
    rows: list[Fact], sizes: Any, shares: Shares
) -> None:
    free = [Fact(row.group, row.prompt, row.gold, row.source, 0) for row in rows]
    keys = keys_of(free)
    selection = select(keys, sizes, shares)
    if len(selection.splits["train"]) < sizes["train"]:
        assert "not needed" not in selection.dropped


@given(ROWS, SIZES, SHARES, st.integers(0, 30))
def test_rows_are_set_aside_from_what_the_splits_leave_and_change_none_of_them(
    rows: list[Fact], sizes: Any, shares: Shares, n: int
) -> None:
    keys = keys_of(rows)
    before = select(keys, sizes, shares)
    whole = set_aside(keys, before, n, shares)
    assert all(np.array_equal(whole.splits[split], before.splits[split]) for split in SPLITS)
    spare = whole.splits["confirm"]
    assert len(spare) <= n
    used = np.concatenate([before.splits[split] for split in SPLITS])
    for name in ("prompt", "group"):
        assert not set(keys[name][spare].tolist()) & set(keys[name][used].tolist())
    assert set(keys["source"][spare].tolist()) <= set(keys["source"][before.splits["val"]].tolist())
    assert sum(map(len, whole.splits.values())) + sum(whole.dropped.values()) == len(rows)
    if SPLIT_CODES["val"] in keys["only_split"][before.splits["val"]]:
        assert set(keys["only_split"][spare].tolist()) <= {SPLIT_CODES["val"]}
    # Rows that turn out to be useless are left out, and others taken.
    again = set_aside(keys, before, n, shares, without=spare[:1]).splits["confirm"]
    assert not set(again.tolist()) & set(spare[:1].tolist())


def rows_of(n_groups: int, n_each: int, source: int = 0) -> list[Fact]:
    return [
        Fact(group=group, prompt=group * 1000 + k + source * 10**6, gold=k, source=source, only_split=0)
        for group in range(n_groups)
        for k in range(n_each)
    ]


def test_held_out_sets_take_at_most_a_third_of_a_small_data_set_each() -> None:
    selection = select(keys_of(rows_of(30, 1)), {"train": 5000, "val": 500, "test": 500}, "equal")
    assert {split: len(rows) for split, rows in selection.splits.items()} == {
        "test": 10,
        "val": 10,
        "train": 10,
    }


def test_groups_are_taken_whole_so_that_few_rows_are_lost() -> None:
    selection = select(keys_of(rows_of(100, 4)), {"train": 300, "val": 40, "test": 40}, "equal")
    assert {split: len(rows) for split, rows in selection.splits.items()} == {
        "test": 40,
        "val": 40,
        "train": 300,
    }
    assert selection.dropped == {"not needed": 20}


def test_sources_share_evenly_and_what_one_lacks_the_others_give() -> None:
    rows = [row for source, n in enumerate((12, 300, 300)) for row in rows_of(n, 1, source)]
    distinct = [Fact(number, row.prompt, 0, row.source, 0) for number, row in enumerate(rows)]
    keys = keys_of(distinct)
    test = select(keys, {"train": 100, "val": 10, "test": 64}, "equal").splits["test"]
    # A third of 12 is 4; the other 60 are halved.
    assert Counter(keys["source"][test].tolist()) == {0: 4, 1: 30, 2: 30}


def test_a_repeated_prompt_with_another_answer_is_counted_apart() -> None:
    base = rows_of(9, 1)
    again = [base[0], Fact(base[1].group, base[1].prompt, 77, 0, 0)]
    dropped = select(keys_of([*base, *again]), {"train": 9, "val": 1, "test": 1}, "equal").dropped
    assert dropped == {"duplicate prompt": 1, "duplicate prompt with another answer": 1}


def test_shares_by_size_follow_the_largest_remainders() -> None:
    # 10 * (5, 3, 1) / 9 = 5.56, 3.33, 1.11: the first remainder is the largest.
    sizes = {1: 50, 2: 30, 3: 10}
    assert allot(10, sizes, sizes) == {1: 6, 2: 3, 3: 1}
    assert allot(10, {1: 1, 2: 1, 3: 1}, sizes) == {1: 4, 2: 3, 3: 3}


def test_no_split_gets_more_than_its_cap() -> None:
    assert allot(10, {1: 1, 2: 1}, {1: 2, 2: 50}) == {1: 2, 2: 8}
    assert allot(100, {1: 1, 2: 1}, {1: 2, 2: 5}) == {1: 2, 2: 5}
    assert allot(0, {1: 1}, {1: 5}) == {1: 0}
