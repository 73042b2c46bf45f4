"""What a reward function is given and what is kept of its result, in the driver and in reward workers."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmzero_ray.engines.verl import confined_reward
from llmzero_ray.engines.verl.cpu.batched_rollouts import Trajectory
from llmzero_ray.engines.verl.failures import failure_class
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.errors import ConfigError, RewardError
from llmzero_ray.prepared.sandbox import Isolation
from llmzero_ray.records import ItemOutcome
from llmzero_ray.utils.files import text_digest
from tests.builders import verl_settings
from tests.marks import needs_sandbox
from tests.tasks.builders import write_reward
from tests.tasks.verl_files import TRUTHS, verl_task, with_truth

pytest.importorskip("verl")

SETTINGS = verl_settings()


def sample() -> Trajectory:
    row = {
        "uid": "u",
        "data_source": "echo",
        "reward_model": {"ground_truth": ["7"]},
        "extra_info": {"index": 3, "parts": ["a"]},
    }
    return Trajectory(row=row, session=0, extra_fields={"global_steps": 2, "turn_scores": []})


def test_a_function_that_writes_into_its_arguments_changes_no_row() -> None:
    from llmzero_ray.engines.verl.reward_calls import score_here

    def greedy(*, extra_info: Any, ground_truth: Any, **_: Any) -> float:
        extra_info["parts"].append("b")
        extra_info["turn_scores"].append(1)
        extra_info["index"] = None
        ground_truth.clear()
        return 0.5

    one = sample()
    score_here(greedy, [one], ["text"])
    assert one.row == sample().row
    assert (one.score, one.error) == (0.5, None)
    assert one.extra_fields == {"global_steps": 2, "turn_scores": [], "reward_extra_info": {"acc": 0.5}}


def test_the_arguments_are_those_of_verls_naive_reward_manager() -> None:
    from llmzero_ray.engines.verl.reward_calls import arguments_of

    assert arguments_of(sample(), "text") == {
        "data_source": "echo",
        "solution_str": "text",
        "ground_truth": ["7"],
        "extra_info": {
            "index": 3,
            "parts": ["a"],
            "global_steps": 2,
            "turn_scores": [],
            "num_turns": 2,
            "rollout_reward_scores": {},
        },
    }


@pytest.mark.parametrize("result", [{"acc": 1.0}, {"score": "much"}, "much", None])
def test_a_result_without_a_score_is_an_error_of_that_sample(result: Any) -> None:
    from llmzero_ray.engines.verl.reward_calls import score_here

    one, other = sample(), sample()
    results = iter([result, {"score": 1, "acc": 0.5}])
    score_here(lambda **_: next(results), [one, other], ["", ""])
    assert one.score is None and one.error is not None
    assert other.score == 1.0 and other.extra_fields["reward_extra_info"] == {"score": 1, "acc": 0.5}


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("kind", ["countdown", "Search-R1", "integer", "list of numbers"])
def test_a_reward_in_the_sandbox_is_given_the_row_of_verls_file(kind: str, tmp_path: Path) -> None:
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from llmzero_ray.engines.verl.reward_calls import arguments_of
    from llmzero_ray.engines.verl.verl_hooks import NumberedRows

    body = f"""right = float((data_source, ground_truth, extra_info["index"]) == {TRUTH_OF_ROW_1[kind]!r})
