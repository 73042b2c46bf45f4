"""vLLM's LoRA operations of the CPU with a single adapter slot read through a view: the same bits."""

from __future__ import annotations

from typing import Any

import pytest

from llmzero_ray.engines.verl import patches

torch = pytest.importorskip("torch")
operations = pytest.importorskip("vllm.lora.ops.torch_ops.lora_ops")
wrapper = pytest.importorskip("vllm.lora.punica_wrapper.punica_cpu")

NAMES = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
TOKENS, HIDDEN, RANK = 37, 24, 8


@pytest.fixture
def originals(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM's own operations; the patched ones go away with the test."""
    found = {name: getattr(operations, name) for name in NAMES}
    for name in NAMES:
        monkeypatch.setattr(operations, name, found[name])
        monkeypatch.setattr(wrapper, name, found[name])
    patches.view_single_lora_slot()
    assert all(getattr(wrapper, name) is not found[name] for name in NAMES)
    return found


def both(originals: dict[str, Any], name: str, slots: int, index: int, rest: tuple[Any, ...]) -> Any:
    """(vLLM's output, the patched one's) of one operation on random numbers."""
    wide = name != "bgmv_shrink"
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(TOKENS, RANK if wide else HIDDEN, generator=generator)
    shape = (slots, 1, HIDDEN, RANK) if wide else (slots, 1, RANK, HIDDEN)
    weights = torch.randn(shape, generator=generator)
    indices = torch.full((TOKENS,), index)
    outputs = []
    for operation in (originals[name], getattr(operations, name)):
        out = torch.ones(TOKENS, HIDDEN if wide else RANK)
        operation(inputs, weights, out, indices, *rest)
        outputs.append(out)
    return outputs


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("bgmv_shrink", (0.5,)),
        ("bgmv_expand", (True,)),
        ("bgmv_expand", (False,)),
        ("bgmv_expand_slice", (0, HIDDEN, True)),
        ("bgmv_expand_slice", (0, HIDDEN, False)),
    ],
)
@pytest.mark.parametrize(("slots", "index"), [(1, 0), (1, -1), (3, 1)])
def test_the_bits_are_vllms_own(
    originals: dict[str, Any], name: str, rest: tuple[Any, ...], slots: int, index: int
) -> None:
    theirs, ours = both(originals, name, slots, index, rest)
    assert torch.equal(theirs, ours)


def test_prefill_with_several_adapters_uses_each_tokens_own(originals: dict[str, Any]) -> None:
    weights = torch.stack([torch.full((1, RANK, HIDDEN), float(slot)) for slot in range(3)])
    out = torch.zeros(5, RANK)
    lengths = torch.tensor([2, 3])
    operations.sgmv_shrink(
        torch.ones(5, HIDDEN), weights, out, torch.tensor([0, 2]), lengths, torch.tensor([1, 2]), 2, 3, 5, 1.0
    )
    assert out[:, 0].tolist() == [HIDDEN * 1.0] * 2 + [HIDDEN * 2.0] * 3


def test_a_single_slot_is_not_copied_for_every_token(originals: dict[str, Any]) -> None:
    weights = torch.randn(1, 1, HIDDEN, RANK)
    seen = patches._SingleSlot(weights)[torch.zeros(TOKENS, dtype=torch.long)]
    assert seen.shape == (TOKENS, 1, HIDDEN, RANK)
    assert seen.data_ptr() == weights.data_ptr() and seen.stride(0) == 0


def test_patching_twice_changes_nothing_more(originals: dict[str, Any]) -> None:
    once = [getattr(operations, name) for name in NAMES]
    patches.view_single_lora_slot()
    assert [getattr(operations, name) for name in NAMES] == once
