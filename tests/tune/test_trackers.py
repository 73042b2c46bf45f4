"""Tune's own callbacks with the real packages: every trial's curve and its place in the tree.

TensorBoard, which Tune has by default, is in test_ray_search.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.test_tracking import wandb_records
from tests.tune.test_ray_search import Experiment, experiment

__all__ = ["experiment"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("head")]


def curve(phase: Any) -> list[tuple[int, float]]:
    return [(step, one.metrics["x"]) for step, one in sorted(phase.steps.items()) if step]


def test_runs_of_mlflow_have_every_trials_curve_and_lineage(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    place = (experiment.folder / "mlflow").as_uri()
    logger = MLflowLoggerCallback(tracking_uri=place, experiment_name="search")
    experiment.run(budget=3, run_config={"callbacks": [logger]})
    client = MlflowClient(place)
    runs = client.search_runs([client.get_experiment_by_name("search").experiment_id])
    found = {int(run.data.params["llmzero/node"]): run for run in runs}
    phases = experiment.search.phases
    assert sorted(found) == sorted(phases) and any(phase.start.resume_from for phase in phases.values())
    for node, phase in phases.items():
        params, at = found[node].data.params, phase.start.resume_from
        assert (params["llmzero/kind"], params.get("llmzero/parent")) == (
            phase.run.kind,
            None if phase.run.on is None else str(phase.run.on),
        )
        assert params.get("llmzero/resume_step") == (None if at is None else str(at.step))
        points = client.get_metric_history(found[node].info.run_id, "x")
        assert sorted((point.step, point.value) for point in points) == curve(phase)


@pytest.mark.long
def test_offline_runs_of_wandb_have_every_trials_curve_and_lineage(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.air.integrations.wandb import WandbLoggerCallback

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(experiment.folder / "wandb"))
    logger = WandbLoggerCallback(project="search", dir=str(experiment.folder))
    experiment.run(budget=2, run_config={"callbacks": [logger]})
    found = {}
    for path in experiment.folder.glob("wandb/offline-run-*/*.wandb"):
        group, config, points = offline_run(path)
        assert group == "exp"
        found[config["llmzero"]["node"]] = (config["llmzero"], points)
    phases = experiment.search.phases
    assert sorted(found) == sorted(phases) == [0, 1]
    for node, phase in phases.items():
        lineage, points = found[node]
        assert lineage == phase.lineage() and points == curve(phase)


def offline_run(path: Path) -> tuple[str, dict[str, Any], list[tuple[int, float]]]:
    """(group, configuration, points) of the file that `wandb sync` would send."""
    from wandb.proto import wandb_internal_pb2

    group, config, points = "", {}, []
    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            group = record.run.run_group
            config |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
        elif record.HasField("history"):
            row = {
                one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item
            }
            points.append((int(row["training_iteration"]), float(row["x"])))
    return group, config, points
