"""VeRL's vLLM server with extensions: many requests in one call, a record of vLLM's actual requests, and a
health check of its engine.

The server is a plain class, so that it is pickled by reference; it becomes a Ray actor only where it is
started. It has its own module, because its process imports vLLM but not VeRL's trainer.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import ray
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from llmzero_ray.engines.verl import patches
from llmzero_ray.engines.verl.canary import LogProbs
from llmzero_ray.engines.verl.early_server import METHODS
from llmzero_ray.engines.verl.internals import VERL_VERSION
from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.errors import EngineError, EngineVersionError

logger = logging.getLogger(__name__)


class RecordingServer(vLLMHttpServer):
    """VeRL's vLLM server that records the engine's actual requests (the SamplingParams objects themselves).
    If it is created without arguments, `begin` initialises it."""

    _launch: asyncio.Future[None] | None = None

    def __init__(self, **kwargs: Any) -> None:
        if kwargs:
            super().__init__(**kwargs)

    def begin(self, **kwargs: Any) -> None:
        """Run VeRL's constructor with these arguments."""
        super().__init__(**kwargs)

    def _get_worker_extension_cls(self) -> str:
        return "llmzero_ray.engines.verl.weight_receiver.WeightReceiver"

    async def run_server(self, args: Any) -> None:
        """Same as VeRL's, but without an HTTP server: all requests are calls to this actor."""
        with patches.without_http_server():
            await super().run_server(args)

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """Same as VeRL's, and records later calls of `generate`. A second call waits for the first one."""
        if self._launch is None:
            self._launch = asyncio.ensure_future(self._launched(*args, **kwargs))
        await self._launch

    async def _launched(self, *args: Any, **kwargs: Any) -> None:
        await super().launch_server(*args, **kwargs)
        patches.collect_garbage_as_usual()  # the process has imported what it needs
        self.reset_record()
        engine = getattr(self, "engine", None)
        if engine is not None:
            generate = engine.generate

            def recorded(*a: Any, **kw: Any) -> Any:
                if self.lora_as_adapter and kw.get("lora_request") is None:
                    # VeRL would silently sample from the base model.
                    raise RuntimeError("vLLM has lost the adapter that it was given")
                self._record(kw["prompt"], kw["sampling_params"])
                return generate(*a, **kw)

            self._generate, engine.generate = generate, recorded

    async def generate_many(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Mapping[str, Any]
    ) -> list[list[dict[str, Any]]]:
        """Answers to each prompt, one per seed, with the live adapter if there is one.

        `prompts` are token ids; `sampling` is what VeRL's agent loop passes for every sample (`temperature`,
        `top_p`, `top_k`, `repetition_penalty`, `logprobs` as a bool, `max_tokens`). An answer has
        `token_ids`, `log_probs` (None unless requested) and `extra_fields`, as in VeRL's TokenOutput. A
        failed one has only `error`, a description.
        """
        adapter = await self._adapter()
        asked = [
            self._generate_one(list(prompt), seed, sampling, adapter)
            for prompt, own in zip(prompts, seeds, strict=True)
            for seed in own
        ]
        results = iter(await asyncio.gather(*asked, return_exceptions=True))
        return [[_answer_of(next(results)) for _ in own] for own in seeds]

    async def _adapter(self) -> Any:
        """vLLM's request for the current adapter, or None if it has none."""
        from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH
        from vllm.lora.request import LoRARequest

        if not self.lora_as_adapter or VLLM_LORA_INT_ID not in await self.engine.list_loras():
            return None
        return LoRARequest(lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH)

    async def canary_log_probs(self, token_ids: Sequence[int]) -> LogProbs | None:
        """Log-probabilities of these tokens except the first, computed by requests with and without the
        adapter. None if this server has no engine, because another server of its replica has it."""
        if getattr(self, "engine", None) is None:
            return None
        policy = await self._log_probs_of(list(token_ids), await self._adapter())
        if not self.lora_as_adapter:
            return LogProbs(policy=policy, base=None)
        return LogProbs(policy=policy, base=await self._log_probs_of(list(token_ids), None))

    async def _log_probs_of(self, token_ids: list[int], adapter: Any) -> tuple[float, ...]:
        from vllm import SamplingParams

        answer = self._generate(
            prompt={"prompt_token_ids": token_ids},
            sampling_params=SamplingParams(
                max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False
            ),
            request_id=uuid4().hex,
            lora_request=adapter,
        )
        *_, last = [result async for result in answer]
        return tuple(
            at[token].logprob for token, at in zip(token_ids[1:], last.prompt_logprobs[1:], strict=True)
        )

    async def _generate_one(
        self, prompt: list[int], seed: int, sampling: Mapping[str, Any], adapter: Any
    ) -> dict[str, Any]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        room = self.config.max_model_len - len(prompt)
        if room < 1:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens leaves no room for an answer; "
                f"max_model_len is {self.config.max_model_len}"
            )
        own = dict(sampling)
        params = SamplingParams(
            max_tokens=max(1, min(own.pop("max_tokens"), room)),
            logprobs=0 if own.pop("logprobs") else None,
            ignore_eos=self.config.get("ignore_eos", False),
            seed=seed,
            output_kind=RequestOutputKind.FINAL_ONLY,  # one output per request, not per token
            detokenize=False,
            **own,
        )
        if await self._park_until_admitted("batch") is not None:
            raise RuntimeError("the vLLM server takes no requests at present")
        try:
            answer = self.engine.generate(
                prompt={"prompt_token_ids": prompt},
                sampling_params=params,
                request_id=uuid4().hex,
                lora_request=adapter,
            )
            results = [result async for result in answer]
        finally:
            self._admitting -= 1
        if not results or not results[-1].outputs:
            raise RuntimeError("vLLM gave no answer: the request was aborted")
        result, output = results[-1], results[-1].outputs[0]
        token_ids = list(output.token_ids)
        log_probs = None
        if params.logprobs is not None:
            log_probs = [at[token].logprob for token, at in zip(token_ids, output.logprobs, strict=True)]
        extra_fields = {
            "global_steps": self.global_steps,
            "num_cached_tokens": getattr(result, "num_cached_tokens", None),
        }
        return {"token_ids": token_ids, "log_probs": log_probs, "extra_fields": extra_fields}

    async def check_engine(self) -> str | None:
        """Reason why vLLM's engine can no longer answer, or None if it can."""
        engine = getattr(self, "engine", None)
        if engine is None:
            return None
        try:
            await engine.check_health()
        except Exception as error:
            logger.warning("vLLM's engine is not healthy", exc_info=True)
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return None

    def _record(self, prompt: Any, params: Any) -> None:
        if not self._recording:
            return
        self._params[(params.temperature, params.top_p, params.top_k, params.max_tokens)] += 1
        self._prompts[tuple(prompt["prompt_token_ids"])] += 1
        self._seeds.add(params.seed)

    def reset_record(self) -> None:
        """Clear the record, and record requests until it is read."""
        self._recording = True
        self._params: Counter[tuple[Any, ...]] = Counter()
        self._prompts: Counter[tuple[int, ...]] = Counter()
        self._seeds: set[int | None] = set()

    def read_record(self) -> dict[str, Any]:
        """Requests since the last reset: sampling parameters with counts, (prompt digest, count) pairs, and
        the number of distinct seeds. Stops recording."""
        self._recording = False
        return {
            "params": [(*key, count) for key, count in self._params.items()],
            "prompts": [(derive_seed(*prompt), count) for prompt, count in self._prompts.items()],
            "seeds": len(self._seeds - {None}),
        }


