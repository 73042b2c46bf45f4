"""The verdict whether a phase fits on its GPUs: its tightest stage, and the gain of each remedy.

Judged by the likely sizes; `tight` where only the high ones exceed a limit. A remedy is a set-up with one
setting changed, estimated anew. Not here: the estimate (moments.py), tables (actors/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from llmzero_ray.memory.moments import cache_bytes, cache_per_token, moments
from llmzero_ray.memory.setup import Setup
from llmzero_ray.memory.shapes import ModelShape
from llmzero_ray.memory.sizes import GIB, Moment

Status: TypeAlias = Literal["fits", "tight", "does not fit"]
_WORTH = 0.1 * GIB
_MOST = 4


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One setting changed."""

    change: str
    """In the words of search.yaml."""
    saved: float
    """Bytes of the likely size, at the moment that is tightest now."""
    status: Status
    """Of the whole, with that change."""


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """One phase on one kind of GPU."""

    shape: ModelShape
    setup: Setup
    moments: tuple[Moment, ...]
    status: Status
    worst: Moment
    """Nearest to its limit, or furthest beyond it."""
    remedies: tuple[Remedy, ...]
    """Those that help most first; none where it fits."""
    refused: str = ""
    """Why VeRL would refuse a full-length sequence, whatever the memory; empty: it would not."""

    @property
    def cache_tokens(self) -> float:
        """Tokens in vLLM's KV cache, of all GPUs of one server."""
        room = cache_bytes(self.shape, self.setup).likely
        return room / cache_per_token(self.shape, self.setup)

    @property
    def reason(self) -> str:
        """The verdict in one sentence."""
        if self.refused:
            return f"{self.status}: {self.refused}"
        worst, total = self.worst, self.worst.total
        largest = worst.largest
        return (
            f"{self.status}: tightest is {worst.name} with about {total.likely / GIB:.1f} GiB (up to "
            f"{total.high / GIB:.1f}) of {worst.limit / GIB:.1f} GiB ({worst.limit_name}); largest there: "
            f"{largest.name}, {largest.size.likely / GIB:.1f} GiB"
        )


def assess(shape: ModelShape, setup: Setup) -> Assessment:
    """The verdict on a phase, with remedies where it is not `fits`."""
    found = moments(shape, setup)
    status, worst = _judged(found)
    remedies = () if status == "fits" else tuple(_remedies(shape, setup, worst))
    refused = _refused(setup)
    return Assessment(
        shape=shape,
        setup=setup,
        moments=found,
        status="does not fit" if refused else status,
        worst=worst,
        remedies=() if refused else remedies[:_MOST],
        refused=refused,
    )


def _refused(setup: Setup) -> str:
    """`rearrange_micro_batches` asserts that the budget holds the longest sequence of a batch."""
    budget = min(setup.max_tokens, setup.log_prob_max_tokens) * setup.ulysses
    if not setup.dynamic_bsz or budget >= setup.sequence:
        return ""
    return (
        f"a sequence may have {setup.sequence} tokens (prompt and response), a packed micro batch "
        f"{budget}; set max_token_len_per_gpu to at least {-(-setup.sequence // setup.ulysses)}"
    )


def _judged(found: tuple[Moment, ...]) -> tuple[Status, Moment]:
    worst = max(found, key=lambda moment: moment.total.likely - moment.limit)
    if worst.total.likely > worst.limit:
        return "does not fit", worst
    worst = max(found, key=lambda moment: moment.total.high - moment.limit)
    return ("tight" if worst.total.high > worst.limit else "fits"), worst


def _remedies(shape: ModelShape, setup: Setup, worst: Moment) -> list[Remedy]:
    helpful = []
    for change, other in _changes(setup):
        after = moments(shape, other)
        there = next(moment for moment in after if moment.name == worst.name)
        # vLLM's share is a setting itself: what counts is the room that is left.
        saved = (worst.total.likely - worst.limit) - (there.total.likely - there.limit)
        if saved >= _WORTH:
            helpful.append(Remedy(change=change, saved=saved, status=_judged(after)[0]))
    order = ("fits", "tight", "does not fit")
    return sorted(helpful, key=lambda remedy: (order.index(remedy.status), -remedy.saved))


def _changes(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Set-ups that differ in one setting, with its old and new value."""
    yield from _smaller_micro_batches(setup)
    half = max(1, setup.response // 2)
    if half < setup.response:
        yield f"max_response_length {setup.response} -> {half}", replace(setup, response=half)
    for name, change in (("lower", -0.1), ("higher", 0.1)):
        utilization = round(setup.utilization + change, 2)
        if 0.1 <= utilization <= 0.9:
            label = f"engine.gpu_memory_utilization {name}: {setup.utilization:g} -> {utilization:g}"
            yield label, replace(setup, utilization=utilization)
    wider = setup.tensor_parallel * 2
    if setup.n_gpus % wider == 0:
        label = f"engine.tensor_model_parallel_size {setup.tensor_parallel} -> {wider}"
        yield label, replace(setup, tensor_parallel=wider)
    if not setup.gradient_checkpointing:
        yield "gradient_checkpointing false -> true", replace(setup, gradient_checkpointing=True)
    if not setup.param_offload:
        yield "param_offload false -> true", replace(setup, param_offload=True)
    if not setup.optimizer_offload:
        yield "optimizer_offload false -> true", replace(setup, optimizer_offload=True)
    if setup.entropy_chunk is None:
        yield "entropy_from_logits_with_chunking false -> true", replace(setup, entropy_chunk=2048)
    if setup.strategy == "fsdp":
        yield "actor.strategy fsdp -> fsdp2", replace(setup, strategy="fsdp2")
        if not setup.layered_summon:
            yield "rollout.layered_summon false -> true", replace(setup, layered_summon=True)
    buffer = setup.bucket_bytes / 4
    yield (
        f"update_weights_bucket_megabytes {setup.bucket_bytes / 2**20:g} -> {buffer / 2**20:g}",
        replace(setup, bucket_bytes=buffer),
    )


def _smaller_micro_batches(setup: Setup) -> Iterator[tuple[str, Setup]]:
    if not setup.dynamic_bsz:
        budget = max(setup.max_tokens, -(-setup.sequence // setup.ulysses))
        packed = replace(setup, dynamic_bsz=True, max_tokens=budget, log_prob_max_tokens=budget)
        yield f"dynamic_bsz false -> true with max_token_len_per_gpu {budget}", packed
    else:
        # A sequence is never split: the budget must hold the longest one.
        floor = -(-setup.sequence // setup.ulysses)
        half = max(floor, setup.max_tokens // 2)
        if half < setup.max_tokens:
            label = f"max_token_len_per_gpu {setup.max_tokens} -> {half}"
            smaller = min(setup.log_prob_max_tokens, half)
            yield label, replace(setup, max_tokens=half, log_prob_max_tokens=smaller)
        return
    update, scoring = setup.micro_batch, setup.log_prob_micro_batch
    if update > 1:
        yield f"micro_batch_size {update} -> {update // 2}", replace(setup, micro_batch=update // 2)
    if scoring > 1:
        label = f"log_prob_micro_batch_size and ref_micro_batch_size {scoring} -> {scoring // 2}"
        yield label, replace(setup, log_prob_micro_batch=scoring // 2)
