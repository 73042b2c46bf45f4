"""Passes that compute a prompt once give VeRL's numbers and gradients, or VeRL's way remains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")
from peft import LoraConfig, get_peft_model  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.utils.padding import no_padding_2_padding  # noqa: E402

from benchmarks.shared_prompts import engine_of  # noqa: E402
from llmzero_ray.engines.verl.cpu.shared_prompts import share_prompts  # noqa: E402
from llmzero_ray.tasks import tiny_model  # noqa: E402

SEVEN, FIVE = [7, 8, 9, 10, 11, 12, 13], [21, 22, 23, 24, 25]
SHARED = [(SEVEN, 3), (SEVEN, 6), (FIVE, 1), (SEVEN, 1), (FIVE, 4)]
"""Prompt and length of the answer of each sequence."""


def jagged(rows: list[Any]) -> Any:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch_of(sequences: list[tuple[list[int], int]]) -> Any:
    torch.manual_seed(2)
    answers = [torch.randint(1, 100, (n,)) for _, n in sequences]
    prompts = [torch.tensor(prompt) for prompt, _ in sequences]
    whole = [torch.cat(parts) for parts in zip(prompts, answers, strict=True)]
    columns = {
        "input_ids": jagged(whole),
        "prompts": jagged(prompts),
        "responses": jagged(answers),
        "loss_mask": jagged([torch.ones_like(answer) for answer in answers]),
        "position_ids": jagged([torch.arange(len(row)) for row in whole]),
    }
    batch = TensorDict(columns, batch_size=len(sequences))
    temperatures = 0.5 + torch.arange(len(sequences)) / 4
    tu.assign_non_tensor(batch, use_remove_padding=False, calculate_entropy=True)
    batch["temperature"] = temperatures
    return batch


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(1)
    model = tiny_model.make_model(tiny_model.make_tokenizer(), seed=1)
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))


def passed(engine: Any, batch: Any) -> tuple[torch.Size, list[Any]]:
    """(shape of the logits, log-probabilities, entropies and gradients of a pass)."""
    module = engine.module
    inputs, given = engine.prepare_model_inputs(micro_batch=batch)
    output = module(**inputs)
    shape = output.logits.shape
    found = engine.prepare_model_outputs(
        output=output, output_args=given, micro_batch=batch, logits_processor_func=None
    )
    numbers = [no_padding_2_padding(found[name], batch) for name in ("log_probs", "entropy")]
    module.zero_grad()
    (numbers[0] * torch.arange(1, len(batch) + 1)[:, None]).sum().backward()
    return shape, [*numbers, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def test_a_prompt_computed_once_gives_verls_numbers_and_gradients(module: Any) -> None:
    batch = batch_of(SHARED)
    plain, theirs = passed(engine_of(module), batch)
    engine = engine_of(module)
    assert share_prompts(engine, at_least=100)
    shape, ours = passed(engine, batch)
    assert plain[:2] == (5, 13)
    assert shape[:2] == (2, 1 + 10)  # the prompt's last token, and 10 tokens of three answers
    assert len(ours) == len(theirs) > 10
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "sequences", [[(FIVE, 60), (FIVE, 60), (FIVE, 60)], [(SEVEN, 3), (FIVE, 3)]], ids=["long", "unlike"]
)
def test_where_sharing_costs_more_verls_way_remains(module: Any, sequences: list[Any]) -> None:
    engine = engine_of(module)
    assert share_prompts(engine, at_least=100)
    batch = batch_of(sequences)
    assert passed(engine, batch)[0] == passed(engine_of(module), batch)[0]


def test_a_window_shorter_than_the_sequences_is_kept(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, batch = engine_of(module), batch_of(SHARED)
    assert share_prompts(engine, at_least=100)
    for window, rows in ((13, 2), (12, 5)):
        monkeypatch.setattr(module.get_base_model().config, "sliding_window", window)
        assert passed(engine, batch)[0][0] == rows


def _without_mask(inputs: dict[str, Any]) -> None:
    inputs["attention_mask"] = None


def _without_positions(inputs: dict[str, Any]) -> None:
    inputs.pop("position_ids", None)


def _refusing(inputs: dict[str, Any]) -> None:
    if inputs.get("attention_mask") is not None:
        raise ValueError("this model makes its masks itself")


@pytest.mark.parametrize("spoil", [_without_mask, _without_positions, _refusing])
def test_a_model_that_makes_its_own_masks_or_positions_keeps_verls_way(
    module: Any, spoil: Callable[[dict[str, Any]], None]
) -> None:
    base = module.get_base_model()

    def hook(_: Any, args: Any, inputs: dict[str, Any]) -> Any:
        spoil(inputs)
        return args, inputs

    handle = base.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        engine = engine_of(module)
        assert not share_prompts(engine, at_least=100)
    finally:
        handle.remove()
    assert "prepare_model_inputs" not in vars(engine)


def test_packed_sequences_and_small_vocabularies_keep_verls_way(module: Any) -> None:
    engine = engine_of(module)
    assert not share_prompts(engine)
    engine.use_remove_padding = True
    assert not share_prompts(engine, at_least=100)
