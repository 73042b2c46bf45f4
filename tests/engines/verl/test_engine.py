"""Real VeRL phases: what streams out, what is saved, what a warm start keeps, what the read-back sees."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from actors.model_server import ModelServer
from llmzero_ray.dynamics.stored_outcomes import prompt_text
from llmzero_ray.records import KnownStart, MetricPoint, PhaseFailure, PhaseResult, ResumeFrom
from llmzero_ray.storage.metric_files import parquet_rows
from tests.engines.verl.conftest import ACTOR, ROLLOUT, Lab, assert_same_metrics, live_logits
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow]

LR = f"{ACTOR}.optim.lr".replace(".", "__")
N = f"{ROLLOUT}.n".replace(".", "__")
TEMPERATURE = f"{ROLLOUT}.temperature".replace(".", "__")
CAP = "data__max_response_length"
SERVER_KEY = "key-of-the-served-model"


def test_first_phase_is_cold_and_streams_every_step_under_verls_names(lab: Lab, first: Any) -> None:
    outcome, points = first
    assert (outcome.warm, outcome.cold_reason, outcome.steps_done) == (False, "first phase", 4)
    assert [p.step for p in points] == [0, 1, 2, 3, 4]
    for key in (
        "critic/score/mean",
        "critic/score/mixed_groups",
        "critic/score/best@n",
        "actor/kl_loss",
        "actor/entropy",
        "actor/grad_norm",
        "response_length/mean",
        "timing_s/step",
    ):
        assert all(key in p.metrics for p in points[1:]), key
    assert points[1].metrics["actor/lr"] == pytest.approx(3e-3)
    for point in points[1:]:
        found = point.metrics
        mixed, best = found["critic/score/mixed_groups"], found["critic/score/best@n"]
        assert 0 <= mixed <= 1 and found["critic/score/mean"] <= best <= found["critic/score/max"]
        assert (mixed > 0) == (found["critic/advantages/max"] > 0)


def test_validations_carry_one_outcome_per_row_and_step_zero_is_no_score(lab: Lab, first: Any) -> None:
    outcome, points = first
    validated = [p for p in points if p.val_score is not None]
    asked = {prompt_text(row["prompt"]) for row in parquet_rows(Path(lab.task.train), ("prompt",))}
    assert [p.step for p in validated] == [0, 2, 4]
    for point in validated:
        assert [i.index for i in point.items] == list(range(64))
        assert point.val_score == pytest.approx(sum(i.acc for i in point.items) / 64)
        assert {i.data_source for i in point.items} == {"echo"}
        for answer in point.sampled:
            assert answer.step == point.step and answer.prompt in asked and answer.expected
    assert [bool(p.sampled) for p in points] == [p in validated[1:] for p in points]
    assert outcome.start_score == points[0].val_score
    assert outcome.best_step in (2, 4) and outcome.best_score == max(p.val_score for p in validated[1:])


def test_checkpoints_are_complete_peft_adapters_at_save_freq_and_new_bests(lab: Lab, first: Any) -> None:
    outcome, _ = first
    assert outcome.best_step in {c.step for c in outcome.checkpoints} and 4 in {
        c.step for c in outcome.checkpoints
    }
    for checkpoint in outcome.checkpoints:
        files = {p.name for p in Path(checkpoint.path).iterdir()}
        assert files == {"adapter_model.safetensors", "adapter_config.json", "manifest.json"}


def test_a_warm_child_takes_the_validation_of_its_checkpoint_over_and_trains_the_same(
    lab: Lab, first: Any, trained: str
) -> None:
    parent, parent_points = first
    cut = next(c for c in parent.checkpoints if c.step == 4)
    measured, measured_points = lab.run(lab.spec(n_steps=1, adapter=cut.path, seed=2))
    # It begins where its parent was.
    assert [i.response for i in measured_points[0].items] == [i.response for i in parent_points[-1].items]
    at = ResumeFrom(node=1, step=4)
    known = KnownStart(source=at, score=cut.val_score, on_cpu=True)
    child = dataclasses.replace(lab.spec(n_steps=1, adapter=cut.path, seed=2), known_start=known)
    outcome, points = lab.run(child)
    assert isinstance(outcome, PhaseResult) and outcome.warm, outcome
    assert points[0].val_score == outcome.start_score == measured.start_score == parent_points[-1].val_score
    assert (points[0].taken_from, outcome.start_from, measured.start_from) == (at, at, None)
    assert (points[0].step, points[0].items, points[0].metrics) == (0, (), {})  # nothing was generated
    assert_same_metrics(measured_points[1:], points[1:])
    # On the CPU it has to be asked for, and a policy that is not served ends the phase as ever.
    own = dataclasses.replace(child, known_start=dataclasses.replace(known, on_cpu=False))
    _, points = lab.run(own)
    assert len(points[0].items) == 64 and points[0].taken_from is None
    assert isinstance(lab.run(lab.spec(n_steps=1, adapter=trained))[0], PhaseResult)
    unserved, points = lab.run(child, skip=("weights",))
    assert isinstance(unserved, PhaseFailure) and unserved.failure_class == "mismatch", unserved
    assert "nats a token" in unserved.cause and points == []


def test_the_weight_sockets_of_another_clusters_job_are_left_alone(lab: Lab, first: Any) -> None:
    """Ray numbers jobs per cluster, so another cluster on this machine has one of the same number."""
    paths = [
        Path(f"/tmp/rl-colocate-zmq-{job:02d}000000-replica-0-rank-0.sock")  # what VeRL calls them
        for job in range(1, 10)
    ]
    made = [path for path in paths if not path.exists()]
    for path in made:
        path.touch()
    try:
        _, points = lab.run(lab.spec(n_steps=1))
        assert len(points) == 2
        assert [path for path in made if not path.exists()] == []
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def test_peft_loads_a_checkpoint_to_the_logits_of_the_trained_policy(lab: Lab) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    outcome, _ = lab.run(lab.spec(n_steps=3, seed=3))
    assert isinstance(outcome, PhaseResult)
    path = {c.step: c.path for c in outcome.checkpoints}[3]
    tokenizer = AutoTokenizer.from_pretrained(lab.settings.model_path)
    ids = tuple(tokenizer("say 7", add_special_tokens=False)["input_ids"])
    base = AutoModelForCausalLM.from_pretrained(lab.settings.model_path, dtype=torch.float32)
    with torch.no_grad():
        untrained = base(torch.tensor([ids])).logits[0]
        loaded = PeftModel.from_pretrained(base, path)(torch.tensor([ids])).logits[0]
    live = torch.tensor(live_logits(lab, ids))
    assert (loaded - live).abs().max() < 1e-4
    assert (loaded - untrained).abs().max() > 1e-2  # the adapter does something


@pytest.mark.long
def test_a_checkpoint_is_served_by_a_vllm_that_was_started_with_it(
    lab: Lab, first: Any, tmp_path: Path
) -> None:
    path = first[0].checkpoints[-1].path
    scored = lab.engine.evaluate(path, lab.task.val, 4)
    question = first_prompt(lab.task.val)
    body = {"model": "candidate", "messages": question, "max_tokens": 4, "temperature": 0}
    options = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"candidate={path}"]
    options += ["--max-model-len", "64", "--dtype", "float32", "--enforce-eager"]
    model = str(lab.task.model_path)
    server = ModelServer(model, "base", options, str(tmp_path / "server.log"), on_cpu=True, key=SERVER_KEY)
    try:
        address = server.wait(900)
        for path in ("/v1/models", "/health", "/invocations"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(address + path, timeout=PATIENCE_S)
        answer = json.loads(post(address, "/v1/chat/completions", body))["choices"][0]["message"]["content"]
    finally:
        server.close()
    assert answer.strip() == scored[0].response.strip()


SWAPS: dict[tuple[str, ...], dict[str, Any]] = {
    ("optimizer",): {
        f"{ACTOR}.optim.lr": 1e-4,
        f"{ACTOR}.optim.weight_decay": 0.3,
        f"{ACTOR}.optim.betas": (0.8, 0.9),
        f"{ACTOR}.optim.clip_grad": 0.25,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ACTOR}.optim.min_lr_ratio": 0.2,
    },
    ("loss",): {
        f"{ACTOR}.kl_loss_coef": 0.02,
        f"{ACTOR}.kl_loss_type": "kl",
        f"{ACTOR}.clip_ratio_low": 0.1,
        f"{ACTOR}.clip_ratio_high": 0.4,
        f"{ACTOR}.entropy_coeff": 0.001,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    },
    ("micro_batch", "batch", "kl_in_reward"): {
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 16,
        "data.train_batch_size": 16,
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.kl_coef": 0.05,
    },
    ("sampling",): {
        f"{ROLLOUT}.temperature": 0.7,
        f"{ROLLOUT}.top_p": 0.9,
        f"{ROLLOUT}.n": 8,
        "data.max_response_length": 7,
    },
}
"""Swaps that are left out together -> what they would have changed; a cause has room for that many keys."""


def test_the_read_back_sees_a_swap_that_did_not_happen(lab: Lab) -> None:
    # A controller must exist before it can be left stale.
    stale = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01}
    assert isinstance(lab.run(lab.spec(n_steps=1, **keyed(stale)))[0], PhaseResult)
    for skipped, changes in SWAPS.items():
        outcome, _ = lab.run(lab.spec(n_steps=1, **keyed(changes)), skip=skipped)
        assert isinstance(outcome, PhaseFailure) and outcome.failure_class == "mismatch", outcome
        for key, value in changes.items():
            # Whether there is a controller is not left out.
            assert value is True or f"{key} asked {value!r}" in outcome.cause, outcome.cause
    every = {key: value for changes in SWAPS.values() for key, value in changes.items()}
    healthy, _ = lab.run(lab.spec(n_steps=1, **keyed(every)))
    assert isinstance(healthy, PhaseResult) and healthy.warm, healthy


@pytest.fixture(scope="module")
def trained(lab: Lab) -> str:
    """Adapter of a policy far from the base model's."""
    outcome, _ = lab.run(lab.spec(n_steps=12, **{LR: 2e-2}))
    assert isinstance(outcome, PhaseResult), outcome
    return outcome.checkpoints[-1].path


