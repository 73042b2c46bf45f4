"""Trainables for searches under Tune: a number that climbs, with every executed step in a file."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune

from llmzero_ray.tune import get_checkpoint


def note(config: dict[str, Any], **line: Any) -> None:
    """Append a line to the file that the test reads."""
    with open(config["notes"], "a") as file:
        file.write(json.dumps({"phase": config.get("llmzero_phase"), **line}) + "\n")


def notes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def climb(config: dict[str, Any]) -> None:
    """x rises by the rate at each step, from the checkpoint's; `fail_above` raises for higher rates. It takes
    `unwind_s` to end when Tune ends it, for which Ray waits 1 s then."""
    if "unwind_s" in config:
        os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = "1"
        try:
            climb({name: value for name, value in config.items() if name != "unwind_s"})
        finally:
            time.sleep(config["unwind_s"])
        return
    checkpoint = get_checkpoint()
    x, step = 0.0, 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = json.loads((Path(folder) / "state.json").read_text())
        x, step = state["x"], state["step"]
    trial = tune.get_context().get_trial_id()
    note(config, event="start", trial=trial, x=x, step=step, pid=os.getpid())
    while step < config.get("last_step", 1_000_000):
        step += 1
        x += config["rate"]
        if config["rate"] > config.get("fail_above", 1e9):
            raise ValueError(f"rate {config['rate']} is too high")
        time.sleep(config.get("sleep_s", 0.0))
        note(config, event="step", trial=trial, step=step)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps({"x": x, "step": step}))
            kept = tune.Checkpoint.from_directory(folder) if config.get("saves", True) else None
            tune.report({config.get("metric", "x"): x, "depth": step}, checkpoint=kept)
        note(config, event="told", trial=trial, step=step)


class Climber(tune.Trainable):
    """The same as a class; Tune saves it."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x, self.config = 0.0, config

    def step(self) -> dict[str, Any]:
        self.x += self.config["rate"]
        note(self.config, event="step", trial=self.trial_id, step=self.iteration + 1, x=self.x)
        return {"x": self.x}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "x").write_text(str(self.x))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.x = float((Path(checkpoint) / "x").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.x, self.config = 0.0, new_config
        return True
