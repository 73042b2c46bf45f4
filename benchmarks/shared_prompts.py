"""Actor passes that compute each prompt once, against VeRL's way, for a model and the rows of a task.

    python -m benchmarks.shared_prompts models/SmolLM2-135M-Instruct data/smollm2 [--prompts 4] [--answers 8]

Both ways alternately compute the same micro batch: the first prompts of the task, each with answers of 1 to
`--longest` random tokens. Prints one JSON line: median seconds of a pass without gradients (log-probabilities
and entropies) and with gradients (an update without the optimizer step); the ratios; the largest difference
of a log-probability; the difference of the gradients as a share of their norm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import torch
from peft import LoraConfig, get_peft_model
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmzero_ray.engines.verl.cpu.shared_prompts import share_prompts
from llmzero_ray.prepared import load_task


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="directory of the model")
    parser.add_argument("task", help="directory of the prepared task")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--answers", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--longest", type=int, default=16, help="tokens of the longest answer")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["VERL_PLATFORM"] = "cpu"
    import llmzero_ray.engines.verl.cpu.platform  # noqa: F401  before VeRL's engine asks for the device

    torch.manual_seed(1)
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
    module = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_" in name:
                parameter.mul_(0.1)  # a trained adapter is small
    batch = made_batch(options)
    shared, theirs = engine_of(module), engine_of(module)
    if not share_prompts(shared):
        raise SystemExit("this model keeps VeRL's way")
    seconds: dict[str, list[float]] = {}
    numbers: dict[str, Any] = {}
    for _ in range(options.repeats):
        for way, engine in (("verl", theirs), ("shared", shared)):
            for kind, gradients in (("forward", False), ("update", True)):
                began = time.perf_counter()
                numbers[way] = passed(engine, batch, dtype, gradients)
                seconds.setdefault(f"{way}_{kind}_s", []).append(time.perf_counter() - began)
    medians = {name: round(statistics.median(values), 2) for name, values in seconds.items()}
    ratios = {
        f"{kind}_ratio": medians[f"verl_{kind}_s"] / medians[f"shared_{kind}_s"]
        for kind in ("forward", "update")
    }
    (mine, my_gradient), (other, gradient) = numbers["shared"], numbers["verl"]
    differences = {
        "log_prob_difference": (mine - other).abs().max().item(),
        "gradient_difference": ((my_gradient - gradient).norm() / gradient.norm()).item(),
    }
    print(
        json.dumps({**medians, **{name: float(f"{v:.2g}") for name, v in {**ratios, **differences}.items()}})
    )


def made_batch(options: argparse.Namespace) -> Any:
    """Micro batch in the form that VeRL's worker receives."""
    from verl.utils import tensordict_utils as tu

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    task = load_task(options.task)
    rows = pq.read_table(task.train, columns=["prompt"]).to_pylist()[: options.prompts]
    prompts, answers = [], []
    for row in rows:
        text = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        prompt = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        for _ in range(options.answers):
            length = int(torch.randint(1, options.longest + 1, ()))
            prompts.append(prompt)
            answers.append(torch.randint(0, len(tokenizer), (length,)))
    whole = [torch.cat(parts) for parts in zip(prompts, answers, strict=True)]
    columns = {
        "input_ids": whole,
        "prompts": prompts,
        "responses": answers,
        "loss_mask": [torch.ones_like(answer) for answer in answers],
        "position_ids": [torch.arange(len(row)) for row in whole],
    }
    nested = {
        name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()
    }
    batch = TensorDict(nested, batch_size=len(whole))
    tu.assign_non_tensor(batch, use_remove_padding=False, calculate_entropy=True, temperature=1.0)
    return batch


def engine_of(module: Any) -> Any:
    """VeRL's FSDP engine with an unsharded module."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    engine = object.__new__(FSDPEngineWithLMHead)
    engine.module, engine.use_remove_padding, engine.pad_to_length = module, False, False
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False)
    return engine


def passed(engine: Any, batch: Any, dtype: Any, gradients: bool) -> tuple[Any, Any]:
    """(log-probabilities of the answers, gradient of their sum or None)."""
    from verl.workers.utils.padding import no_padding_2_padding

    lower = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    with torch.set_grad_enabled(gradients), lower:
        inputs, given = engine.prepare_model_inputs(micro_batch=batch)
        found = engine.prepare_model_outputs(
            output=engine.module(**inputs, use_cache=False),
            output_args=given,
            micro_batch=batch,
            logits_processor_func=None,
        )
        log_probs = no_padding_2_padding(found["log_probs"], batch)
    if not gradients:
        return log_probs, None
    engine.module.zero_grad()
    log_probs.sum().backward()
    trained = [p.grad.flatten() for p in engine.module.parameters() if p.grad is not None]
    return log_probs.detach(), torch.cat(trained)


if __name__ == "__main__":
    main()
