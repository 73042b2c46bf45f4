"""What the sandbox costs a training step: the demo's reward given as a file of the user's, and in place.

    python -m benchmarks.confined_reward [--batches 50] [--steps 6] [--no-steps] [--task DIR]

Scores batches of the demo's size (128 answers) in this process with the function that VeRL's reward workers
load, then trains the task of jobs/configs/local.yaml with the reward in place and with the reward as a file:
one cold phase of one step and a warm one each. Prints medians in seconds and the share of a batch's extra
time in the demo's step. `--no-steps` leaves the training out. Other load on the machine moves all of it; the
load average is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rollouts import SHIPPED, Processors, of_steps, run
from benchmarks.slot import local_slot
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl import confined_reward
from llmzero_ray.engines.verl.factory import idle_spec, verl_settings
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.verl_rows import read_first_rows
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.tasks.rewards import marked_answer
from llmzero_ray.utils.files import file_digest

PLACES = ("in place", "as a file")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=50, help="batches that are scored")
    parser.add_argument("--steps", type=int, default=6, help="training steps of the warm phase")
    parser.add_argument("--no-steps", action="store_true", help="train nothing")
    parser.add_argument("--task", help="directory of the prepared task; made again without it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, local_slot("confined") as slot:
        given = {**read_yaml(SHIPPED), "name": "confined", "storage": root}
        config, sizes = parse_config(given), given["task"]
        task = prepare(
            dir=options.task or f"{root}/task",
            family=sizes["family"],
            n_val=sizes["n_val"],
            n_test=sizes["n_test"],
            seed=1,
        )
        tasks = {PLACES[0]: task, PLACES[1]: with_file(task, Path(root))}
        overrides = given["root"]["overrides"]
        seconds = batch_seconds(
            config, tasks[PLACES[1]], slot, overrides["batch"] * overrides["n"], options.batches
        )
        extra = seconds[PLACES[1]] - seconds[PLACES[0]]
        for place in PLACES:
            print(f"batch of {overrides['batch'] * overrides['n']} answers, {place}: {seconds[place]:.4f} s")
        found: dict[str, Any] = {"batch_s": seconds, "load": os.getloadavg()[0]}
        if not options.no_steps:
            found["step_s"] = {
                place: step_seconds(config, tasks[place], slot, f"{root}/{place[-4:]}", options.steps)
                for place in PLACES
            }
            found["share"] = extra / found["step_s"][PLACES[0]]
            for place in PLACES:
                print(f"step, {place}: {found['step_s'][place]:.3f} s")
            print(f"extra time of a batch in a step: {found['share']:.1%} (at most 10%)")
        print(json.dumps(found))


def with_file(task: PreparedTask, folder: Path) -> PreparedTask:
    """The task with its reward as a file of the user's."""
    path = folder / "reward.py"
    shutil.copy(str(marked_answer.__file__), path)
    return dataclasses.replace(
        task, reward_module=None, reward_path=str(path), reward_sha256=file_digest(str(path))
    )


def batch_seconds(
    config: SearchConfig, task: PreparedTask, slot: Any, n_answers: int, n_batches: int
) -> dict[str, float]:
    """Median seconds for a batch of right and wrong answers; the sandbox is warm."""
    rows = read_first_rows(Path(task.train), n_answers)
    calls = [
        {
            "data_source": row["data_source"],
            "solution_str": f"so the answer is #{row['reward_model']['ground_truth'] if i % 2 else '0'}",
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": {**row["extra_info"], "num_turns": 2, "rollout_reward_scores": {}},
        }
        for i, row in enumerate(rows)
    ]
    kwargs = confined_reward.kwargs_of(verl_settings(config, task, slot, "."))

    async def confined() -> list[Any]:
        return await asyncio.gather(*(confined_reward.compute_score(**call, **kwargs) for call in calls))

    def in_place() -> list[Any]:
        return [marked_answer.compute_score(**call) for call in calls]

    same = [{key: one[key] for key in ("score", "acc")} for one in in_place()]
    assert [{key: one[key] for key in ("score", "acc")} for one in asyncio.run(confined())] == same
    return {
        PLACES[0]: statistics.median(timed(in_place) for _ in range(n_batches)),
        PLACES[1]: statistics.median(timed(lambda: asyncio.run(confined())) for _ in range(n_batches)),
    }


def timed(work: Any) -> float:
    """Seconds of the clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def step_seconds(config: SearchConfig, task: PreparedTask, slot: Any, root: str, n_steps: int) -> float:
    """Median of a warm phase's steps."""
    engine, processors = make_engine(config, task, slot, root), Processors()
    base = dataclasses.replace(idle_spec(config, task.n_train, root), seed=1)
    try:
        for node, steps in enumerate((1, n_steps)):
            spec = dataclasses.replace(
                base,
                node=node,
                n_steps=steps,
                save_freq=steps,
                test_freq=steps,
                checkpoint_dir=f"{root}/checkpoints/{node}",
            )
            _, points, _ = run(engine, spec, processors)
    finally:
        engine.close()
        processors.close()
    return of_steps(points, "step")


if __name__ == "__main__":
    main()