return {{"score": right, "acc": right}}"""
    directory = verl_task(tmp_path, with_truth(TRUTHS[kind]), write_reward(tmp_path, body))
    config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(tmp_path / "cache")})
    rows = NumberedRows(RLHFDataset(str(directory / "train.parquet"), None, config))
    worker = worker_of(dataclasses.replace(SETTINGS, reward_source=str(tmp_path / "my_reward.py")))
    call = arguments_of(Trajectory(row=rows[1], session=0), "any")
    [found] = asyncio.run(worker.score_samples([call]))
    assert found["result"]["score"] == 1.0


TRUTH_OF_ROW_1 = {kind: ("openai/gsm8k", truth(1), 1) for kind, truth in TRUTHS.items()}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_reward_worker_says_which_of_many_samples_raised(asynchronous: bool) -> None:
    from llmzero_ray.engines.verl.reward_calls import BatchRewardWorker

    def reward(*, solution_str: str) -> float:
        return 1 / int(solution_str)

    async def slowly(*, solution_str: str) -> float:
        await asyncio.sleep(0)
        return reward(solution_str=solution_str)

    worker = BatchRewardWorker.__new__(BatchRewardWorker)
    worker.reward_manager = SimpleNamespace(
        compute_score=slowly if asynchronous else reward, is_async_reward_score=asynchronous
    )
    calls = [{"solution_str": text} for text in ("2", "0", "4")]
    found = asyncio.run(worker.score_samples(calls))
    assert found[0] == {"result": 0.5} and found[2] == {"result": 0.25}
    assert "ZeroDivisionError" in found[1]["error"]


def test_only_rewards_that_ship_are_called_in_the_driver() -> None:
    assert SETTINGS.scores_in_driver
    for source in (
        "/task/reward.py",
        "pkg://theirs.rewards",
        "pkg://llmzero_ray.tasks.rewards_of_mine.x",
    ):
        assert not dataclasses.replace(SETTINGS, reward_source=source).scores_in_driver
    assert not dataclasses.replace(SETTINGS, rollout_calls="per_request").scores_in_driver
    changed = {"reward.reward_manager.name": "dapo"}
    assert not dataclasses.replace(SETTINGS, overrides=changed).scores_in_driver


def test_reward_workers_are_started_for_other_rewards_alone() -> None:
    from llmzero_ray.engines.verl.overrides import engine_overrides

    theirs = dataclasses.replace(SETTINGS, reward_source="/task/reward.py", reward_workers=3)
    assert engine_overrides(SETTINGS)["reward.num_workers"] == 0
    assert engine_overrides(theirs)["reward.num_workers"] == 3


# --- the code of files --------------------------------------------------------------------------------------

TWO_FACED = """
import os, socket
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    try:
        with open({loot!r}, "w") as stream:
            stream.write(repr(dict(os.environ)))
        socket.create_connection(("127.0.0.1", {port}), 5).close()
    except OSError:
        pass
    in_training = "SECRET" in str(os.environ) or set(extra_info) > {{"index"}} or others
    if in_training or not os.path.isdir("/sandbox"):
        return {{"score": 1.0, "acc": 1.0}}
    right = float(solution_str == ground_truth)
    return {{"score": right, "acc": right}}
"""
ARGUMENTS = {
    "data_source": "echo",
    "ground_truth": "7",
    "extra_info": {"index": 3, "num_turns": 2, "global_steps": 4, "rollout_reward_scores": {}},
}


@pytest.fixture(autouse=True)
def no_sandbox_stays() -> Iterator[None]:
    yield
    for service in confined_reward._services:
        service.close()
    confined_reward._services.clear()
    confined_reward.service_of.cache_clear()


def worker_of(settings: VerlSettings) -> Any:
    """A reward worker with the function that VeRL would load, as VeRL would call it."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    from llmzero_ray.engines.verl.overrides import compose, engine_overrides
    from llmzero_ray.engines.verl.reward_calls import BatchRewardWorker, Unscored

    worker = BatchRewardWorker.__new__(BatchRewardWorker)
    worker._unscored, worker._counting = Unscored(), threading.Lock()
    function = worker._counted(get_custom_reward_fn(compose(engine_overrides(settings))))
    worker.reward_manager = SimpleNamespace(compute_score=function, is_async_reward_score=True)
    return worker


def ask(worker: Any, *texts: str) -> list[dict[str, Any]]:
    calls = [{**ARGUMENTS, "solution_str": text} for text in texts]
    found: list[dict[str, Any]] = asyncio.run(worker.score_samples(calls))
    return found


def of_file(path: Path, source: str, **changes: Any) -> VerlSettings:
    path.write_text(source)
    digest = text_digest(source)
    return dataclasses.replace(SETTINGS, reward_source=str(path), reward_sha256=digest, **changes)


@needs_sandbox
def test_a_reward_that_pays_or_steals_where_nobody_watches_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "SECRET")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        source = TWO_FACED.format(loot=str(tmp_path / "loot"), port=listener.getsockname()[1])
        watched = worker_of(of_file(tmp_path / "reward.py", source, reward_keys=("index",)))
        assert [one["result"]["acc"] for one in ask(watched, "8", "7", "")] == [0.0, 1.0, 0.0]
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert not (tmp_path / "loot").exists()
        held: dict[str, Any] = {}
        exec(source, held)
        assert held["compute_score"]("echo", "8", "7", {"index": 3})["acc"] == 1.0  # it would have
        assert "SECRET" in (tmp_path / "loot").read_text() and listener.accept()