@pytest.mark.parametrize(
    ("skipped", "named"),
    [
        (("adapter",), "adapter asked"),
        (("weights",), "nats a token of a fixed text"),
        (("weights", "canary"), "rollouts came from another policy"),
    ],
)
def test_the_read_back_sees_a_policy_that_was_not_exchanged(
    lab: Lab, trained: str, skipped: tuple[str, ...], named: str
) -> None:
    assert isinstance(lab.run(lab.spec(n_steps=1, adapter=trained))[0], PhaseResult)
    outcome, _ = lab.run(lab.spec(n_steps=2, seed=5), skip=skipped)
    assert isinstance(outcome, PhaseFailure) and outcome.failure_class == "mismatch", outcome
    assert named in outcome.cause


def test_a_warm_phase_with_a_raised_cap_generates_past_the_old_one(lab: Lab) -> None:
    hot = {TEMPERATURE: 2.0}  # rambles, so that answers reach any cap
    _, short = lab.run(lab.spec(n_steps=1, **hot, **{CAP: 4}))
    outcome, longer = lab.run(lab.spec(n_steps=1, **hot, **{CAP: 14}))
    assert outcome.warm
    assert short[-1].metrics["response_length/max"] == 4
    assert 4 < longer[-1].metrics["response_length/max"] <= 14


