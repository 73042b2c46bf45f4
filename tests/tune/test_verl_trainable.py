"""Phases on slots under Ray Tune, with the scripted engine on the shared head."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from actors.names import NAMESPACE
from llmzero_ray.errors import CapacityError
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.report import load_strategy
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.tune import StrategyRetraining, tree_search, verl_trainable
from tests.searches import CHECKOUT, scripted_search
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("head")]
LR = "actor_rollout_ref.actor.optim.lr"


@pytest.fixture(scope="module")
def task_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("task") / "echo"
    prepare(dir=directory, family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
    return directory


def reserved() -> list[str]:
    """Names of the slots' groups and actors that are there."""
    groups = ray.util.placement_group_table().values()
    names = [group["name"] for group in groups if group["state"] != "REMOVED"]
    actors = ray.util.list_named_actors(all_namespaces=True)
    names += [one["name"] for one in actors if one["namespace"] == NAMESPACE]
    return [name for name in names if "-tune-" in name]


def fit(train: Any, folder: Path, *, workers: int = 1, propose: Any = None, **given: Any) -> tuple[Any, Any]:
    """(results, the search) of a Tuner."""
    values = {"metric": "val_score", "space": train.space, "root": train.root, "proposer": propose or faster}
    search_alg, scheduler = tree_search(**{**values, "budget": 4, "phase_steps": 6, **given})
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=search_alg, scheduler=scheduler, num_samples=-1, max_concurrent_trials=workers
        ),
        run_config=tune.RunConfig(name="exp", storage_path=str(folder), verbose=0),
    ).fit()
    return results, search_alg.search


def faster(request: ProposalRequest) -> dict[str, Any]:
    return {LR: 1e-4 * (1 + (request.node or 0))}


def test_trials_are_phases_on_warm_slots_and_nothing_stays_reserved(tmp_path: Path, task_dir: Path) -> None:
    train = verl_trainable(
        scripted_search(tmp_path, task_dir), **{"phase.test_freq": 2, "phase.save_freq": 2}
    )
    results, search = fit(train, tmp_path)
    assert reserved() == []
    assert not results.errors and len(results) == 4
    phases = search.phases
    for phase in phases.values():
        assert (phase.run.status, [step for step in phase.steps if step], sorted(phase.checkpoints)) == (
            "completed",
            [1, 2, 3, 4, 5, 6],
            [2, 4, 6],
        )
        assert [step for step, one in phase.steps.items() if step and one.val_score is not None] == [2, 4, 6]
    resumed = [phase for phase in phases.values() if phase.start.resume_from is not None]
    assert resumed
    by_trial = {result.metrics["trial_id"]: result for result in results}
    for phase in resumed:
        source = phases[phase.start.resume_from.node].steps[phase.start.resume_from.step]
        # The scripted engine goes on from the score that its adapter remembers.
        assert phase.steps[1].metrics["start_score"] == pytest.approx(source.val_score)
        assert by_trial[phase.trials[0]].metrics["global_step"] == phase.run.base_step + 6
    warm = [by_trial[phase.trials[0]].metrics["warm"] for phase in phases.values()]
    assert warm == [False, True, True, True]


@pytest.mark.long
def test_trials_wait_for_each_other_where_slots_are_fewer(tmp_path: Path, task_dir: Path) -> None:
    train = verl_trainable(scripted_search(tmp_path, task_dir, {"step_s": 0.02}))
    results, search = fit(train, tmp_path, workers=2)
    assert not results.errors and reserved() == []
    assert all(phase.run.status == "completed" for phase in search.phases.values())


def test_a_stopped_phase_ends_on_its_slot_and_the_next_one_starts_warm(
    tmp_path: Path, task_dir: Path
) -> None:
    # Node 1 holds after step 3 until it is asked to stop.
    train = verl_trainable(scripted_search(tmp_path, task_dir, {"hold": [1]}))
    results, search = fit(train, tmp_path, budget=3, stopper=lambda running, best: running.node == 1)
    phase = search.phases[1]
    assert (phase.run.status, phase.last_step) == ("early_stopped", 1)
    last = next(one for one in results if one.metrics["trial_id"] == search.phases[2].trials[0])
    assert last.metrics["warm"] is True and reserved() == []


