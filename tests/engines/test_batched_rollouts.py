"""A batch in a few calls: which batches, what each request carries, what is put, and the status of every
prompt when one of its answers fails. Without VeRL's processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.cpu.batched_rollouts import (
    ROW_KEY,
    TOKENS_KEY,
    BatchedRollouts,
    Trajectory,
    prompt_statuses,
    refusal,
    rows_of,
    shares,
    text_tokens,
    validated,
)
from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.errors import ConfigError
from tests.tasks.builders import row, write_rows
from tests.waiting import PATIENCE_S

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

CAPS = {"train_max_tokens": 5, "eval_max_tokens": 7}


def verl_config(**changes: Any) -> Any:
    """The part of VeRL's configuration that is read, with dotted keys changed."""
    from omegaconf import OmegaConf

    rollout = {
        "n": 2,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": -1,
        "calculate_log_probs": True,
        "prompt_length": 4,
        "response_length": 6,
        "val_kwargs": {"n": 1, "temperature": 0, "top_p": 1.0, "top_k": -1},
        "agent": {"default_agent_loop": "single_turn_agent", "agent_loop_config_path": None},
        "trace": {"backend": None},
        "disaggregation": {"enabled": False},
    }
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": rollout, "model": {"mtp": {"enable": False}}},
            "distillation": {"enabled": False},
            "reward": {
                "reward_model": {"enable": False},
                "reward_manager": {"source": "register", "name": "naive"},
                "custom_reward_function": {"path": "pkg://llmzero_ray.tasks.rewards.marked_answer"},
            },
        }
    )
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    return config


def batch_of(n: int, **columns: list[Any]) -> Any:
    """A batch of `n` prompts as VeRL's trainer makes one."""
    from tensordict import NonTensorData, NonTensorStack, TensorDict

    given = {
        "uid": [f"u{i}" for i in range(n)],
        "raw_prompt": [[{"role": "user", "content": str(i)}] for i in range(n)],
        "index": list(range(n)),
        "data_source": ["echo"] * n,
        "reward_model": [{"ground_truth": str(i)} for i in range(n)],
        "extra_info": [{"index": i, "seen": []} for i in range(n)],
        "ability": ["none"] * n,
        **columns,
    }
    batch = TensorDict({name: NonTensorStack(*values) for name, values in given.items()}, batch_size=[n])
    batch["dummy_tensor"] = torch.zeros(n, 1)
    batch["global_steps"] = NonTensorData(3)
    return batch


class Builder:
    """VeRL's token builder: prompt i is three tokens."""

    def build_initial_tokens(self, messages: list[Mapping[str, str]]) -> list[int]:
        number = int(messages[0]["content"])
        if number < 0:
            raise ValueError("no such prompt")
        return [10 + number, 1, 2]

    def merge_assistant_tokens(self, prompt: list[int], answer: list[int]) -> Any:
        from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

        return ContinuousTokenBuilder.merge_assistant_tokens(self, prompt, answer)  # type: ignore[arg-type]

    def align_response_metadata(self, *args: Any, **kwargs: Any) -> Any:
        from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

        return ContinuousTokenBuilder.align_response_metadata(self, *args, **kwargs)  # type: ignore[arg-type]


class Tokenizer:
    all_special_ids = (51,)

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]