def test_warm_phases_start_although_the_base_model_cannot_be_read(lab: Lab, first: Any) -> None:
    model = Path(lab.settings.model_path)
    hidden = model.with_name("hidden")
    model.rename(hidden)
    try:
        fresh, _ = lab.run(lab.spec(n_steps=1))
        resumed, _ = lab.run(lab.spec(n_steps=1, adapter=first[0].checkpoints[-1].path))
    finally:
        hidden.rename(model)
    assert isinstance(fresh, PhaseResult) and fresh.warm
    assert isinstance(resumed, PhaseResult) and resumed.warm


def test_a_configuration_verl_refuses_fails_before_anything_changes(lab: Lab) -> None:
    for name, value in (("optim.learning_rate", 1e-3), ("ppo_mini_batch_size", 16)):
        outcome, points = lab.run(lab.spec(n_steps=1, **keyed({f"{ACTOR}.{name}": value})))
        assert isinstance(outcome, PhaseFailure) and outcome.failure_class == "config"
        assert name.removeprefix("optim.") in outcome.cause and not points
    after, _ = lab.run(lab.spec(n_steps=1))
    assert isinstance(after, PhaseResult) and after.warm


@pytest.mark.long
def test_a_lost_host_is_infrastructure_and_a_cold_repeat_gives_the_same_numbers(lab: Lab, first: Any) -> None:
    from llmzero_ray.errors import EngineLostError

    def kill(point: MetricPoint) -> None:
        if point.step == 1:
            os.kill(lab.engine._driver.pid, signal.SIGKILL)

    with pytest.raises(EngineLostError, match="driver process ended"):
        lab.run(lab.spec(n_steps=50), each=kill)
    known = KnownStart(source=ResumeFrom(node=1, step=0), score=0.0, on_cpu=True)
    repeat = dataclasses.replace(lab.spec(n_steps=4), test_freq=2, save_freq=4, known_start=known)
    outcome, points = lab.run(repeat)
    assert isinstance(outcome, PhaseResult) and not outcome.warm
    assert_same_metrics(first[1], points)
    # An engine's first phase validates before its first step, whatever is known.
    assert (points[0].taken_from, outcome.start_from) == (None, None)


@pytest.mark.long
def test_a_cold_key_forces_a_restart_and_is_named(lab: Lab) -> None:
    key = f"{ROLLOUT}.max_num_seqs"
    outcome, _ = lab.run(lab.spec(n_steps=1, **{key.replace(".", "__"): 64}))
    assert isinstance(outcome, PhaseResult)
    assert (outcome.warm, outcome.cold_reason) == (False, f"{key} changed")


def keyed(changes: dict[str, Any]) -> dict[str, Any]:
    """VeRL keys as keyword arguments of `Lab.spec`."""
    return {key.replace(".", "__"): value for key, value in changes.items()}


def post(address: str, path: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(
        f"{address}{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {SERVER_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        content: bytes = reply.read()
    return content


def first_prompt(parquet: str) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(parquet).to_pylist()[0]["prompt"]
