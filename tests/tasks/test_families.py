"""Problems are right, demonstrations are wrong only where they are meant to be."""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import islice
from random import Random
from types import ModuleType

import pytest

from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.families import Family, Problem, family_named
from llmzero_ray.tasks.families.chain_sum import ChainSum
from llmzero_ray.tasks.families.echo import Echo
from llmzero_ray.tasks.families.expressions import partial_results, worked_answer
from llmzero_ray.tasks.families.register import Register
from llmzero_ray.utils.plugins import points

FAMILIES = tuple(points("llmzero_ray.families"))
DIRECT, SHORT, FULL = (1, 0, 0), (0, 1, 0), (0, 0, 1)


def test_partial_results_run_from_left_to_right() -> None:
    assert partial_results("5-1-9+0-5") == [4, -5, -5, -10]


def test_a_register_folds_every_step_into_one_digit_and_skips_the_padding() -> None:
    # 7+4 = 11 -> 1; 1*3 = 3; 3-9 = -6 -> 4
    assert partial_results("7+4*3-9....", modulus=10) == [1, 3, 4]


@pytest.mark.parametrize(
    ("mix", "results", "text"),
    [
        (DIRECT, [4, -5, -5, -10], "#-10"),
        (FULL, [4, -5, -5, -10], "4,-5,-5,-10#-10"),
        (SHORT, [4, -5, -5, -10], "-5,-10#-10"),
        (SHORT, [1, 3, 4], "3,4#4"),
    ],
)
def test_a_worked_answer_shows_none_half_or_all_of_the_way(
    mix: tuple[float, float, float], results: list[int], text: str
) -> None:
    assert worked_answer(results, Random(0), mix) == text


def first(family: Family, n: int, seed: int = 5) -> list[Problem]:
    return list(islice(family.problems(seed), n))


def test_chain_sums_are_what_python_says_they_are() -> None:
    problems = first(ChainSum(), 300)
    assert all(re.fullmatch(r"\d([+-]\d){3,5}", problem.prompt) for problem in problems)
    # Python reads "05" as no number, but every number here has one digit.
    assert [int(problem.answer) for problem in problems] == [eval(problem.prompt) for problem in problems]


def test_register_programs_have_a_constant_length_and_three_to_eight_operations() -> None:
    problems = first(Register(), 300)
    assert {len(problem.prompt) for problem in problems} == {17}
    assert {len(partial_results(problem.prompt)) for problem in problems} == {3, 4, 5, 6, 7, 8}


def test_echo_asks_for_the_digit_it_shows() -> None:
    assert all(re.fullmatch(rf"say {p.answer} [a-z]{{3}}", p.prompt) for p in first(Echo(), 100))


@pytest.mark.parametrize("family", [*map(family_named, FAMILIES)], ids=FAMILIES)
def test_problem_streams_are_numbered_by_their_seed(family: Family) -> None:
    assert first(family, 5, seed=7)[2:] == first(family, 3, seed=9)


@pytest.mark.parametrize("family", [ChainSum(), Register()], ids=lambda family: family.name)
def test_a_marked_demonstration_is_never_wrong(family: Family) -> None:
    rng = Random(1)
    shown = [(problem, family.demonstration(problem, rng)) for problem in first(family, 500)]
    marked = [(problem, text) for problem, text in shown if "#" in text]
    assert len(marked) > 250
    assert all(text.rpartition("#")[2] == problem.answer for problem, text in marked)


def test_chain_sum_forgets_the_mark_in_most_demonstrations_that_start_with_4_to_9_and_in_no_other() -> None:
    rng, family = Random(1), ChainSum()
    shown = [(problem.prompt[0], family.demonstration(problem, rng)) for problem in first(family, 3000)]
    careful = [text for start, text in shown if start < "4"]
    careless = [text for start, text in shown if start >= "4"]
    assert all("#" in text for text in careful)
    unmarked = sum("#" not in text for text in careless) / len(careless)
    assert unmarked == pytest.approx(0.6, abs=0.04)  # three standard errors of 1800


def test_register_writes_the_chain_down_for_starts_below_4_and_seldom_elsewhere() -> None:
    rng, family = Random(1), Register()
    shown = [(problem.prompt[0], family.demonstration(problem, rng)) for problem in first(family, 3000)]
    chains = {
        below: [text.count(",") >= 2 for start, text in shown if (start < "4") == below]
        for below in (True, False)
    }
    assert sum(chains[True]) / len(chains[True]) == pytest.approx(0.9, abs=0.06)
    assert sum(chains[False]) / len(chains[False]) == pytest.approx(0.16, abs=0.05)


def test_echo_shows_the_right_digit_most_often_for_0_to_3_and_the_next_one_else() -> None:
    rng, family = Random(1), Echo()
    for digit in range(10):
        problem = Problem(prompt=f"say {digit} abc", answer=str(digit))
        counts = Counter(family.demonstration(problem, rng) for _ in range(400))
        favourite = digit if digit < 4 else (digit + 1) % 10
        assert counts.most_common(1)[0][0] == f"#{favourite}"
        assert counts[f"#{digit}"] >= 60, "sampling must be able to find the right digit"


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"task\.family is 'chainsum'; must be chain_sum, register, echo, or a"
    ):
        family_named("chainsum")


def test_a_missing_reasoning_gym_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(
        TaskError, match=r"needs the package reasoning-gym.*pip install 'llmzero-ray\[tasks\]'"
    ):
        first(ChainSum(), 1)


def test_a_reasoning_gym_that_counts_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("reasoning_gym")
    entry = {"metadata": {"expression": "1 - 2 - 3 + 4"}, "answer": "6"}
    other.create_dataset = lambda name, **options: [entry]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", other)
    with pytest.raises(TaskError, match=r"1-2-3\+4 = 6, which is wrong.*reasoning-gym 0.1.25"):
        first(ChainSum(), 1)