@dataclass
class Parts:
    """What the rollouts call, recorded."""

    requests: list[tuple[list[list[int]], list[list[int]], dict[str, Any]]] = field(default_factory=list)
    puts: list[tuple[list[str], str, list[dict[str, Any]], Any]] = field(default_factory=list)
    fail: set[tuple[int, int]] = field(default_factory=set)
    """(first token of the prompt, session) of the answers that fail."""
    broken: bool = False
    """The server is gone."""
    ended: threading.Event = field(default_factory=threading.Event)

    def ask(self, prompts: Any, seeds: Any, sampling: Any) -> Any:
        self.requests.append((prompts, seeds, dict(sampling)))
        return partial(self.answers, prompts, seeds)

    def answers(self, prompts: Any, seeds: Any) -> Any:
        if self.broken:
            raise RuntimeError("ActorDiedError")
        return [
            [self.answer(prompt, session) for session in range(len(own))]
            for prompt, own in zip(prompts, seeds, strict=True)
        ]

    def answer(self, prompt: list[int], session: int) -> dict[str, Any]:
        if (prompt[0], session) in self.fail:
            return {"error": "ValueError: no room"}
        tokens = [prompt[0], 50 + session]
        return {"token_ids": tokens, "log_probs": [-0.5, -0.25], "extra_fields": {"global_steps": 2}}

    def score(self, samples: Sequence[Trajectory], texts: Sequence[str]) -> None:
        for sample, text in zip(samples, texts, strict=True):
            sample.score = float(text.split()[-1]) - 50
            sample.extra_fields["reward_extra_info"] = {"acc": sample.score}

    def put(self, keys: Any, partition: Any, tags: Any, fields: Any) -> None:
        self.puts.append((keys, partition, tags, fields))
        if fields is None:
            self.ended.set()

    def rollouts(self, n_servers: int = 1, score: Any = None, **changes: Any) -> BatchedRollouts:
        made = BatchedRollouts(Tokenizer(), Builder(), [self.ask] * n_servers, score or self.score, self.put)
        made.begin_phase(verl_config(**changes), 9, **CAPS)
        return made

    def run(self, rollouts: BatchedRollouts, batch: Any) -> dict[str, str]:
        """The status of each prompt once the batch has ended."""
        rollouts.start(rows_of(batch))
        assert self.ended.wait(PATIENCE_S)
        keys, _, tags, _ = self.puts[-1]
        return dict(zip(keys, (tag["status"] for tag in tags), strict=True))


@pytest.fixture
def parts() -> Parts:
    return Parts()


# --- requests and rows ------------------------------------------------------------------------------------


def test_every_request_has_the_seed_and_cap_that_an_agent_loop_would_give_it(parts: Parts) -> None:
    parts.run(parts.rollouts(), batch_of(2, index=[7, 4]))
    ((prompts, seeds, sampling),) = parts.requests
    assert prompts == [[10, 1, 2], [11, 1, 2]]
    assert seeds == [[derive_seed(9, 3, index, session) for session in range(2)] for index in (7, 4)]
    assert (sampling["max_tokens"], sampling["temperature"], sampling["top_p"]) == (5, 0.8, 0.9)
    assert sampling["repetition_penalty"] == 1.0 and sampling["logprobs"] is True


def test_a_validation_has_its_own_sampling_and_partition(parts: Parts) -> None:
    from tensordict import NonTensorData

    batch = batch_of(2)
    batch["validate"] = NonTensorData(True)
    parts.run(parts.rollouts(), batch)
    (_, seeds, sampling) = parts.requests[0]
    assert [len(own) for own in seeds] == [1, 1]
    assert (sampling["max_tokens"], sampling["temperature"], sampling["top_p"]) == (7, 0, 1.0)
    assert {partition for _, partition, _, _ in parts.puts} == {"val"}


def test_trajectories_carry_what_verl_reads_and_nothing_else(parts: Parts) -> None:
    parts.run(parts.rollouts(), batch_of(2))
    (keys, partition, tags, fields), (uids, _, _, none) = parts.puts
    assert keys == ["u0_0_0", "u0_1_0", "u1_0_0", "u1_1_0"] and partition == "train"
    assert uids == ["u0", "u1"] and none is None
    assert set(fields.keys()) == {
        *("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids"),
        *("rm_scores", "rollout_log_probs", "num_turns", "extra_fields"),
        *("uid", "raw_prompt", "reward_model", "data_source"),
    }
    assert fields["input_ids"].tolist()[3] == [11, 1, 2, 11, 51]
    assert fields["rm_scores"].tolist()[3] == [0.0, 1.0]
    assert fields["rollout_log_probs"].tolist()[0] == [-0.5, -0.25]
    assert tags[3] == {
        "status": "success",
        "prompt_len": 3,
        "response_len": 2,
        "seq_len": 5,
        "global_steps": 3,
        "min_global_steps": 2,
        "max_global_steps": 2,
    }
    assert fields["extra_fields"][2]["reward_extra_info"][ROW_KEY] == 1