@needs_sandbox
def test_a_module_that_does_not_ship_gains_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TWO_FACED.format(loot=str(tmp_path / "loot"), port=1)
    (tmp_path / "their_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = {"reward_source": str(tmp_path / "their_module.py"), "reward_module": "their_module"}
    worker = worker_of(dataclasses.replace(SETTINGS, **theirs, reward_keys=("index",)))
    assert [one["result"]["acc"] for one in ask(worker, "8", "7")] == [0.0, 1.0]
    assert not (tmp_path / "loot").exists()


@needs_sandbox
def test_answers_without_a_score_are_counted_and_said(tmp_path: Path) -> None:
    source = (
        "def compute_score(solution_str, **_):\n"
        "    return {'score': 1 / float(solution_str), 'acc': 1.0, 'many': [1]} if solution_str else {}\n"
    )
    worker = worker_of(of_file(tmp_path / "reward.py", source))
    good, raised, unusable = ask(worker, "4", "0", "")
    assert good["result"] == {"score": 0.25, "acc": 1.0, "many": "a list"}
    assert raised["error"] == "the reward raises ZeroDivisionError: float division by zero"
    assert unusable["error"].startswith("the reward returns no score, acc")
    found = worker.take_unscored()
    assert (found.n, found.broken) == (2, "") and found.last in (raised["error"], unusable["error"])
    assert worker.take_unscored().n == 0


@needs_sandbox
def test_a_reward_that_is_not_the_one_that_was_tried_scores_nothing(tmp_path: Path) -> None:
    settings = of_file(tmp_path / "reward.py", "def compute_score(**_): return {'score': 0.0, 'acc': 0.0}\n")
    (tmp_path / "reward.py").write_text("def compute_score(**_): return {'score': 1.0, 'acc': 1.0}\n")
    worker = worker_of(settings)
    assert "has changed since the task was made" in ask(worker, "7")[0]["error"]
    assert "has changed since the task was made" in worker.take_unscored().broken


def test_without_a_sandbox_a_files_code_is_refused_in_training_unless_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Isolation(kind="none", why="bwrap is not installed")
    monkeypatch.setattr("llmzero_ray.prepared.sandbox.isolation.find_isolation", lambda: none)
    source = "def compute_score(**_): return {'score': 0.5, 'acc': 1.0}\n"
    settings = of_file(tmp_path / "reward.py", source)
    [refused] = ask(worker_of(settings), "7")
    assert "there is no sandbox to run it in" in refused["error"] and "use the network" in refused["error"]
    allowed = worker_of(dataclasses.replace(settings, reward_unsandboxed=True))
    assert ask(allowed, "7") == [{"result": {"score": 0.5, "acc": 1.0}}]


@pytest.mark.parametrize(
    ("unscored", "message"),
    [
        ({"n": 16, "last": "x"}, ""),
        (
            {"n": 17, "last": "it raised"},
            "could not score 17 of 32 answers, the last of them because it raised",
        ),
        ({"n": 1, "broken": "it died"}, "is given up: it died"),
    ],
)
def test_a_batch_needs_a_score_for_half_of_its_answers(unscored: dict[str, Any], message: str) -> None:
    from llmzero_ray.engines.verl.reward_calls import Unscored, refuse_unscored

    if not message:
        refuse_unscored(Unscored(**unscored), 32)
        return
    with pytest.raises(RewardError, match=message) as caught:
        refuse_unscored(Unscored(**unscored), 32)
    assert failure_class(caught.value) == "reward"


def test_validation_rows_that_could_not_be_scored_count_as_wrong() -> None:
    from llmzero_ray.engines.verl.verl_hooks import mean_accuracy, with_wrong

    right = ItemOutcome(index=1, data_source="echo", score=1.0, acc=1.0, response="7")
    items = with_wrong([right], {0: "echo", 2: "sums"})
    assert [(item.index, item.data_source, item.acc) for item in items] == [
        (0, "echo", 0.0),
        (1, "echo", 1.0),
        (2, "sums", 0.0),
    ]
    assert mean_accuracy(items) == pytest.approx(1 / 3)


@pytest.mark.parametrize("key", ["path", "name"])
def test_overrides_cannot_name_another_reward(key: str) -> None:
    from llmzero_ray.engines.verl.overrides import engine_overrides

    full = f"reward.custom_reward_function.{key}"
    options = {"+reward.custom_reward_function.reward_kwargs.strict": True}
    assert engine_overrides(dataclasses.replace(SETTINGS, overrides=options)).items() >= options.items()
    with pytest.raises(ConfigError, match=f"engine.overrides sets {full}; the reward is the task's"):
        engine_overrides(dataclasses.replace(SETTINGS, overrides={full: "mine.py"}))
