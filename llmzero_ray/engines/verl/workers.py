"""VeRL's FSDP worker with extensions: it switches phases in place, and saves and restores a phase completely.

It is a plain class, so that it is pickled by reference; it becomes a Ray actor only where it is started.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from llmzero_ray.engines.verl import patches
from llmzero_ray.engines.verl.adapters import (
    digest_of,
    fresh_lora,
    gathered,
    live_name,
    local_part,
    peft_name,
    read_adapter,
    reshard,
    save_peft,
    write,
)
from llmzero_ray.engines.verl.canary import LogProbs
from llmzero_ray.engines.verl.cpu.shared_prompts import share_prompts
from llmzero_ray.engines.verl.full_checkpoint import loading_data_alone
from llmzero_ray.engines.verl.internals import weight_socket
from llmzero_ray.engines.verl.merging import Rounding, merged_weights
from llmzero_ray.hyperparameters import VERL_SPACE

AND_REFERENCE = "llmzero_and_reference"
"""Key that asks `compute_log_prob` also for the reference policy's log-probabilities."""
_ACTOR = "actor_rollout_ref.actor."
_HOT = tuple(
    row.key.removeprefix(_ACTOR)
    for row in (*VERL_SPACE.parameters, *VERL_SPACE.proposable)
    if row.hot and row.key.startswith(_ACTOR)
)
"""Hot hyper-parameters of the actor, each a field of VeRL's configuration of the loss or, as `optim.NAME`, of
the optimizer."""