def _answer_of(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseException):
        return {"error": f"{type(result).__name__}: {result}"}
    answer: dict[str, Any] = result
    return answer


class RecordingReplica(vLLMReplica):
    """VeRL's replica with a RecordingServer, or with the one in `early` that has already been launched.

    Reward and teacher models keep VeRL's own server, because they are called over HTTP.
    """

    def __init__(self, *args: Any, early: Mapping[int, LaunchedServer] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.is_reward_model or self.is_teacher_model:
            return
        self.server_class = (early or {}).get(self.replica_rank) or ray.remote(RecordingServer)

    def server_arguments(self) -> dict[str, Any]:
        """Arguments that the replica passes to its server, except the workers."""
        return {
            "config": self.config,
            "model_config": self.model_config,
            "rollout_mode": RolloutMode.HYBRID,
            "replica_rank": self.replica_rank,
            "node_rank": 0,
            "gpus_per_node": self.gpus_per_replica_node,
            "nnodes": self.nnodes,
        }


class LaunchedServer:
    """Replacement for the Ray actor class with which VeRL starts a server: returns the early server.

    On GPUs, servers share memory with VeRL's workers, so VeRL launches them only after the workers have
    loaded their models. On the CPU a server does not depend on the workers.
    """

    def __init__(self, handle: Any, rank: int, config: Any) -> None:
        """`handle` belongs to a server that was started early, `config` is VeRL's `actor_rollout_ref`."""
        config = copy.deepcopy(config)
        replica = RecordingReplica(
            rank, config.rollout, config.model, gpus_per_node=config.rollout.n_gpus_per_node
        )
        self._handle, self._arguments = handle, replica.server_arguments()
        self._begun = handle.begin.remote(**self._arguments, workers=[], cuda_visible_devices="")
        # Ray may reorder calls to this actor, but it waits for arguments that are futures. The result of
        # `begin`, None, is also this argument's default.
        handle.launch_server.remote(self._begun)

    def options(self, **_: Any) -> LaunchedServer:
        """This object, since the server has already started."""
        return self

    def remote(self, *, workers: Any, cuda_visible_devices: str, **arguments: Any) -> Any:  # noqa: ARG002
        """Handle of the server.

        Raises:
            EngineError: VeRL's arguments differ from those that the server was launched with.
            RayError: VeRL's constructor raised it.
        """
        ours = self._arguments
        if different := [name for name in ours | arguments if ours.get(name) != arguments.get(name)]:
            raise EngineError(
                f"vLLM's server was started early with another {', '.join(different)} than VeRL asks for; "
                f"needed: verl {VERL_VERSION} unmodified"
            )
        ray.get(self._begun)
        return self._handle


def launch_servers(started: Mapping[int, Any], config: Any) -> dict[int, LaunchedServer]:
    """Make servers that were started early (handles by replica rank) start vLLM in parallel with VeRL's
    workers.

    Raises:
        EngineVersionError: VeRL's server has other methods than the proxy.
    """
    public = {name for name, _ in inspect.getmembers(RecordingServer, inspect.isfunction) if name[0] != "_"}
    if public != set(METHODS):
        raise EngineVersionError(
            f"VeRL's vLLM server has other methods ({', '.join(sorted(public ^ set(METHODS)))}); "
            f"needed: verl {VERL_VERSION} unmodified"
        )
    return {rank: LaunchedServer(handle, rank, config) for rank, handle in started.items()}
