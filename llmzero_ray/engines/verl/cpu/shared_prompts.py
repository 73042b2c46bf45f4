"""Forward passes of VeRL's actor that compute a prompt once for all its answers.

GRPO samples several answers to each prompt, and VeRL computes the prompt again with each of them. On a CPU,
with short answers and a real vocabulary, most of a pass is wasted on repeated prompts, padding, and the
logits of prompts, which nothing reads.

Here one row holds a prompt and its answers, tightly packed:

    tokens     [padding] p1 p2 p3 | a1 a2 | b1 b2 b3 | c1   [padding]
    positions                0  1  2 |  3  4 |  3  4  5 |  3

An answer attends to the prompt and to itself. Results equal VeRL's up to rounding: sums have the same terms
in a different order.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

LARGE_VOCABULARY = 2**12
"""Size of the vocabulary below which VeRL's own passes are as fast."""
_ROUNDING = 0.02
"""Maximum mean difference of log-probabilities due to rounding, as a share of their standard deviation.
Measured: below 0.00001 in float32, 0 in bfloat16; 0.12 and more with a wrong mask or position."""


def share_prompts(engine: Any, at_least: int = LARGE_VOCABULARY) -> bool:
    """Make VeRL's FSDP engine compute each prompt of a micro batch once. Returns whether it does.

    Log-probabilities and entropies of prompt tokens are 0; VeRL computes them, but nothing reads them. VeRL's
    own passes are kept for packed sequences, for a vocabulary below `at_least`, for a model that does not
    support custom masks (found by a trial pass), and for batches where sharing would cost more.
    """
    if engine.use_remove_padding or not _takes_masks(engine.module, at_least):
        return False
    config = _base(engine.module).config.get_text_config()
    make_inputs, make_outputs = engine.prepare_model_inputs, engine.prepare_model_outputs

    def prepare_model_inputs(micro_batch: Any) -> Any:
        inputs, given = make_inputs(micro_batch=micro_batch)
        packed = Packed.of(micro_batch)
        if packed is None or not packed.pays(config):
            return inputs, given
        return {**inputs, **packed.inputs}, {**given, "packed": packed}

    def prepare_model_outputs(
        output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> Any:
        packed: Packed | None = output_args.get("packed")
        if packed is None:
            return make_outputs(
                output=output,
                output_args=output_args,
                micro_batch=micro_batch,
                logits_processor_func=logits_processor_func,
            )
        ids = micro_batch["input_ids"]
        answers = micro_batch.copy()
        answers["input_ids"] = _jagged(
            [row[first:] for row, first in zip(ids.unbind(), packed.first, strict=True)]
        )
        rolled = output_args["input_ids_rmpad_rolled"].split(ids.offsets().diff().tolist())
        labels = [row[first:] for row, first in zip(rolled, packed.first, strict=True)]
        output.logits = output.logits[packed.row_of[:, None], packed.logit_of]
        found = make_outputs(
            output=output,
            output_args={**output_args, "input_ids_rmpad_rolled": torch.cat(labels)},
            micro_batch=answers,
            logits_processor_func=logits_processor_func,
        )
        return {name: _with_prompts(value, packed.first, ids.offsets()) for name, value in found.items()}

    engine.prepare_model_inputs, engine.prepare_model_outputs = prepare_model_inputs, prepare_model_outputs
    return True


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Micro batch with one row per prompt."""

    inputs: dict[str, Any]
    """Keyword arguments for the model."""
    first: list[int]
    """For each sequence, the index of its prompt's last token, whose logits are the first that are read."""
    row_of: torch.Tensor
    """Packed row of each sequence. Shape (sequences,)."""
    logit_of: torch.Tensor
    """Index into the row's logits for the prompt's last token and each answer token of a sequence. Shape
    (sequences, longest answer + 1)."""
    longest: int
    """Number of tokens of the longest sequence."""

    @classmethod
    def of(cls, batch: Any) -> Packed | None:
        """The packed batch, or None if its position ids are not those of plain text (one per token)."""
        sequences, positions = batch["input_ids"].unbind(), batch["position_ids"]
        if positions.dim() != 2:
            return None
        n_answers = batch["loss_mask"].offsets().diff().tolist()
        first = [len(row) - n - 1 for row, n in zip(sequences, n_answers, strict=True)]
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, (row, last) in enumerate(zip(sequences, first, strict=True)):
            groups.setdefault(tuple(row[: last + 1].tolist()), []).append(place)
        longest = max(map(len, groups))
        widths = [sum(n_answers[place] for place in places) for places in groups.values()]
        n_rows, width = len(groups), longest + max(widths)
        ids = torch.zeros(n_rows, width, dtype=torch.long)
        position_ids = torch.zeros(n_rows, width, dtype=torch.long)
        part = torch.full((n_rows, width), -1)  # 0 is the prompt, then the answers
        row_of = torch.zeros(len(sequences), dtype=torch.long)
        logit_of = torch.zeros(len(sequences), max(n_answers) + 1, dtype=torch.long)
        each = positions.unbind()
        for row, (prompt, places) in enumerate(groups.items()):
            start = longest - len(prompt)
            ids[row, start:longest] = torch.tensor(prompt)
            position_ids[row, start:longest] = each[places[0]][: len(prompt)]
            part[row, start:longest] = 0
            start = longest
            for number, place in enumerate(places, 1):
                end = start + n_answers[place]
                ids[row, start:end] = sequences[place][len(prompt) :]
                position_ids[row, start:end] = each[place][len(prompt) :]
                part[row, start:end] = number
                row_of[place] = row
                logit_of[place, 1 : n_answers[place] + 1] = torch.arange(start, end) - (longest - 1)
                start = end
        index = torch.arange(width)
        sees = (index[:, None] >= index) & (
            (part[:, :, None] == part[:, None, :]) | (part[:, None, :] == 0) & (part[:, :, None] > 0)
        )
        inputs = {
            "input_ids": ids,
            "attention_mask": sees[:, None],
            "position_ids": position_ids,
            "logits_to_keep": width - longest + 1,
        }
        return cls(
            inputs=inputs, first=first, row_of=row_of, logit_of=logit_of, longest=max(map(len, sequences))
        )

    def pays(self, config: Any) -> bool:
        """Whether packed rows cost less than padded sequences. A packed row computes attention over all
        answers to its prompt and masks most of it, which is expensive if answers are long."""
        window = getattr(config, "sliding_window", None)
        if window is not None and self.longest > window:
            return False

        def cost(n_rows: int, width: int) -> int:  # linear layers plus attention
            return n_rows * width * (6 * int(config.hidden_size) + width)

        return cost(*self.inputs["input_ids"].shape) < cost(len(self.first), self.longest)


def _takes_masks(module: Any, at_least: int) -> bool:
    """Whether the model computes the same log-probabilities for a sequence in a packed row as alone."""
    base = _base(module)
    takes_count = "logits_to_keep" in inspect.signature(base.forward).parameters
    if not takes_count or base.config.get_text_config().vocab_size < at_least:
        return False
    prompt, answers = [3, 5, 7, 9], ([11, 13], [17, 19, 23])
    alone = [torch.tensor([prompt + answer]) for answer in answers]
    batch = {
        "input_ids": _jagged([row[0] for row in alone]),
        "position_ids": _jagged([torch.arange(row.shape[1]) for row in alone]),
        "loss_mask": _jagged([torch.tensor(answer) for answer in answers]),
    }
    packed = Packed.of(batch)
    assert packed is not None
    with torch.no_grad():
        try:
            together = module(**packed.inputs, use_cache=False).logits.float().log_softmax(-1)
        except (ValueError, TypeError, RuntimeError):
            return False
        for number, row in enumerate(alone):
            wanted = (
                module(input_ids=row, use_cache=False).logits[0, len(prompt) - 1 :].float().log_softmax(-1)
            )
            got = together[packed.row_of[number], packed.logit_of[number, : len(answers[number]) + 1]]
            if not (got - wanted).abs().mean() <= _ROUNDING * wanted.std():  # also True for nan
                return False
    return True


def _base(module: Any) -> Any:
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def _jagged(rows: list[Any]) -> Any:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _with_prompts(value: Any, first: list[int], offsets: Any) -> Any:
    """`value` with a 0 inserted for each token before `first`."""
    rows = [torch.nn.functional.pad(row, (n, 0)) for row, n in zip(value.unbind(), first, strict=True)]
    return torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets)
