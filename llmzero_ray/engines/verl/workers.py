"""VeRL's Ray-side classes, extended: the FSDP worker, the agent-loop worker, the vLLM server.

Plain classes that travel by reference and are wrapped by Ray late. Each adds one thing VeRL lacks: swapping
a phase in place, a seed and a length for every request, a record of what vLLM was really asked for.

Not here: the trainer that drives them (trainer.py), what the values should be (effective.py).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from verl.workers.utils.losses import ppo_loss

from llmzero_ray.engines.verl.internals import scoped_socket, weight_socket_scope
from llmzero_ray.engines.verl.seeds import derive_seed

ROW_KEY = "llmzero_row"
"""Rides in the reward's extra information from the agent loop to the validation: the row's position."""


class PhaseWorker(ActorRolloutRefWorker):
    """VeRL's hybrid worker whose adapter, optimizer and loss can be exchanged while base weights stay where
    they are."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """VeRL's models; weights travel to vLLM through a socket of this engine's own."""
        super().init_model()
        if self.rollout is not None:
            self.rollout.zmq_handle = scoped_socket(self.rollout.zmq_handle)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_adapter(self, path: str | None, seed: int) -> int:
        """Write the adapter at `path` (a PEFT folder; None = a fresh one drawn from `seed`) into the live
        module.

        Returns the number of tensors written. The base model is not read again.
        """
        module = self.actor.engine.module
        _reshard(module)
        saved = _read_adapter(path) if path is not None else {}
        written = 0
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "lora_" not in name:
                    continue
                if path is None:
                    full = _fresh_lora(name, tuple(parameter.shape), seed)
                else:
                    key = name.replace(".default.", ".")
                    if key not in saved:
                        raise ValueError(
                            f"adapter {path} has no tensor {key}; it belongs to another model or target set"
                        )
                    full = saved.pop(key)
                    if tuple(full.shape) != tuple(parameter.shape):
                        raise ValueError(
                            f"adapter {path}: {key} has shape {tuple(full.shape)}, "
                            f"the model needs {tuple(parameter.shape)}; "
                            "LoRA rank and targets are fixed along a chain"
                        )
                _write(parameter, full)
                written += 1
        if saved:
            raise ValueError(
                f"adapter {path} has {len(saved)} tensors this model lacks, such as {sorted(saved)[0]}"
            )
        return written

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin_phase(self, config: Any, seed: int, skip: tuple[str, ...] = ()) -> None:
        """New optimizer, scheduler, loss and micro batches from `config` (actor_rollout_ref). `skip` leaves
        parts as they are."""
        self.config = config
        engine = self.actor.engine
        actor_config = omega_conf_to_dataclass(config.actor)
        actor_config.model_config = engine.model_config
        torch.manual_seed(seed)
        if "optimizer" not in skip:
            engine.optimizer_config = actor_config.optim
            engine.optimizer = engine._build_optimizer(engine.module)
            engine.lr_scheduler = engine._build_lr_scheduler(engine.optimizer)
        if "loss" not in skip:
            self.loss_fn = partial(ppo_loss, config=actor_config)
            self.actor.set_loss_fn(self.loss_fn)
        if "micro_batch" not in skip:
            engine_config = self.actor.engine_config
            engine_config.use_dynamic_bsz = config.actor.use_dynamic_bsz
            engine_config.micro_batch_size_per_gpu = config.actor.ppo_micro_batch_size_per_gpu
            engine_config.infer_micro_batch_size_per_gpu = config.rollout.log_prob_micro_batch_size_per_gpu
            engine_config.max_token_len_per_gpu = config.actor.ppo_max_token_len_per_gpu
            engine_config.infer_max_token_len_per_gpu = config.rollout.log_prob_max_token_len_per_gpu

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_effective(self) -> dict[str, Any]:
        """What this rank trains with, by VeRL key, read from where it acts: optimizer, bound loss, engine."""
        engine = self.actor.engine
        trainable = {id(p) for p in engine.module.parameters() if p.requires_grad}
        held = {id(p) for group in engine.optimizer.param_groups for p in group["params"]}
        group = engine.optimizer.param_groups[0]
        loss = self.actor.loss_fn.keywords["config"]
        actor = "actor_rollout_ref.actor"
        effective = {
            f"{actor}.optim.lr": group.get("initial_lr", group["lr"]),
            f"{actor}.optim.weight_decay": group["weight_decay"],
            f"{actor}.optim.betas": tuple(group["betas"]) if "betas" in group else None,
            f"{actor}.ppo_micro_batch_size_per_gpu": self.actor.engine_config.micro_batch_size_per_gpu,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": (
                self.actor.engine_config.infer_micro_batch_size_per_gpu
            ),
            "optimizer_holds_adapter": trainable <= held and bool(trainable),
            "optimizer_state_empty": not engine.optimizer.state,
        }
        # VeRL's engine reads these from its own optimizer configuration at every step and schedule.
        for name in ("clip_grad", "lr_scheduler_type", "lr_warmup_steps", "lr_warmup_steps_ratio"):
            effective[f"{actor}.optim.{name}"] = getattr(engine.optimizer_config, name)
        for name in (
            "kl_loss_coef",
            "use_kl_loss",
            "kl_loss_type",
            "entropy_coeff",
            "clip_ratio",
            "clip_ratio_low",
            "clip_ratio_high",
            "clip_ratio_c",
            "loss_agg_mode",
        ):
            effective[f"{actor}.{name}"] = getattr(loss, name)
        return effective

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def adapter_digest(self, path: str | None, seed: int) -> tuple[str, str]:
        """(wanted, acting): digests of the adapter `load_adapter(path, seed)` should have written and of the
        live one."""
        tensors, _ = self.actor.engine.get_per_tensor_param(base_sync_done=True)  # collective: all ranks
        live = {name: tensor.detach().to("cpu") for name, tensor in tensors}
        if path is not None:
            wanted = _read_adapter(path)
        else:
            wanted = {k: _fresh_lora(_live_name(k), tuple(v.shape), seed) for k, v in live.items()}
        return _digest({k: v.to(live[k].dtype) for k, v in wanted.items() if k in live}), _digest(live)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def logits(self, token_ids: tuple[int, ...]) -> list[list[float]]:
        """Logits of the live policy for one sequence, one row per position."""
        module = self.actor.engine.module
        module.eval()
        device = next(module.parameters()).device
        with torch.no_grad():
            ids = torch.tensor([token_ids], device=device)
            out = (
                module(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
                .logits[0]
                .float()
                .cpu()
            )
        _reshard(module)
        rows: list[list[float]] = out.tolist()
        return rows

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_adapter(self, path: str, facts: dict[str, Any]) -> int:
        """Save the live adapter as a PEFT folder; complete with its manifest, or not there at all."""
        tensors, peft_config = self.actor.engine.get_per_tensor_param(
            base_sync_done=True
        )  # collective: all ranks
        full = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors}
        if self.rank == 0:
            _save_peft(Path(path), full, peft_config, facts)
        return len(full)


def _reshard(module: torch.nn.Module) -> None:
    """Back to sharded parameters: after a forward pass FSDP2 may still hold gathered ones."""
    for part in module.modules():
        if hasattr(part, "reshard"):
            part.reshard()


def _write(parameter: torch.nn.Parameter, full: torch.Tensor) -> None:
    """Copy a full tensor into a parameter, sharded (DTensor) or plain."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    full = full.to(dtype=parameter.dtype)
    if isinstance(parameter, DTensor):
        # Every rank holds the same full tensor: shard locally, no communication.
        shard = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(shard.to_local())
    else:
        parameter.copy_(full)