def test_rows_whose_truths_are_objects_are_rolled_out(parts: Parts) -> None:
    truths = [{"ground_truth": {"target": [str(i)], "number": i}} for i in range(2)]
    parts.run(parts.rollouts(), batch_of(2, reward_model=truths))
    (_, _, tags, fields), _ = parts.puts
    assert {tag["status"] for tag in tags} == {"success"}
    assert [fields["reward_model"][i] for i in (0, 2)] == truths


LONG = "q " * 40


@pytest.mark.parametrize(
    ("indices", "longest", "places"),
    [
        pytest.param([0, 1, 2, 3], None, [0, 1, 2, 3], id="their own, in order"),
        pytest.param([0, 0, 0, 0], None, [0, 1, 2, 3], id="all the same"),
        pytest.param([None, None, None, None], None, [0, 1, 2, 3], id="none"),
        pytest.param([0, 1, 0, 1], None, [0, 1, 2, 3], id="of joined files"),
        pytest.param(["a", "b", "c", "d"], None, [0, 1, 2, 3], id="texts"),
        pytest.param([0, 1, 2, 3], 8, [0, 2, 3], id="a row is left out for its length"),
    ],
)
def test_training_rows_are_numbered_by_their_places_in_the_file(
    indices: list[Any], longest: int | None, places: list[int], tmp_path: Path
) -> None:
    from omegaconf import OmegaConf
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    from llmzero_ray.engines.verl.verl_hooks import with_numbered_rows

    contents = ["q0", f"q1 {LONG}", "q2", "q3"]
    rows = [row(i, contents[i], extra_info={"index": indices[i]}) for i in range(4)]
    write_rows(tmp_path / "train.parquet", rows)
    config = OmegaConf.create(
        {
            "filter_overlong_prompts": longest is not None,
            "filter_overlong_prompts_workers": None,
            "max_prompt_length": longest or 0,
            "cache_dir": str(tmp_path / "cache"),
        }
    )
    data = RLHFDataset(str(tmp_path / "train.parquet"), Words(), config)

    def loader() -> Any:
        order = torch.Generator().manual_seed(3)
        return StatefulDataLoader(
            data, 1, collate_fn=collate_fn, sampler=RandomSampler(data, generator=order)
        )

    found = {_question(batch): int(batch["index"][0]) for batch in with_numbered_rows(loader())}
    assert found == {f"q{place}": place for place in places}
    assert list(found) == [_question(batch) for batch in loader()], "in VeRL's order"


def _question(batch: Any) -> str:
    return str(batch["raw_prompt"][0][0]["content"][:2])


