"""vLLM's LoRA operations of the CPU with a single adapter slot: one product for all tokens."""

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
    patches.multiply_by_single_lora_slot()
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
        out = torch.ones(TOKENS, 2 * HIDDEN if wide else RANK)
        operation(inputs, weights, out, indices, *rest)
        outputs.append(out)
    return outputs


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("bgmv_shrink", ()),
        ("bgmv_shrink", (0.5,)),
        ("bgmv_expand", (True,)),
        ("bgmv_expand", (False,)),
        ("bgmv_expand_slice", (0, HIDDEN, True)),
        ("bgmv_expand_slice", (HIDDEN // 2, HIDDEN, True)),
        ("bgmv_expand_slice", (HIDDEN, HIDDEN, False)),
    ],
)
@pytest.mark.parametrize(("slots", "index"), [(1, 0), (1, -1), (3, 1)])
def test_the_numbers_are_vllms_own(
    originals: dict[str, Any], name: str, rest: tuple[Any, ...], slots: int, index: int
) -> None:
    theirs, ours = both(originals, name, slots, index, rest)
    assert not torch.equal(theirs, torch.ones_like(theirs))
    if slots > 1:
        assert torch.equal(theirs, ours)
    assert torch.allclose(theirs, ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("k", "n"), [(128, 8), (384, 8), (8, 64), (8, 128), (8, 384), (HIDDEN, RANK)])
def test_what_a_token_gets_does_not_depend_on_the_tokens_beside_it(
    originals: dict[str, Any], k: int, n: int
) -> None:
    """vLLM puts requests into steps as they arrive: otherwise the same phase would not give the same bits."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(300, k, generator=generator)
    weights = torch.randn(1, 1, n, k, generator=generator)

    def products(tokens: Any) -> Any:
        out = torch.zeros(len(tokens), n)
        operations.bgmv_shrink(tokens, weights, out, torch.zeros(len(tokens), dtype=torch.long))
        return out

    whole = products(inputs)
    for size in (*range(1, 70), 127, 128, 129, 255, 299):
        assert torch.equal(products(inputs[:size]), whole[:size]), size
        assert torch.equal(products(inputs[300 - size :]), whole[300 - size :]), size


def test_prefill_with_several_adapters_uses_each_tokens_own(originals: dict[str, Any]) -> None:
    weights = torch.stack([torch.full((1, RANK, HIDDEN), float(slot)) for slot in range(3)])
    out = torch.zeros(5, RANK)
    lengths = torch.tensor([2, 3])
    operations.sgmv_shrink(
        torch.ones(5, HIDDEN), weights, out, torch.tensor([0, 2]), lengths, torch.tensor([1, 2]), 2, 3, 5, 1.0
    )
    assert out[:, 0].tolist() == [HIDDEN * 1.0] * 2 + [HIDDEN * 2.0] * 3


def test_patching_twice_changes_nothing_more(originals: dict[str, Any]) -> None:
    once = [getattr(operations, name) for name in NAMES]
    patches.multiply_by_single_lora_slot()
    assert [getattr(operations, name) for name in NAMES] == once
