"""Make a warm-started tiny model in a process of its own.

Torch's threads spin while they wait for each other, unless told otherwise before torch is loaded. Beside
another such program on the same two cores a warm start of 5 s then took 447 s. So the process that trains
gets the right environment at its birth, and the caller need not load torch. A request goes to its standard
input, reports come back as JSON lines.

Not here: how the model is taught (warm_start.py), what a task consists of (making.py).
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
from llmzero_ray.tasks.families import Problem, WarmStart

_N_THREADS = "2"
"""Fixed, not the machine's number: torch's sums depend on how many threads share them."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": _N_THREADS,
    "MKL_NUM_THREADS": _N_THREADS,
    "OMP_WAIT_POLICY": "PASSIVE",
    # The model is made here and saved here: nothing to ask anybody.
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_STDERR_TAIL = 2000

OnStep = Callable[[int, float], None]
"""Hears every training step, counted from 1, and its mean loss per response token."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """Which model to make, and on what to teach and measure it."""

    directory: str
    """Where to save it; must not exist."""
    seed: int
    warm_start: WarmStart
    demonstrations: tuple[tuple[str, str], ...]
    """(prompt, response) to imitate."""
    problems: tuple[Problem, ...]
    """To measure greedy accuracy on."""
    prompts: tuple[str, ...]
    """Every prompt of the task, for the longest one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeModel:
    """What came out."""

    params: int
    greedy_accuracy: float
    max_prompt_tokens: int
    max_answer_tokens: int


def make_model_in_process(request: ModelRequest, on_step: OnStep) -> MadeModel:
    """Make, teach, measure and save a tiny model.

    Raises:
        TaskError: torch or transformers are missing, or the process died.
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
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": path},
        ) as process,
    ):
        try:
            return _converse(process, request, on_step, errors)
        finally:
            process.kill()


def _converse(
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
                "making the tiny model needs torch and transformers, which cannot be imported here "
                f"({report['missing']}); install them: pip install 'llmzero-ray[verl]', or give a model "
                "directory of your own as model.path"
            )
    errors.seek(0)
    raise TaskError(
        f"the process that makes the tiny model ended with code {process.wait()} before it was done; its "
        f"last words: {errors.read()[-_STDERR_TAIL:].strip() or 'none'}"
    )


def main() -> None:
    """Serve one request: standard input to standard output."""
    body = json.load(sys.stdin)
    request = ModelRequest(
        **{
            **body,
            "warm_start": WarmStart(**body["warm_start"]),
            "problems": tuple(Problem(**problem) for problem in body["problems"]),
        }
    )
    try:
        made = _make(request)
    except ImportError as error:
        _report({"missing": str(error)})
    except OSError as error:
        _report({"unwritable": error.strerror or str(error), "errno": error.errno})
    else:
        _report({"made": dataclasses.asdict(made)})


def _report(report: Mapping[str, Any]) -> None:
    # A caller that has gone away breaks this pipe, and so ends the training.
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def _make(request: ModelRequest) -> MadeModel:
    # First, because transformers without torch fails later and in stranger ways.
    import torch  # noqa: F401

    from llmzero_ray.tasks import quality, tiny_model, warm_start

    tokenizer = tiny_model.make_tokenizer()
    model = tiny_model.make_model(tokenizer, request.seed)
    plan, seed = request.warm_start, request.seed
    warm_start.teach(
        model,
        tokenizer,
        request.demonstrations,
        plan,
        seed,
        lambda step, loss: _report({"step": step, "loss": loss}),
    )
    prompts = [tiny_model.chat_prompt(tokenizer, prompt) for prompt in request.prompts]
    longest = tiny_model.longest(
        tokenizer, [response + tiny_model.END for _, response in request.demonstrations]
    )
    accuracy = quality.greedy_accuracy(model, tokenizer, request.problems, longest)
    tiny_model.save(model, tokenizer, Path(request.directory))
    return MadeModel(
        params=model.num_parameters(),
        greedy_accuracy=accuracy,
        max_prompt_tokens=tiny_model.longest(tokenizer, prompts),
        max_answer_tokens=longest,
    )


if __name__ == "__main__":
    main()
