"""Rollouts of a complete batch in a few calls: one to each vLLM server, one for the rewards, two to the
queue.

For every sample, VeRL's agent loop makes a request, a reward call and several queue calls, which take most of
a small model's step. If its single-turn loop would do nothing else, this module does the same for the whole
batch at once, on a thread of the process that embeds VeRL. Requests, seeds and rewards are the same, and so
are the rows in the queue, except for columns that are never read. Validation answers skip the queue.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.errors import ConfigError

logger = logging.getLogger(__name__)

ROW_KEY = "llmzero_row"
"""Key in the reward's extra information that carries the row's place in its file to the validation."""
TOKENS_KEY = "llmzero_tokens"
"""Key in the reward's extra information that carries the result of `text_tokens`."""

READ_FIELDS = ("uid", "raw_prompt", "reward_model", "data_source")
"""Data columns that the trainer reads back from the queue: `raw_prompt` for the sample answers in reports,
the others for VeRL."""

_SINGLE_TURN = "single_turn_agent"
_OWN_PATH_COLUMNS = ("__rollout_n__", "__do_sample__", "priority")
"""Columns with which VeRL changes how a single request is handled."""
_LONGEST_WAIT_S = 1.0
_THREADS = 4
"""Maximum batches in flight. A synchronous trainer has one."""

AskServer: TypeAlias = Callable[[list[list[int]], list[list[int]], Mapping[str, Any]], Callable[[], Any]]
"""Callback that sends prompts (token ids), their seeds and the sampling parameters to a vLLM server. It
returns a callback that waits for the answers and returns them like `RecordingServer.generate_many`."""
Put: TypeAlias = Callable[[list[str], str, list[dict[str, Any]], Any], None]
"""Callback that puts keys into a partition of the queue, with one tag per key and a TensorDict of columns (or
None)."""
_TURNS = 2
"""Number of turns of a prompt and its answer, as VeRL counts them."""


@dataclass
class Trajectory:
    """One answer to a prompt, before it is put into the queue."""

    row: Mapping[str, Any]
    """Columns of the prompt's row."""
    session: int
    """Index of the answer among the prompt's answers, from 0."""
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    """1 if vLLM generated this token, 0 if VeRL's token builder added it."""
    log_probs: list[float] | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """The response without special tokens."""
    score: float | None = None
    error: str | None = None
    """Reason why there is no score. None if there is a score, or not yet."""

    @property
    def key(self) -> str:
        """VeRL's name of the trajectory in the queue."""
        return f"{self.row['uid']}_{self.session}_0"

    @property
    def tag(self) -> dict[str, Any]:
        """Values that VeRL's replay buffer and metrics read without fetching columns. Lengths in tokens."""
        of_prompt, of_response = len(self.prompt_ids), len(self.response_ids)
        return {
            "status": "success",
            "prompt_len": of_prompt,
            "response_len": of_response,
            "seq_len": of_prompt + of_response,
            "global_steps": self.row["global_steps"],
            "min_global_steps": self.extra_fields.get("min_global_steps"),
            "max_global_steps": self.extra_fields.get("max_global_steps"),
        }


