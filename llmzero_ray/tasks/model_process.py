"""Makes and trains a tiny model in a child process.

Torch's threads spin while they wait for each other, unless `OMP_WAIT_POLICY` is set before torch is loaded:
next to another such program on the same two cores, a warm start of 5 s took 447 s. Training therefore runs in
a process that starts with the right environment, and the caller need not load torch. The request is sent to
its standard input, and reports are returned as JSON lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import Problem, WarmStart
from llmzero_ray.utils.api_key import without_secrets

_N_THREADS = "2"
"""Fixed instead of the machine's number, because torch's sums depend on the number of threads."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": _N_THREADS,
    "MKL_NUM_THREADS": _N_THREADS,
    "OMP_WAIT_POLICY": "PASSIVE",
    # The model is created and saved locally: no hub access is needed.
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_STDERR_TAIL = 2000
_MAX_MICRO_BATCH = 32
"""Largest micro-batch, in responses. Batches are cut by length, which saves half of the padding."""

OnStep = Callable[[int, float], None]
"""Called after every training step with its number, counted from 1, and its mean loss per response token."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """Which model to make, and the data to train and evaluate it on."""

    directory: str
    """Directory in which to save it; must not exist."""
    seed: int
    warm_start: WarmStart
    demonstrations: tuple[tuple[str, str], ...]
    """(prompt, response) to imitate."""
    problems: tuple[Problem, ...]
    """Problems on which greedy accuracy is measured."""
    prompts: tuple[str, ...]
    """All prompts of the task, to find the longest one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeModel:
    """Result of the training."""

    params: int
    greedy_accuracy: float
    max_prompt_tokens: int
    max_answer_tokens: int


def make_model_in_process(request: ModelRequest, on_step: OnStep) -> MadeModel:
    """Make, train, evaluate and save a tiny model.

    Raises:
        TaskError: torch, transformers or accelerate are missing, or the process died.
        OSError: the model cannot be written.
    """
    package_root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "llmzero_ray.tasks.model_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**without_secrets(os.environ), **_ENVIRONMENT, "PYTHONPATH": path},
        ) as process,
    ):
        try:
            return _read_reports(process, request, on_step, errors)
        finally:
            process.kill()


def _read_reports(
    process: subprocess.Popen[str], request: ModelRequest, on_step: OnStep, errors: IO[str]
) -> MadeModel:
    assert process.stdin is not None and process.stdout is not None
    # A process that dies here leaves the reason on standard error, see below.
    with contextlib.suppress(BrokenPipeError), process.stdin:
        json.dump(dataclasses.asdict(request), process.stdin)
    for line in process.stdout:
        report = json.loads(line)
        if "step" in report:
            on_step(report["step"], report["loss"])
        elif "made" in report:
            return MadeModel(**report["made"])
        elif "unwritable" in report:
            raise OSError(report["errno"], report["unwritable"])
        elif "missing" in report:
            raise TaskError(
                "making the tiny model needs torch, transformers and accelerate, which cannot be imported "
                f"here ({report['missing']}); install them: pip install 'llmzero-ray[train]', or give a "
                "model directory of your own as model.path"
            )
    errors.seek(0)
    raise TaskError(
        f"the process that makes the tiny model ended with code {process.wait()} before it was done; its "
        f"last words: {errors.read()[-_STDERR_TAIL:].strip() or 'none'}"
    )


def main() -> None:
    """Serve one request: standard input to standard output."""
    # Libraries print to standard output, which carries the reports: their lines go to standard error instead.
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    body = json.load(sys.stdin)
    request = ModelRequest(
        **{
            **body,
            "warm_start": WarmStart(**body["warm_start"]),
            "problems": tuple(Problem(**problem) for problem in body["problems"]),
        }
    )
    try:
        made = _make(request, lambda step, loss: _report(reports, {"step": step, "loss": loss}))
    except ImportError as error:
        _report(reports, {"missing": str(error)})
    except OSError as error:
        _report(reports, {"unwritable": error.strerror or str(error), "errno": error.errno})
    else:
        _report(reports, {"made": dataclasses.asdict(made)})


def _report(reports: IO[str], report: Mapping[str, Any]) -> None:
    # If the caller is gone, this pipe breaks, which ends the training.
    reports.write(json.dumps(report) + "\n")
    reports.flush()


def _make(request: ModelRequest, on_step: OnStep) -> MadeModel:
    # First, because transformers without torch fails later and with unclear errors.
    import torch  # noqa: F401

    from llmzero_ray.tasks import tiny_model
    from llmzero_ray.tasks.greedy_accuracy import greedy_accuracy
    from llmzero_ray.tasks.sft.examples import EncodedExamples, encode
    from llmzero_ray.tasks.sft.trainer import SftTrainer, StepCallback

    tokenizer = tiny_model.make_tokenizer()
    model = tiny_model.make_model(tokenizer, request.seed)
    shown = [([{"role": "user", "content": prompt}], response) for prompt, response in request.demonstrations]
    with tempfile.TemporaryDirectory() as unused:
        trainer = SftTrainer(
            model,
            _arguments(request, Path(unused)),
            EncodedExamples(encode(tokenizer, shown)),
            pad=tokenizer.pad_token_id,
            callbacks=[StepCallback(on_step)],
        )
        trainer.train()
    model.eval()
    prompts = [tiny_model.chat_prompt(tokenizer, prompt) for prompt in request.prompts]
    longest = tiny_model.longest(
        tokenizer, [response + tiny_model.END for _, response in request.demonstrations]
    )
    accuracy = greedy_accuracy(model, tokenizer, request.problems, longest)
    tiny_model.save(model, tokenizer, Path(request.directory))
    return MadeModel(
        params=model.num_parameters(),
        greedy_accuracy=accuracy,
        max_prompt_tokens=tiny_model.longest(tokenizer, prompts),
        max_answer_tokens=longest,
    )


def _arguments(request: ModelRequest, directory: Path) -> Any:
    """Training settings from the family's numbers, with the largest micro-batch that divides the batch."""
    from llmzero_ray.tasks.sft.trainer import training_arguments

    plan = request.warm_start
    sizes = [size for size in range(1, _MAX_MICRO_BATCH + 1) if plan.batch_size % size == 0]
    return training_arguments(
        directory,
        n_steps=plan.n_steps,
        batch_size=plan.batch_size,
        micro_batch_size=max(sizes),
        final_lr_share=plan.final_lr_share,
        warmup_steps=plan.warmup_steps,
        learning_rate=plan.lr,
        weight_decay=plan.weight_decay,
        seed=request.seed,
        data_seed=request.seed,
        use_cpu=True,
        save_strategy="no",
    )


if __name__ == "__main__":
    main()