class PhaseWorker(ActorRolloutRefWorker):
    """VeRL's hybrid worker, whose adapter, optimizer and loss can be exchanged without touching base
    weights."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Same as VeRL's, but weights are sent to vLLM through this engine's own socket."""
        patches.drop_names_once_connected()
        patches.make_checkpoint_directories_plainly()
        patches.take_logsumexp_at_once()
        self._rounding = Rounding()
        super().init_model()
        patches.collect_garbage_as_usual()  # the process has imported what it needs
        if self.rollout is not None:
            self.rollout.zmq_handle = weight_socket(self.rollout.zmq_handle)
        engine = self.actor.engine
        engine.get_per_tensor_param = partial(self._weights_for_server, engine.get_per_tensor_param)
        if get_device_name() == "cpu":
            share_prompts(engine)

    def _weights_for_server(
        self, read: Any, layered_summon: bool = False, base_sync_done: bool = False, **kwargs: Any
    ) -> Any:
        """Same as VeRL's `get_per_tensor_param`, without its copies. For an adapter, VeRL moves the whole
        shard to the GPU. For merged weights, it copies all weights to the host, adds the adapter in place,
        and copies them back."""
        engine = self.actor.engine
        if engine.model_config.lora.get("merge", False):
            self._rounding = Rounding()
            return merged_weights(engine.module, self._server_dtype(), self._rounding), None
        if base_sync_done:
            return gathered(engine.module).items(), self._peft_config()
        return read(layered_summon=layered_summon, base_sync_done=base_sync_done, **kwargs)

    def _server_dtype(self) -> torch.dtype:
        name = self.config.rollout.dtype
        found: torch.dtype = torch.bfloat16 if name == "auto" else getattr(torch, name)
        return found

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def merge_rounding(self) -> float:
        """Share of the adapter's change that rounding lost in the merged weights sent last."""
        return self._rounding.share

    def _peft_config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.actor.engine.module.peft_config["default"].to_dict()
        return found

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: Any) -> Any:
        """Same as VeRL's. With AND_REFERENCE, also `ref_log_prob` of the same rows, without the adapter."""
        and_reference = tu.pop(data, AND_REFERENCE, default=False)
        output = super().compute_log_prob(data)
        if not and_reference:
            return output
        tu.assign_non_tensor(data, calculate_entropy=False, no_lora_adapter=True)
        reference = super().compute_log_prob(data)  # collective: all ranks
        if output is not None:
            output["ref_log_prob"] = response_from_nested(reference["log_probs"], data["response_mask"].cpu())
        return output

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_adapter(self, path: str | None, seed: int) -> int:
        """Write the adapter at `path` (a PEFT folder; None for a new one drawn from `seed`) into the live
        module. The base model is not reloaded.

        Returns the number of tensors written.
        """
        module = self.actor.engine.module
        reshard(module)
        saved = read_adapter(path) if path is not None else {}
        written = 0
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "lora_" not in name:
                    continue
                if path is None:
                    full = fresh_lora(name, tuple(parameter.shape), seed)
                else:
                    key = peft_name(name)
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
                write(parameter, full)
                written += 1
        if saved:
            raise ValueError(
                f"adapter {path} has {len(saved)} tensors this model lacks, such as {sorted(saved)[0]}"
            )
        return written

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin_phase(self, config: Any, seed: int, skip: tuple[str, ...] = ()) -> None:
        """Create optimizer, scheduler, loss and micro batches from `config` (actor_rollout_ref). `skip` names
        parts to leave unchanged."""
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
        """Values in effect on this rank, by VeRL key, read from the optimizer, the loss function's arguments
        and the engine."""
        engine = self.actor.engine
        trainable = {id(p) for p in engine.module.parameters() if p.requires_grad}
        held = {id(p) for group in engine.optimizer.param_groups for p in group["params"]}
        group = engine.optimizer.param_groups[0]
        loss = self.actor.loss_fn.keywords["config"]
        # VeRL's engine reads its own optimizer configuration at every step and schedule.
        configurations = {"": loss, "optim": engine.optimizer_config}
        effective = {}
        for name in _HOT:
            part, _, field = name.rpartition(".")
            effective[f"{_ACTOR}{name}"] = getattr(configurations[part], field)
        return effective | {
            f"{_ACTOR}optim.lr": group.get("initial_lr", group["lr"]),
            f"{_ACTOR}optim.weight_decay": group["weight_decay"],
            f"{_ACTOR}optim.betas": tuple(group["betas"]) if "betas" in group else None,
            f"{_ACTOR}policy_loss.loss_mode": loss.policy_loss.get("loss_mode"),
            f"{_ACTOR}ppo_micro_batch_size_per_gpu": self.actor.engine_config.micro_batch_size_per_gpu,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": (
                self.actor.engine_config.infer_micro_batch_size_per_gpu
            ),
            "optimizer_holds_adapter": trainable <= held and bool(trainable),
            "optimizer_state_empty": not engine.optimizer.state,
        }

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def adapter_digest(self, path: str | None, seed: int) -> tuple[str, str]:
        """(expected, actual) digests: of the adapter that `load_adapter(path, seed)` should have written, and
        of the live adapter."""
        live = gathered(self.actor.engine.module)  # collective: all ranks
        if path is not None:
            wanted = read_adapter(path)
        else:
            wanted = {k: fresh_lora(live_name(k), tuple(v.shape), seed) for k, v in live.items()}
        return digest_of({k: v.to(live[k].dtype) for k, v in wanted.items() if k in live}), digest_of(live)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_adapter(self, path: str, facts: dict[str, Any]) -> int:
        """Save the live adapter as a PEFT folder. Atomic: the folder is complete with its manifest, or
        missing."""
        full = gathered(self.actor.engine.module)  # collective: all ranks
        if self.rank == 0:
            contiguous = {name: tensor.contiguous() for name, tensor in full.items()}
            save_peft(Path(path), contiguous, self._peft_config(), facts)
        return len(full)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def canary_log_probs(self, token_ids: tuple[int, ...]) -> LogProbs | None:
        """This rank's actor's log-probabilities of these tokens except the first. None if sequences are split
        over GPUs or logits are never materialised."""
        engine = self.actor.engine
        if engine.engine_config.ulysses_sequence_parallel_size > 1:
            return None
        with engine.eval_mode(), torch.no_grad():  # collective: all ranks
            policy = self._log_probs_of(token_ids)
            with engine.disable_adapter():
                base = self._log_probs_of(token_ids)
        reshard(engine.module)
        return None if policy is None or base is None else LogProbs(policy=policy, base=base)

    def _log_probs_of(self, token_ids: tuple[int, ...]) -> tuple[float, ...] | None:
        engine, device = self.actor.engine, get_device_name()
        ids = torch.tensor([token_ids], device=device)
        enabled = engine._autocast_dtype != torch.float32
        with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=enabled):
            given = {"attention_mask": torch.ones_like(ids), "use_cache": False}
            output = engine.module(input_ids=ids, **given)
        if getattr(output, "logits", None) is None:
            return None
        log_probs = torch.log_softmax(output.logits[0, :-1].float(), dim=-1)
        found = log_probs.gather(1, ids[0, 1:, None])[:, 0]
        return tuple(found.cpu().tolist())

    # --- full checkpoints ----------------------------------------------------------------------------------

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_full(self, path: str) -> dict[str, str]:
        """Write this rank's adapter, optimizer, schedule and random states below `path`. Returns their
        `full_digests`."""
        reshard(self.actor.engine.module)
        self._renew_checkpoint_manager(["model", "optimizer", "extra"])
        # The engine's own call would first move the whole shard to the GPU, which vLLM is using.
        self.actor.engine.checkpoint_manager.save_checkpoint(path)  # collective: all ranks
        torch.distributed.barrier()
        return self._full_digests()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_full(self, path: str, skip: tuple[str, ...] = ()) -> dict[str, str]:
        """Restore the state that `save_full` wrote, except parts named in `skip`. Returns the resulting
        `full_digests`."""
        engine = self.actor.engine
        reshard(engine.module)
        parts = {"model": "adapter", "optimizer": "optimizer", "extra": "schedule"}
        self._renew_checkpoint_manager([name for name, part in parts.items() if part not in skip])
        random_states = FSDPCheckpointManager.get_rng_state()
        with loading_data_alone():
            engine.load_checkpoint(path, del_local_after_load=False)  # collective: all ranks
        if "random" in skip:
            FSDPCheckpointManager.load_rng_state(random_states)
        return self._full_digests()

    def _renew_checkpoint_manager(self, contents: list[str]) -> None:
        """Create a new checkpoint manager, because VeRL's keeps the optimizer that it was created with, and
        every phase has its own optimizer."""
        engine = self.actor.engine
        engine.checkpoint_manager = FSDPCheckpointManager(
            model=engine.module,
            optimizer=engine.optimizer,
            lr_scheduler=engine.lr_scheduler,
            checkpoint_config={"save_contents": contents, "load_contents": contents, "save_lora_only": True},
        )

    def _full_digests(self) -> dict[str, str]:
        engine = self.actor.engine
        moments = {
            f"{index}.{name}": local_part(torch.as_tensor(value)).detach().to("cpu")
            for index, state in engine.optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        adapter = {
            name: local_part(p).detach().to("cpu")
            for name, p in engine.module.named_parameters()
            if "lora_" in name
        }
        return {
            "adapter": digest_of(adapter),
            "optimizer": digest_of(moments),
            "schedule": str(engine.lr_scheduler.last_epoch),
            "random": _random_digest(),
        }


def _random_digest() -> str:
    """Digest of the random states of torch, numpy and Python in this process."""
    digest = hashlib.sha256()
    for name, state in sorted(FSDPCheckpointManager.get_rng_state().items()):
        for part in state if isinstance(state, tuple) else (state,):
            raw = part.tobytes() if hasattr(part, "tobytes") else repr(_plain(part)).encode()
            digest.update(name.encode() + raw)
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value
