"""The demo to the digit: what its first phases planned, trained and scored.

The digits are those of one kind of machine: another one's arithmetic already makes another tiny model, and
then nothing can be compared.
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

DIGITS = inputs.DATA / "demo_digits.json"
"""Those of `make demo`; to be recorded again when the tiny model's training changes."""
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


def record() -> Any:
    return json.loads(DIGITS.read_text())


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
            if model != record()["model"]:
                pytest.skip("the arithmetic of this machine makes another tiny model")
    for node in (0, 1):
        assert digits(tmp_path / "runs" / "local", node) == record()["nodes"][str(node)]
