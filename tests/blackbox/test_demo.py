"""The demo to the digit: what its first phases planned, trained and scored, against a run that was kept.

runs/demo is the demo of jobs/configs/local.yaml, ended by a person after four runs. The digits are those of
one kind of machine: another one's arithmetic already makes another tiny model, and then nothing can be
compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.blackbox import inputs, public_api

RECORD = inputs.DATA / "demo.json"
"""Of runs/demo, which an earlier version made with its own tiny model."""
DIGITS = inputs.DATA / "demo_digits.json"
"""Of what `make demo` does now; to be recorded again when the tiny model's training changes."""
COMPARED = ("critic/score/mean", "actor/kl_loss", "actor/entropy", "actor/grad_norm", "response_length/mean")


def digits(root: Path, node: int) -> dict[str, Any]:
    """Everything of a node that an undisturbed repeat must give again, to the last digit."""
    folder = root / "nodes" / f"{node:04d}"
    spec = yaml.safe_load((folder / "spec.yaml").read_text())
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    items = pq.read_table(folder / "val_items.parquet").to_pylist()
    answers = json.dumps([[item["step"], item["index"], item["response"]] for item in items])
    return {
        "kind": spec["kind"],
        "resume_from": spec["resume_from"],
        "n_steps": spec["n_steps"],
        "seed": spec["seed"],
        "hyperparameters": spec["hyperparameters"],
        "validation": {str(row["step"]): row["val_score"] for row in rows if row["val_score"] is not None},
        "metrics": {name: [row[name] for row in rows if row["step"] > 0] for name in COMPARED},
        "right": {
            str(step): sum(item["acc"] for item in items if item["step"] == step)
            for step in sorted({item["step"] for item in items})
        },
        "answers": sha256(answers.encode()).hexdigest(),
    }


def record(path: Path = RECORD) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("node", [0, 1, 2])
def test_the_digits_of_the_kept_demo_are_those_that_are_written_down(node: int) -> None:
    assert digits(inputs.RUNS / "demo", node) == record()["nodes"][str(node)]


def test_the_demo_is_still_configured_as_the_kept_one_but_for_when_the_stopper_judges() -> None:
    kept = public_api.load_stored(inputs.RUNS / "demo" / "search.yaml").to_json()
    now = public_api.load_config(public_api.CHECKOUT / "jobs" / "configs" / "local.yaml").to_json()
    for config in (kept, now):
        config.pop("storage")
        config["task"].pop("dir")
        config.pop("name")
    # Every validation is judged now; the kept one asked every third step, mostly without a new validation.
    assert (kept["stopper"].pop("interval_steps"), now["stopper"].pop("interval_steps")) == (3, 5)
    # It is asked at every validation by default now; the paper's 900 s stand in its own configuration.
    assert (kept["stopper"].pop("interval_s"), now["stopper"].pop("interval_s")) == (900.0, 0.0)
    # Limits that were written out then follow from model and machine now; on the CPU they are the same.
    for limit in ("hang_min_s", "stop_deadline_s"):
        assert (kept["engine"].pop(limit), now["engine"].pop(limit)) == (600.0, None)
    # What the server may hold follows from the estimate on GPUs now; on the CPU it is the same.
    for size, number in (("max_num_seqs", 128), ("gpu_memory_utilization", 0.5)):
        assert (kept["engine"].pop(size), now["engine"].pop(size)) == (number, "auto")
    # Every agent has a deadline of its own now.
    assert (kept["agents"].pop("deadline_s"), now["agents"].pop("deadline_s")) == (120.0, None)
    # The default recipe is compared at equal compute now, and was at equal steps.
    assert (kept["final"].pop("default_recipe"), now["final"].pop("default_recipe")) == (True, "compute")
    assert now == kept


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.verl
def test_the_demo_gives_the_same_digits_again(tmp_path: Path) -> None:
    """Two phases of it, which end the search because the second one reaches the target."""
    settings = [f"storage={tmp_path / 'runs'}", f"task.dir={tmp_path / 'task'}", "budget.target=0.75"]
    settings += ["final.test=false", "final.default_recipe=false"]
    words = ["jobs/configs/local.yaml", *(part for each in settings for part in ("--set", each))]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") or k == "RAY_TMPDIR"}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    env.pop("OMP_NUM_THREADS", None)  # the tests set it, `make demo` does not
    for command in (["jobs.prepare", *words], ["jobs.search", *words]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=public_api.CHECKOUT,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if command[0] == "jobs.prepare":
            model = sha256((tmp_path / "task" / "model" / "model.safetensors").read_bytes()).hexdigest()
            if model != record(DIGITS)["model"]:
                pytest.skip("the arithmetic of this machine makes another tiny model")
    for node in (0, 1):
        assert digits(tmp_path / "runs" / "local", node) == record(DIGITS)["nodes"][str(node)]