def _fresh_lora(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """PEFT's default start (A Kaiming-uniform, B zero), drawn per tensor from `seed`: the same warm, cold, on
    any rank count."""
    if "lora_A" not in name:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    bound = 1.0 / math.sqrt(shape[1])  # kaiming_uniform with a = sqrt(5), fan_in = shape[1]
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound


def _live_name(peft_name: str) -> str:
    """The live module's name of a tensor in a PEFT file."""
    head, _, tail = peft_name.rpartition(".")
    return f"{head}.default.{tail}"


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def _read_adapter(path: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(os.path.join(path, "adapter_model.safetensors")))


def _save_peft(path: Path, tensors: dict[str, torch.Tensor], peft_config: Any, facts: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    partial_path = path.with_name(path.name + ".partial")
    shutil.rmtree(partial_path, ignore_errors=True)
    partial_path.mkdir(parents=True)
    save_file(tensors, partial_path / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        k: sorted(v) if isinstance(v, set) else getattr(v, "value", v) for k, v in dict(peft_config).items()
    }
    config["inference_mode"] = True
    (partial_path / "adapter_config.json").write_text(json.dumps(config, indent=2, default=str))
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(partial_path.iterdir())}
    # Written last: a folder without it is no checkpoint.
    (partial_path / "manifest.json").write_text(json.dumps({"format": 1, "sha256": files, **facts}, indent=2))
    shutil.rmtree(path, ignore_errors=True)
    partial_path.rename(path)


_AgentLoopWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class PhaseAgentLoopWorker(_AgentLoopWorker):
    """VeRL's agent-loop worker; every request carries its own seed and `max_tokens`."""

    def begin_phase(self, config: Any, seed: int, train_max_tokens: int, eval_max_tokens: int) -> None:
        """Use `config` (whole) from now on; caps in tokens."""
        self.config = config
        self.rollout_config = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        self.phase_seed, self.max_tokens = seed, {False: train_max_tokens, True: eval_max_tokens}

    async def _run_agent_loop(
        self,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        *,
        agent_name: str,
        trace: bool = True,
        **kwargs: Any,
    ) -> Any:
        own = dict(sampling_params)
        own["max_tokens"] = self.max_tokens[bool(trajectory["validate"])]
        own["seed"] = derive_seed(
            self.phase_seed, trajectory["step"], trajectory["sample_index"], kwargs.get("session_id", 0)
        )
        return await super()._run_agent_loop(own, trajectory, agent_name=agent_name, trace=trace, **kwargs)

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        await super()._compute_score(outputs, kwargs=kwargs)
        info = outputs[-1].extra_fields.get("reward_extra_info")
        if info is not None:
            info[ROW_KEY] = int(kwargs.get("index", -1))


class PhaseAgentLoopManager(AgentLoopManagerTQ):
    """VeRL's manager with our workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(PhaseAgentLoopWorker)


class RecordingServer(vLLMHttpServer):
    """VeRL's vLLM server that counts what the engine was really asked for: the SamplingParams objects
    themselves."""

    async def launch_server(self, *args: Any, **kwargs: Any) -> Any:
        os.environ["VERL_RAY_JOB_ID"] = weight_socket_scope()  # vLLM's workers build the socket's path of it
        result = await super().launch_server(*args, **kwargs)
        self.reset_record()
        engine = getattr(self, "engine", None)
        if engine is not None:
            generate = engine.generate

            def recorded(*a: Any, **kw: Any) -> Any:
                if (
                    "prompt" in kw and "sampling_params" in kw
                ):  # VeRL's calls; the HTTP endpoints pass them by position
                    self._record(kw["prompt"], kw["sampling_params"])
                return generate(*a, **kw)

            engine.generate = recorded
        return result

    def _record(self, prompt: Any, params: Any) -> None:
        self._params[(params.temperature, params.top_p, params.top_k, params.max_tokens)] += 1
        self._prompts[tuple(prompt["prompt_token_ids"])] += 1
        self._seeds.add(params.seed)

    def reset_record(self) -> None:
        """Forget all requests seen so far."""
        self._params: Counter[tuple[Any, ...]] = Counter()
        self._prompts: Counter[tuple[int, ...]] = Counter()
        self._seeds: set[int | None] = set()

    def read_record(self) -> dict[str, Any]:
        """Requests since the last reset: sampling parameters with counts, (prompt digest, count) pairs,
        distinct seeds."""
        return {
            "params": [(*key, count) for key, count in self._params.items()],
            "prompts": [(derive_seed(*prompt), count) for prompt, count in self._prompts.items()],
            "seeds": len(self._seeds - {None}),
            "requests": sum(self._prompts.values()),
        }


class RecordingReplica(vLLMReplica):
    """VeRL's replica with the recording server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(RecordingServer)