class Words:
    """A tokenizer, one token a word."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        return [len(word) for word in messages[0]["content"].split()]


def test_answers_are_cut_to_the_response_length(parts: Parts) -> None:
    parts.run(parts.rollouts(actor_rollout_ref__rollout__response_length=1), batch_of(1))
    fields = parts.puts[0][3]
    assert fields["responses"].tolist() == [[10], [10]] and fields["rm_scores"].shape == (2, 1)


def test_prompts_are_spread_over_all_servers_in_order(parts: Parts) -> None:
    statuses = parts.run(parts.rollouts(n_servers=2), batch_of(5))
    assert [len(prompts) for prompts, _, _ in parts.requests] == [3, 2]
    assert parts.puts[0][0][-1] == "u4_1_0" and set(statuses.values()) == {"finished"}
    assert shares([], 3) == [] and shares([4], 3) == [[4]]


# --- failures ---------------------------------------------------------------------------------------------


def test_one_failed_answer_fails_its_prompt_alone(parts: Parts) -> None:
    parts.fail = {(11, 1)}
    statuses = parts.run(parts.rollouts(), batch_of(3))
    assert statuses == {"u0": "finished", "u1": "failure", "u2": "finished"}
    assert parts.puts[0][0] == ["u0_0_0", "u0_1_0", "u1_0_0", "u2_0_0", "u2_1_0"]


def test_a_prompt_that_cannot_be_made_into_tokens_fails_alone(parts: Parts) -> None:
    prompts = [[{"role": "user", "content": content}] for content in ("0", "-1")]
    assert parts.run(parts.rollouts(), batch_of(2, raw_prompt=prompts)) == {"u0": "finished", "u1": "failure"}


@pytest.mark.parametrize("validates", [False, True])
def test_a_prompt_that_is_too_long_fails_the_phase_and_is_not_cut(parts: Parts, validates: bool) -> None:
    rollouts = parts.rollouts(actor_rollout_ref__rollout__prompt_length=2)

    def trained() -> None:
        rollouts.start(rows_of(batch_of(1)))
        for _ in range(int(PATIENCE_S)):
            rollouts.wait(0.01)

    run = partial(rollouts.validate, validation_rows(1)) if validates else trained
    with pytest.raises(ConfigError, match=r"row 0 of its file has 3 tokens; engine\.max_prompt_length is 2"):
        run()
    rollouts.wait(0.01)  # of the phase after it
    assert parts.requests == []


def test_a_reward_that_raises_for_one_sample_fails_its_prompt_alone(parts: Parts) -> None:
    from llmzero_ray.engines.verl.reward_calls import score_here

    def reward(*, solution_str: str, **_: Any) -> dict[str, float]:
        if solution_str == "11 50":
            raise ZeroDivisionError("of its own")
        return {"score": 1.0}

    rollouts = parts.rollouts(score=partial(score_here, reward))
    assert parts.run(rollouts, batch_of(2)) == {"u0": "finished", "u1": "failure"}


def test_a_dead_server_fails_every_prompt_and_puts_no_trajectory(parts: Parts) -> None:
    parts.broken = True
    assert parts.run(parts.rollouts(), batch_of(2)) == {"u0": "failure", "u1": "failure"}
    assert len(parts.puts) == 1


def test_an_error_of_the_whole_batch_fails_every_prompt(parts: Parts) -> None:
    def broken(_samples: Any, _texts: Any) -> None:
        raise MemoryError

    assert set(parts.run(parts.rollouts(score=broken), batch_of(2)).values()) == {"failure"}


def test_a_prompt_is_finished_only_with_all_its_samples() -> None:
    rows = [{"uid": "a"}, {"uid": "b"}]
    samples = [
        Trajectory(row=rows[0], session=0),
        Trajectory(row=rows[0], session=1),
        Trajectory(row=rows[1], session=0),
    ]
    assert prompt_statuses(rows, samples, 2) == ["finished", "failure"]


def test_starting_a_batch_does_not_wait_for_its_rewards(parts: Parts) -> None:
    release = threading.Event()

    def slow(samples: Any, texts: Any) -> None:
        assert release.wait(PATIENCE_S)
        parts.score(samples, texts)

    rollouts = parts.rollouts(score=slow)
    rollouts.start(rows_of(batch_of(1)))
    assert not parts.ended.is_set()
    release.set()
    while not parts.ended.is_set():
        rollouts.wait(0.01)


def test_without_a_batch_a_wait_is_as_long_as_asked(parts: Parts) -> None:
    began = time.monotonic()
    parts.rollouts().wait(0.02)
    assert time.monotonic() - began >= 0.02


# --- validation -------------------------------------------------------------------------------------------


def validation_rows(n: int) -> list[dict[str, Any]]:
    return [{**row, "validate": True} for row in rows_of(batch_of(n))]


def test_a_validation_without_the_queue_asks_what_one_with_it_asks(parts: Parts) -> None:
    rollouts = parts.rollouts()
    rollouts.start(validation_rows(3))
    assert parts.ended.wait(PATIENCE_S)
    put = len(parts.puts)
    samples = rollouts.validate(validation_rows(3))
    assert parts.requests[0] == parts.requests[1] and len(parts.puts) == put
    assert [sample.text for sample in samples] == ["10 50", "11 50", "12 50"]


def test_the_columns_of_a_validation_are_those_of_its_scored_answers(parts: Parts) -> None:
    def score(samples: Sequence[Trajectory], _texts: Any) -> None:
        for place, sample in enumerate(samples):
            sample.score = 0.1
            sample.extra_fields["reward_extra_info"] = {"acc": 1.0} | ({"fmt_ok": 1} if place else {})

    parts.fail = {(11, 0)}
    found = validated(parts.rollouts(score=score).validate(validation_rows(3)))
    assert (found.uids, found.data_sources, found.turns) == (["u0", "u2"], ["echo"] * 2, [2, 2])
    assert found.infos == {
        "reward": [pytest.approx(0.1, abs=1e-7)] * 2,
        "acc": [1.0, 1.0],
        "fmt_ok": [None, 1],
        ROW_KEY: [0, 2],
        TOKENS_KEY: [2, 2],
    }
    assert found.infos["reward"][0] == torch.tensor(0.1).item()


@pytest.mark.parametrize(
    ("ids", "mask", "tokens"),
    [
        ([7, 8, 9], [1, 1, 1], 3),  # cut off
        ([7, 8, 51], [1, 1, 1], 2),  # ended
        ([7, 51, 9], [1, 1, 1], 3),
        ([7, 51, 9, 9], [1, 1, 0, 0], 1),  # VeRL's token builder went on
        ([51], [1], 0),
        ([], [], 0),
    ],
)
def test_an_answer_has_the_tokens_that_were_generated_but_the_last(
    ids: list[int], mask: list[int], tokens: int
) -> None:
    assert text_tokens(ids, mask, Tokenizer.all_special_ids) == tokens


def test_an_error_of_a_whole_validation_is_raised(parts: Parts) -> None:
    def broken(_samples: Any, _texts: Any) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        parts.rollouts(score=broken).validate(validation_rows(1))


# --- which batches ----------------------------------------------------------------------------------------


def test_a_single_turn_batch_needs_no_agent_loop() -> None:
    assert refusal(verl_config(), rows_of(batch_of(2))) is None
    assert refusal(verl_config(), rows_of(batch_of(2, agent_name=["single_turn_agent"] * 2))) is None


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("actor_rollout_ref.rollout.agent.default_agent_loop", "tool_agent", "'tool_agent'"),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "loops.yaml", "agent_loop_config_path"),
        ("actor_rollout_ref.rollout.full_determinism", True, "full_determinism"),
        ("actor_rollout_ref.rollout.enable_rollout_routing_replay", True, "routing_replay"),
        ("actor_rollout_ref.rollout.disaggregation.enabled", True, "disaggregation"),
        ("actor_rollout_ref.rollout.trace.backend", "mlflow", "trace"),
        ("actor_rollout_ref.model.mtp.enable", True, "mtp"),
        ("distillation.enabled", True, "distillation"),
        ("reward.reward_model.enable", True, "reward_model"),
        ("reward.reward_manager.name", "dapo", "reward_manager"),
        ("reward.custom_reward_function.path", None, "custom_reward_function"),
    ],
)
def test_what_a_configuration_needs_of_the_agent_loop_is_named(key: str, value: Any, named: str) -> None:
    assert named in (refusal(verl_config(**{key.replace(".", "__"): value}), rows_of(batch_of(1))) or "")


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"agent_name": ["single_turn_agent", "tool_agent"]}, "'tool_agent'"),
        ({"__rollout_n__": [1, 2]}, "__rollout_n__"),
        ({"__do_sample__": [True, False]}, "__do_sample__"),
        ({"priority": [0, 1]}, "priority"),
    ],
)
def test_what_a_batch_needs_of_the_agent_loop_is_named(columns: dict[str, list[Any]], named: str) -> None:
    assert named in (refusal(verl_config(), rows_of(batch_of(2, **columns))) or "")


def test_a_model_with_images_needs_the_agent_loop() -> None:
    assert "images" in (refusal(verl_config(), rows_of(batch_of(1)), has_processor=True) or "")


def test_rows_hold_what_was_put_in() -> None:
    rows = rows_of(batch_of(2))
    assert [row["uid"] for row in rows] == ["u0", "u1"]
    assert rows[1]["raw_prompt"] == [{"role": "user", "content": "1"}] and rows[1]["global_steps"] == 3
    assert rows[0]["dummy_tensor"].shape == (1,)