class BatchedRollouts:
    """Answers batches of prompts on a thread, and puts the results into the queue."""

    def __init__(
        self,
        tokenizer: Any,
        token_builder: Any,
        servers: Sequence[AskServer],
        score: Callable[[Sequence[Trajectory], Sequence[str]], None],
        put: Put,
        *,
        has_processor: bool = False,
    ) -> None:
        """`token_builder` is VeRL's continuous-token builder. `score(samples, texts)` sets a score or an
        error on each sample, `put` writes to the queue. `has_processor` is set if the model accepts
        images."""
        self._tokenizer, self._builder, self._servers = tokenizer, token_builder, list(servers)
        self._score_samples, self._put, self._has_processor = score, put, has_processor
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="rollouts")
        self._running: set[concurrent.futures.Future[None]] = set()
        self._config: Any = None
        self._seed = 0
        self._max_tokens: dict[bool, int] = {}

    def begin_phase(self, config: Any, seed: int, train_max_tokens: int, eval_max_tokens: int) -> None:
        """Use `config` (VeRL's complete configuration) and `seed` from now on. Caps are in tokens."""
        self._config, self._seed = config, seed
        self._max_tokens = {False: train_max_tokens, True: eval_max_tokens}

    def refusal(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Reason why VeRL's agent loop must process these prompts, or None if it need not."""
        return refusal(self._config, rows, has_processor=self._has_processor)

    def start(self, rows: list[dict[str, Any]]) -> None:
        """Start answering and scoring a batch of prompts, one dictionary of columns each, without waiting.

        At the end, the queue has every scored sample and the status of every prompt: `finished`, or `failure`
        if one of its samples has no score.

        Raises:
            ConfigError: a batch that has ended has a prompt that is too long.
        """
        self._drop_ended()
        self._running.add(self._threads.submit(self._run, rows, bool(rows[0].get("validate", False))))

    def validate(self, rows: list[dict[str, Any]]) -> list[Trajectory]:
        """Answers to a validation's prompts, in order, each with a score or an error. Blocks until they are
        complete, and puts nothing into the queue.

        Raises:
            ConfigError: a prompt is too long.
        """
        future = self._threads.submit(self._scored, rows, True)
        while not future.done():  # short waits, so that a signal can interrupt them
            concurrent.futures.wait([future], timeout=_LONGEST_WAIT_S)
        return future.result()

    def wait(self, idle_s: float) -> None:
        """Wait until a batch in flight has ended, at most a second, or `idle_s` seconds if there is none.

        Raises:
            ConfigError: a batch that has ended has a prompt that is too long.
        """
        self._drop_ended()
        if self._running:
            concurrent.futures.wait(
                self._running, timeout=_LONGEST_WAIT_S, return_when=concurrent.futures.FIRST_COMPLETED
            )
        else:
            time.sleep(idle_s)

    def _drop_ended(self) -> None:
        ended = {future for future in self._running if future.done()}
        self._running -= ended
        for future in ended:
            future.result()

    def _run(self, rows: list[dict[str, Any]], validate: bool) -> None:
        partition = "val" if validate else "train"
        try:
            statuses = self._answer(rows, validate, partition)
        except ConfigError:
            raise  # `wait` raises it, which ends the phase
        except Exception:
            logger.exception("a batch of %d prompts failed as a whole", len(rows))
            statuses = ["failure"] * len(rows)
        try:
            # Put last: once a prompt has its status, the replay buffer takes the trajectories that it finds.
            self._put(
                [row["uid"] for row in rows], partition, [{"status": status} for status in statuses], None
            )
        except Exception:
            logger.exception("the status of %d prompts could not be put into the queue", len(rows))

    def _answer(self, rows: list[dict[str, Any]], validate: bool, partition: str) -> list[str]:
        samples = self._scored(rows, validate)
        if scored := [sample for sample in samples if sample.error is None]:
            tags = [sample.tag for sample in scored]
            self._put([sample.key for sample in scored], partition, tags, columns_of(scored))
        return prompt_statuses(rows, samples, len(samples) // len(rows))

    def _scored(self, rows: list[dict[str, Any]], validate: bool) -> list[Trajectory]:
        rollout = self._config.actor_rollout_ref.rollout
        samples = self._generate(rows, int(rollout.val_kwargs.n if validate else rollout.n), validate)
        self._score([sample for sample in samples if sample.error is None])
        for sample in samples:
            if sample.error is not None:
                logger.error("%s has no score: %s", sample.key, sample.error)
        return samples

    def _generate(self, rows: list[dict[str, Any]], n: int, validate: bool) -> list[Trajectory]:
        """`n` samples for each row, in order."""
        rollout = self._config.actor_rollout_ref.rollout
        given = rollout.val_kwargs if validate else rollout
        sampling = {
            "temperature": given.temperature,
            "top_p": given.top_p,
            "top_k": given.top_k,
            "repetition_penalty": 1.0,  # as in VeRL's agent loop
            "logprobs": rollout.calculate_log_probs,
            "max_tokens": self._max_tokens[validate],
        }
        prompts: list[list[int]] = []
        errors: dict[int, str] = {}
        for place, row in enumerate(rows):
            try:
                prompts.append(self._tokens_of(row, int(rollout.prompt_length)))
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  of a chat template
                errors[place] = f"{type(error).__name__}: {error}"
                prompts.append([])
        places = [place for place in range(len(rows)) if place not in errors]
        seeds = {
            place: [
                derive_seed(self._seed, rows[place]["global_steps"], rows[place]["index"], session)
                for session in range(n)
            ]
            for place in places
        }
        answers = self._ask(places, prompts, seeds, sampling)
        return [
            sample
            for place, row in enumerate(rows)
            for sample in (
                self._sample(row, session, prompts[place], answer, int(rollout.response_length))
                for session, answer in enumerate(answers.get(place) or [{"error": errors.get(place)}] * n)
            )
        ]

    def _tokens_of(self, row: Mapping[str, Any], longest: int) -> list[int]:
        tokens = list(self._builder.build_initial_tokens(list(row["raw_prompt"])))
        if len(tokens) > longest:
            raise ConfigError(
                f"the prompt of row {row['index']} of its file has {len(tokens)} tokens; "
                f"engine.max_prompt_length is {longest}. Raise it, or leave out the row"
            )
        return tokens

    def _ask(
        self,
        places: list[int],
        prompts: list[list[int]],
        seeds: Mapping[int, list[int]],
        sampling: Mapping[str, Any],
    ) -> dict[int, list[dict[str, Any]]]:
        """Answers of the servers by place. The answers of a server that failed are errors."""
        parts = shares(places, len(self._servers))
        calls = [
            ask([prompts[i] for i in part], [seeds[i] for i in part], sampling)
            for ask, part in zip(self._servers, parts, strict=False)
        ]
        answers: dict[int, list[dict[str, Any]]] = {}
        for part, answers_of_part in zip(parts, calls, strict=True):
            try:
                found = answers_of_part()
            except Exception as error:
                logger.exception("a vLLM server failed to answer %d prompts", len(part))
                failed = {"error": f"the vLLM server failed: {type(error).__name__}"}
                found = [[failed] * len(seeds[i]) for i in part]
            answers |= dict(zip(part, found, strict=True))
        return answers

    def _sample(
        self,
        row: Mapping[str, Any],
        session: int,
        prompt: list[int],
        answer: Mapping[str, Any],
        longest: int,
    ) -> Trajectory:
        """Trajectory for an answer, as VeRL's single-turn agent loop would build it."""
        sample = Trajectory(row=row, session=session)
        if "error" in answer:
            sample.error = answer["error"] or "vLLM gave no answer"
            return sample
        if not answer["token_ids"]:
            sample.error = "vLLM's answer has no tokens"
            return sample
        merged = self._builder.merge_assistant_tokens(prompt, answer["token_ids"])
        log_probs = answer["log_probs"] or None
        mask, log_probs = self._builder.align_response_metadata(
            merged, [], None if log_probs is None else [], assistant_logprobs=log_probs
        )
        cut = len(merged.token_ids) - len(mask)
        sample.prompt_ids = list(merged.token_ids[:cut])
        sample.response_ids = list(merged.token_ids[cut:][:longest])
        sample.response_mask = list(mask[:longest])
        sample.log_probs = list(log_probs[:longest]) if log_probs else None
        step = answer["extra_fields"].get("global_steps")
        sample.extra_fields = {
            **answer["extra_fields"],
            "min_global_steps": step,
            "max_global_steps": step,
            "turn_scores": [],
            "tool_rewards": [],
        }
        return sample

    def _score(self, samples: list[Trajectory]) -> None:
        if not samples:
            return
        texts = self._tokenizer.batch_decode([s.response_ids for s in samples], skip_special_tokens=True)
        self._score_samples(samples, texts)
        special = frozenset(self._tokenizer.all_special_ids)
        for sample, text in zip(samples, texts, strict=True):
            sample.text = text
            info = sample.extra_fields.get("reward_extra_info")
            if info is not None:
                info[ROW_KEY] = int(sample.row["index"])
                info[TOKENS_KEY] = text_tokens(sample.response_ids, sample.response_mask, special)


def text_tokens(response_ids: Sequence[int], mask: Sequence[int], special: Collection[int]) -> int:
    """Number of tokens of an answer that vLLM generated, without a special token at its end."""
    own = [token for token, generated in zip(response_ids, mask, strict=True) if generated]
    return len(own) - bool(own and own[-1] in special)


def refusal(config: Any, rows: Sequence[Mapping[str, Any]], *, has_processor: bool = False) -> str | None:
    """Reason why VeRL's agent loop must process these prompts under this configuration, or None."""
    rollout = config.actor_rollout_ref.rollout
    agents = {row.get("agent_name", rollout.agent.default_agent_loop) for row in rows}
    others = sorted(str(name) for name in agents - {_SINGLE_TURN})
    if others:
        return f"the batch asks for the agent loop {others[0]!r}"
    for column in _OWN_PATH_COLUMNS:
        if any(column in row for row in rows):
            return f"the batch has the column {column!r}"
    causes = {
        "the model takes images": has_processor,
        "rollout.agent.agent_loop_config_path is set": rollout.agent.get("agent_loop_config_path"),
        "rollout.full_determinism is set": rollout.get("full_determinism"),
        "rollout.enable_rollout_routing_replay is set": rollout.get("enable_rollout_routing_replay"),
        "rollout.disaggregation is enabled": _enabled(rollout, "disaggregation"),
        "multi-token prediction (mtp) is enabled": _enabled(config.actor_rollout_ref.model, "mtp"),
        "rollout.trace.backend is set": (rollout.get("trace") or {}).get("backend"),
        "distillation is enabled": _enabled(config, "distillation"),
        "reward.reward_model is enabled": _enabled(config.reward, "reward_model"),
        "reward.reward_manager is not VeRL's naive one": (
            config.reward.reward_manager.source != "register" or config.reward.reward_manager.name != "naive"
        ),
        "reward.custom_reward_function is not set": not config.reward.custom_reward_function.get("path"),
    }
    return next((cause for cause, holds in causes.items() if holds), None)


def _enabled(parent: Any, name: str) -> bool:
    block = parent.get(name)
    return bool(block is not None and (block.get("enable") or block.get("enabled")))


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """A TensorDict as one dictionary per prompt: tensors split into rows, other values as stored."""
    from tensordict import NonTensorData, NonTensorStack

    rows: list[dict[str, Any]] = [{} for _ in range(len(batch))]
    for key, column in batch.items():
        if isinstance(column, NonTensorData):
            for row in rows:
                row[key] = column.data
            continue
        values = column.tolist() if isinstance(column, NonTensorStack) else column
        for row, value in zip(rows, values, strict=True):
            row[key] = value
    return rows


def shares(places: Sequence[int], n_servers: int) -> list[list[int]]:
    """`places` in order, split evenly over at most `n_servers` servers. No share is empty."""
    size = -(-len(places) // max(1, n_servers))
    return [list(places[i : i + size]) for i in range(0, len(places), size)] if places else []


def prompt_statuses(rows: Sequence[Mapping[str, Any]], samples: Sequence[Trajectory], n: int) -> list[str]:
    """VeRL's status of each prompt: `finished` if all its `n` samples have a score, otherwise `failure`."""
    scored: dict[Any, int] = {}
    for sample in samples:
        if sample.error is None:
            scored[sample.row["uid"]] = scored.get(sample.row["uid"], 0) + 1
    return ["finished" if scored.get(row["uid"]) == n else "failure" for row in rows]


def columns_of(samples: Sequence[Trajectory]) -> Any:
    """The samples as a TensorDict for VeRL, with only the columns that are read. Lengths vary by row."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    return list_of_dict_to_tensordict([_columns(sample) for sample in samples])


def _columns(sample: Trajectory) -> dict[str, Any]:
    import torch

    prompts = torch.tensor(sample.prompt_ids, dtype=torch.int64)
    responses = torch.tensor(sample.response_ids, dtype=torch.int64)
    response_mask = torch.tensor(sample.response_mask, dtype=torch.int64)
    rm_scores = torch.zeros_like(response_mask, dtype=torch.float32)
    rm_scores[-1] = sample.score
    columns = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": response_mask,
        "loss_mask": response_mask,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(len(prompts) + len(responses)),
        "rm_scores": rm_scores,
        "num_turns": 2,
        "extra_fields": sample.extra_fields,
        **{name: sample.row[name] for name in READ_FIELDS if name in sample.row},
    }
    if sample.log_probs is not None:
        columns["rollout_log_probs"] = torch.tensor(sample.log_probs, dtype=torch.float32)
    return columns


@dataclass
class ValidatedAnswers:
    """Columns of the scored answers, in order, in the form that VeRL's trainer collects."""

    data_sources: list[str] = field(default_factory=list)
    uids: list[str] = field(default_factory=list)
    infos: dict[str, list[Any]] = field(default_factory=lambda: {"reward": []})
    """Reward, and every further value of the reward function. None where it returned none."""
    turns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def validated(samples: Sequence[Trajectory]) -> ValidatedAnswers:
    """Validated answers of the samples that have a score."""
    found = ValidatedAnswers()
    scored = [sample for sample in samples if sample.error is None and sample.score is not None]
    given = [sample.extra_fields.get("reward_extra_info") or {} for sample in scored]
    names = dict.fromkeys(name for info in given for name in info)
    for sample in scored:
        found.data_sources.append(sample.row.get("data_source", "unknown"))
        found.uids.append(sample.row["uid"])
        found.infos["reward"].append(float(np.float32(sample.score)))  # rounded as in the queue
        found.turns.append(_TURNS)
        found.texts.append(sample.text)
    found.infos |= {name: [info.get(name) for info in given] for name in names if name != "reward"}
    return found
