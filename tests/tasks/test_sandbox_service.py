"""A sandbox that many threads use for a long time: batches, restarts, and when a reward is given up."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmzero_ray.errors import RewardError
from llmzero_ray.prepared.sandbox import SandboxLimits, SandboxService
from tests.marks import needs_sandbox
from tests.waiting import PATIENCE_S, wait_until

pytestmark = needs_sandbox

REWARD = """
import os
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "die":
        os._exit(3)
    return {"score": 1.0, "acc": 1.0, "pred": f"{solution_str} {os.getpid()}"}
"""
Make = Callable[..., SandboxService]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SandboxService] = []

    def service(source: str = REWARD, **options: Any) -> SandboxService:
        (tmp_path / "reward.py").write_text(source)
        made.append(SandboxService(str(tmp_path / "reward.py"), "compute_score", **options))
        return made[-1]

    yield service
    for one in made:
        one.close()


def row(text: str = "x") -> dict[str, Any]:
    return {"data_source": "d", "solution_str": text, "ground_truth": "x", "extra_info": {}}


def pred(service: SandboxService, text: str = "x") -> str:
    return str(service.submit(row(text)).result(PATIENCE_S).result["pred"])


def test_many_threads_get_their_own_answers_from_one_process(make: Make) -> None:
    service = make()
    texts = [str(number) for number in range(300)]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda text: pred(service, text), texts))
    assert [one.split()[0] for one in found] == texts
    assert len({one.split()[1] for one in found}) == 1


def test_a_row_that_kills_the_process_costs_itself_alone(make: Make) -> None:
    service = make()
    before, dead, after = [service.submit(row(text)) for text in ("a", "die", "b")]
    outcome = dead.result(PATIENCE_S)
    assert outcome.problem == "ended its process with exit code 3" and outcome.lost
    assert [one.result(PATIENCE_S).result["pred"][0] for one in (before, after)] == ["a", "b"]


LOST_TWICE = r"2 rows before .*; the last one ended its process with exit code 3"


def test_a_reward_that_dies_again_and_again_is_given_up_until_it_is_renewed(make: Make) -> None:
    service = make(limits=SandboxLimits(losses=2))
    futures = [service.submit(row("die")) for _ in range(4)]
    for given_up in futures[2:]:
        with pytest.raises(RewardError, match=LOST_TWICE):
            given_up.result(PATIENCE_S)
    with pytest.raises(RewardError):
        pred(service)
    service.renew()
    assert pred(service).startswith("x")


def test_the_last_loss_is_named_whenever_the_next_row_comes(make: Make) -> None:
    service = make(limits=SandboxLimits(losses=2))
    for _ in range(2):
        assert service.submit(row("die")).result(PATIENCE_S).lost
    with pytest.raises(RewardError, match=LOST_TWICE):
        service.submit(row("die")).result(PATIENCE_S)


def test_a_reward_that_cannot_start_fails_every_call_until_it_can(make: Make, tmp_path: Path) -> None:
    service = make("raise ValueError('not today')")
    for _ in range(2):
        with pytest.raises(RewardError, match="cannot be imported: ValueError: not today"):
            pred(service)
    (tmp_path / "reward.py").write_text(REWARD)
    service.renew()
    assert pred(service).startswith("x")


def test_only_the_content_that_was_tried_is_run(make: Make) -> None:
    service = make(sha256="ab" * 32)
    with pytest.raises(RewardError, match=r"reward.py has changed since the task was made"):
        pred(service)


def test_a_call_that_was_cancelled_disturbs_no_other(make: Make) -> None:
    service = make()
    futures = [service.submit(row(str(number))) for number in range(50)]
    for one in futures[::2]:
        one.cancel()
    assert all(one.result(PATIENCE_S).problem == "" for one in futures if not one.cancelled())
    assert pred(service).startswith("x")


def test_the_process_ends_with_the_service(make: Make) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    service = make()
    pred(service)

    def started() -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True)} - before

    assert started()
    service.close()
    wait_until(lambda: not started())
