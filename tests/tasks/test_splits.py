"""Splits share no prompt and are the same everywhere."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import Family, Problem, family_named
from llmzero_ray.prepared.splits import (
    MAX_PROBLEMS,
    MAX_SEED,
    Splits,
    canonical_prompt,
    majority_share,
    make_splits,
)
from llmzero_ray.prepared.verl_rows import to_rows, write_parquet
from llmzero_ray.utils.plugins import points
from tests.tasks.builders import Numbers

FAMILIES = tuple(points("llmzero_ray.families"))
SIZES = {"train": 200, "val": 50, "test": 50}
# sha256 of the JSON of all problems and demonstrations. A change means that tasks are made differently from
# now on: raise the family's version with it.
PINNED = {
    "chain_sum": "35fc44faa168ed372ee1ed1e0a845335cf9aca0b177376393109a1f80dd66ae4",
    "register": "31f508caccbeb1ca02d1e707224ca215ad1751e7a50f8717607e6906f9d81c19",
    "echo": "1d29eed4dc629e7d8af0fd3c4ab9d53cd456b197f2a77f769c68773a9d8352b6",
}


def prompts(splits: Splits) -> dict[str, set[str]]:
    found = {
        split: {canonical_prompt(p.prompt) for p in problems} for split, problems in splits.problems.items()
    }
    return {**found, "demonstrations": {canonical_prompt(prompt) for prompt, _ in splits.demonstrations}}


def digest(splits: Splits) -> str:
    problems = {split: [[p.prompt, p.answer] for p in found] for split, found in splits.problems.items()}
    return sha256(json.dumps([problems, splits.demonstrations], sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("family", [*map(family_named, FAMILIES)], ids=FAMILIES)
def test_splits_are_the_same_on_every_machine(family: Family) -> None:
    assert digest(make_splits(family, SIZES, seed=0)) == PINNED[family.name]


@pytest.mark.parametrize("family", [*map(family_named, FAMILIES)], ids=FAMILIES)
def test_no_prompt_stands_in_two_sets_or_twice_in_one(family: Family) -> None:
    splits = make_splits(family, SIZES, seed=0)
    found = prompts(splits)
    assert {name: len(held) for name, held in found.items()} == {
        **SIZES,
        "demonstrations": family.warm_start.n_demonstrations,
    }
    assert all(not one & other for one, other in combinations(found.values(), 2))


def test_the_test_set_stays_when_the_training_set_grows() -> None:
    echo = family_named("echo")
    small = make_splits(echo, SIZES, seed=0)
    large = make_splits(echo, {**SIZES, "train": 400}, seed=0)
    assert large.problems["test"] == small.problems["test"]
    assert large.problems["val"] == small.problems["val"]


def test_another_seed_gives_other_problems() -> None:
    echo = family_named("echo")
    one, other = make_splits(echo, SIZES, seed=0), make_splits(echo, SIZES, seed=1)
    assert one.problems["test"] != other.problems["test"]


def test_generator_seeds_of_different_sets_lie_ten_million_apart_for_any_seed() -> None:
    numbers = Numbers(size=10**12)
    for seed in (0, 1, 2, MAX_SEED):
        make_splits(numbers, {"train": 1, "val": 1, "test": 1}, seed)
    assert len(numbers.seeds) == 16
    assert min(abs(a - b) for a, b in combinations(numbers.seeds, 2)) >= 10**7 > 8 * MAX_PROBLEMS


def test_a_family_that_runs_out_of_prompts_says_how_many_it_found() -> None:
    # 12 different prompts: 5 for test, 5 for val, 2 left for train.
    with pytest.raises(
        TaskError, match=r"numbers has too few different prompts: 2 of 6 found for train \(12 "
    ):
        make_splits(Numbers(size=12), {"train": 6, "val": 5, "test": 5}, seed=0)


def test_prompts_that_differ_in_spacing_alone_are_the_same_question() -> None:
    assert canonical_prompt(" What  is\n1?") == canonical_prompt("What is 1?")
    assert canonical_prompt("1 2") != canonical_prompt("12")
    assert canonical_prompt("next letter: a") != canonical_prompt("next letter: A")


def test_the_majority_share_is_that_of_the_most_frequent_answer() -> None:
    problems = tuple(Problem(prompt=str(index), answer=answer) for index, answer in enumerate("aabac"))
    assert majority_share(problems) == 3 / 5


def test_rows_follow_verls_schema_and_come_back(tmp_path: Path) -> None:
    problems = (Problem(prompt="1+2", answer="3"), Problem(prompt="1-2", answer="-1"))
    write_parquet(to_rows(family_named("chain_sum"), "val", problems), tmp_path / "val.parquet")
    rows = pq.ParquetFile(tmp_path / "val.parquet").read().to_pylist()
    assert rows[1] == {
        "data_source": "chain_sum",
        "prompt": [{"role": "user", "content": "1-2"}],
        "ability": "chain_sum",
        "reward_model": {"style": "rule", "ground_truth": "-1"},
        "extra_info": {"index": 1, "split": "val"},
    }
    read = [(row["prompt"][-1]["content"], row["reward_model"]["ground_truth"]) for row in rows]
    assert read == [(problem.prompt, problem.answer) for problem in problems]


def test_equal_rows_give_equal_files(tmp_path: Path) -> None:
    rows = to_rows(family_named("echo"), "val", make_splits(family_named("echo"), SIZES, 0).problems["val"])
    for name in ("one", "other"):
        write_parquet(rows, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
