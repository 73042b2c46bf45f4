"""Processes of searches are killed again and again; nothing that was finished is lost, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from .killer import Strike, Victim
from .lab import Lab
from .real import real_chaos, real_lab
from .run import scripted_chaos, table

pytestmark = pytest.mark.slow


def test_searches_whose_processes_are_killed_lose_nothing(tmp_path: Path) -> None:
    with Lab() as lab:
        outcome = scripted_chaos(lab, tmp_path, kills=6, seed=1, slots=2)
    print(table(outcome))
    assert outcome.violations == []
    assert len(outcome.blows) == 6
    assert {blow.victim for blow in outcome.blows} >= {"coordinator", "runner"}
    assert outcome.n_compared > 0


@pytest.mark.verl
@pytest.mark.long
def test_a_search_on_real_verl_whose_processes_are_killed_loses_nothing(tmp_path: Path) -> None:
    victims: list[Victim] = ["inference", "coordinator", "runner", "worker"]
    strikes = (Strike(victim=victim) for victim in victims)
    with real_lab(slots=1) as lab:
        outcome = real_chaos(lab, tmp_path, kills=4, seed=1, slots=1, strikes=strikes)
    print(table(outcome))
    assert outcome.violations == []
    assert [blow.victim for blow in outcome.blows] == victims