def test_a_failed_phase_is_a_failed_trial_and_its_engine_goes_on(tmp_path: Path, task_dir: Path) -> None:
    train = verl_trainable(scripted_search(tmp_path, task_dir, {"fail": [1]}))
    results, search = fit(train, tmp_path, budget=3)
    assert search.phases[1].run.status == "failed"
    failure = search.view(1).failure
    assert (failure.failure_class, failure.cause) == ("engine", "RuntimeError: scripted failure")
    assert search.phases[2].run.kind == "debug" and search.phases[2].run.status == "completed"
    last = next(one for one in results if one.metrics["trial_id"] == search.phases[2].trials[0])
    assert last.metrics["warm"] is True and reserved() == []


@pytest.mark.long
def test_a_runner_that_dies_fails_its_trial_and_is_replaced(tmp_path: Path, task_dir: Path) -> None:
    train = verl_trainable(scripted_search(tmp_path, task_dir, {"die": [1]}))
    _, search = fit(train, tmp_path, budget=3)
    assert search.phases[1].run.status == "failed"
    assert "the runner of the slot died" in search.phases[1].reason
    assert search.phases[2].run.status == "completed" and reserved() == []


@pytest.mark.long
def test_with_another_scheduler_a_call_gives_the_slots_back(tmp_path: Path, task_dir: Path) -> None:
    train = verl_trainable(
        scripted_search(tmp_path, task_dir), **{"phase.test_freq": 2, "phase.save_freq": 2}
    )
    results = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([1e-4, 5e-4])},
        run_config=tune.RunConfig(name="grid", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert [result.metrics["global_step"] for result in results] == [10, 10]
    assert reserved() != []  # another scheduler does not know of the slots
    train.release_slots()
    assert reserved() == []


@pytest.mark.long
def test_slots_and_runners_go_with_a_process_that_is_killed(
    tmp_path: Path, task_dir: Path, head: str
) -> None:
    script = f"""
import asyncio, os, signal, ray
ray.init(address={head!r}, namespace={NAMESPACE!r}, log_to_driver=False, logging_level="ERROR")
from actors.runner_pool import RunnerPool
from llmzero_ray.tune import verl_trainable
train = verl_trainable({scripted_search(tmp_path, task_dir)!r})
train.default_resource_request({{}})
config = train.slot_use.config
pool = RunnerPool("a-trial", config.storage, lambda: config, fixed_capacity=False, held_slots=config.name)
asyncio.run(pool.start(0))
groups = ray.util.placement_group_table().values()
print([group["state"] for group in groups if group["name"] == f"slot-{{config.name}}-0-0"])
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-u", "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "['CREATED']\n", done.stderr
    wait_until(lambda: reserved() == [], reserved)


def test_slots_that_the_cluster_does_not_have_end_the_fit_with_one_message(
    tmp_path: Path, task_dir: Path
) -> None:
    train = verl_trainable(scripted_search(tmp_path, task_dir), **{"slots.count": 9, "slots.timeout_s": 1})
    with pytest.raises(CapacityError, match="the cluster did not give the slots within 1 s"):
        fit(train, tmp_path)
    assert reserved() == []


def test_a_strategy_of_a_search_on_verl_is_trained_again_on_the_slots(tmp_path: Path, task_dir: Path) -> None:
    path = Path(__file__).parents[1] / "blackbox/runs/steered/strategy.yaml"
    strategy = load_strategy(path)
    train = verl_trainable(
        scripted_search(tmp_path, task_dir, engine={"max_prompt_length": 512, "max_response_length": 512}),
        **{"phase.test_freq": 5, "phase.save_freq": 5},
    )
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(scheduler=StrategyRetraining(path)),
        run_config=tune.RunConfig(name="again", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not results.errors and reserved() == []
    assert results[0].metrics["global_step"] == strategy.total_steps
    last = strategy.phases[-1]
    assert results[0].metrics["training_iteration"] == strategy.total_steps
    assert results[0].config[LR] == last.hyperparameters[LR]
