"""What is changed inside VeRL's libraries while they run, where it can be seen without starting them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from llmzero_ray.engines.verl import patches

interface = pytest.importorskip("transfer_queue.interface")


class Controller:
    """Stands for the queue's controller, an actor class of Ray."""

    asked: tuple[dict[str, Any], ...] = ()

    @classmethod
    def options(cls, **options: Any) -> str:
        cls.asked = (*cls.asked, options)
        return "actor"


def test_one_rank_gets_what_verl_would_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    base = pytest.importorskip("verl.trainer.ppo.v1.trainer_base")
    theirs = base.get_seqlen_balanced_partitions
    monkeypatch.setattr(base, "get_seqlen_balanced_partitions", theirs)
    patches.leave_one_rank_unbalanced()
    ours = base.get_seqlen_balanced_partitions
    patches.leave_one_rank_unbalanced()
    assert base.get_seqlen_balanced_partitions is ours is not theirs
    lengths = [7, 3, 9, 1, 4, 4]
    for ranks in (1, 2, 3):
        assert ours(lengths, k_partitions=ranks, equal_size=True) == theirs(lengths, ranks, True)
    with pytest.raises(AssertionError):
        ours([], 1, True)


@pytest.mark.parametrize("largest", [2**22, 1])
@pytest.mark.parametrize("shape", [(57, 100), (5, 7, 100), (1, 100)])
def test_log_probabilities_in_blocks_are_verls_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], largest: int
) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("verl.utils.torch_functional")
    theirs = functional.logprobs_from_logits_v2
    monkeypatch.setattr(functional, "logprobs_from_logits_v2", theirs)
    monkeypatch.setattr(patches, "_LARGEST_AT_ONCE", largest)
    patches.take_logsumexp_at_once()
    ours = functional.logprobs_from_logits_v2
    patches.take_logsumexp_at_once()
    assert functional.logprobs_from_logits_v2 is ours is not theirs
    generator = torch.Generator().manual_seed(2)
    logits = 5 * torch.randn(*shape, generator=generator)
    labels = torch.randint(0, shape[-1], shape[:-1], generator=generator)
    for dtype in (torch.float32, torch.float64):
        found = []
        for take in (theirs, ours):
            given = logits.to(dtype, copy=True).requires_grad_(True)
            taken = take(given, labels)
            taken.float().square().sum().backward()
            found.append((taken.detach(), given.grad))
        assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1]), dtype


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.unfreeze()
    gc.set_threshold(*before)


def test_the_queue_is_patched_once_by_whoever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "TransferQueueController", Controller)
    monkeypatch.setattr(interface, "ray", interface.ray)
    monkeypatch.setattr(Controller, "asked", ())
    patches.patch_transfer_queue_namespace("slot-queue")
    first = interface.TransferQueueController
    patches.patch_transfer_queue_namespace("slot-queue")
    assert interface.TransferQueueController is first
    first.options(name="TransferQueueController", namespace="transfer_queue")
    assert Controller.asked == ({"name": "TransferQueueController", "namespace": "slot-queue"},)


def test_garbage_is_collected_as_before_once_a_start_has_ended(thresholds: tuple[int, int, int]) -> None:
    patches.collect_garbage_rarely()
    assert gc.get_threshold()[0] > 10 * thresholds[0]
    patches.collect_garbage_as_usual()
    assert gc.get_threshold() == thresholds and gc.isenabled()
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("largest", [2**22, 250])
def test_log_probabilities_of_bfloat16_logits_are_float32_and_keep_no_copy(
    monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("verl.utils.torch_functional")
    monkeypatch.setattr(functional, "logprobs_from_logits_v2", functional.logprobs_from_logits_v2)
    monkeypatch.setattr(patches, "_LARGEST_AT_ONCE", largest)
    patches.take_logsumexp_at_once()
    generator = torch.Generator().manual_seed(2)
    logits = (5 * torch.randn(57, 100, generator=generator)).bfloat16().requires_grad_(True)
    labels = torch.randint(0, 100, (57,), generator=generator)
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda x: x):
        found = functional.logprobs_from_logits_v2(logits, labels)
    assert not any(tensor.dtype == torch.float32 and tensor.numel() > 57 for tensor in kept)
    expected = logits.detach().float().requires_grad_(True)
    right = torch.log_softmax(expected, -1).gather(-1, labels[:, None])[:, 0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-5)
    found.square().sum().backward()
    right.square().sum().backward()
    torch.testing.assert_close(logits.grad.float(), expected.grad, rtol=0.01, atol=0.01)
