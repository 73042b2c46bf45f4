"""A driver that is killed at any moment loses no finished trial and trains no saved step again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.tune.killing import KilledSearch, run_and_kill

pytestmark = [pytest.mark.slow]


def check(done: KilledSearch, *, budget: int, phase_steps: int) -> None:
    assert done.lost == []
    assert done.repeated == []
    assert done.ends == dict.fromkeys(range(budget), 1)
    assert len(done.outcome) == budget
    assert all(row["iteration"] == phase_steps for row in done.outcome)


def test_a_death_of_the_driver(tmp_path: Path, head_address: str) -> None:
    done = run_and_kill(tmp_path, (6,), budget=4, phase_steps=4, environment={"RAY_ADDRESS": head_address})
    assert done.kills == 1
    check(done, budget=4, phase_steps=4)


@pytest.mark.long
def test_ten_deaths_at_random_moments(tmp_path: Path, head_address: str) -> None:
    moments = sorted(random.Random(14).sample(range(1, 90), 10))
    done = run_and_kill(
        tmp_path, moments, budget=16, phase_steps=6, environment={"RAY_ADDRESS": head_address}
    )
    assert done.kills == 10
    check(done, budget=16, phase_steps=6)
