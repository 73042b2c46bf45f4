"""Answers of a model must be able to end: the files of published models pass, damaged ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import check_model_dir
from tests.tasks.builders import write_model

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
GLM = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
BARE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
QWEN = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
LLAMA_TOKENS = {
    "<|begin_of_text|>": 128000,
    "<|end_of_text|>": 128001,
    "<|eom_id|>": 128008,
    "<|eot_id|>": 128009,
}
LLAMA_TOKENS |= {"<|start_header_id|>": 128006, "<|end_header_id|>": 128007}
PHI_TOKENS = {"<|endoftext|>": 32000, "<|assistant|>": 32001, "<|end|>": 32007, "<|user|>": 32010}


def model(
    directory: Path,
    template: str = CHATML,
    tokens: dict[str, int] = QWEN,
    eos: Any = "<|im_end|>",
    config: Any = None,
    generation: Any = None,
    **settings: Any,
) -> Path:
    """A directory whose files name these end tokens; None: the file does not."""
    write_model(directory)
    added = [{"id": id_, "content": text, "special": True} for text, id_ in tokens.items()]
    named = {"chat_template": template, "eos_token": eos, "bos_token": next(iter(tokens)), **settings}
    files: dict[str, Any] = {
        "tokenizer.json": {"added_tokens": added, "model": {"vocab": {"a": 0, "b": 1, "end": 2}}},
        "tokenizer_config.json": named,
        "config.json": {"model_type": "qwen3"} | ({} if config is None else {"eos_token_id": config}),
    }
    if generation is not None:
        files["generation_config.json"] = {"eos_token_id": generation}
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    "made",
    [
        pytest.param({"config": 151645, "generation": [151645, 151643]}, id="Qwen2.5-Instruct"),
        pytest.param(
            {"eos": {"content": "<|im_end|>", "special": True}, "config": 151645}, id="no generation"
        ),
        pytest.param({}, id="the tokenizer alone"),
        pytest.param(
            {"template": LLAMA, "tokens": LLAMA_TOKENS, "eos": "<|eot_id|>"}
            | {"config": [128001, 128008, 128009], "generation": [128001, 128008, 128009]},
            id="Llama-3.1-Instruct",
        ),
        pytest.param(
            {"template": GEMMA, "tokens": {"<bos>": 2, "<eos>": 1, "<end_of_turn>": 106}, "eos": "<eos>"}
            | {"config": [1, 106], "generation": [1, 106]},
            id="gemma-3-it",
        ),
        pytest.param(
            {"template": PHI, "tokens": PHI_TOKENS, "eos": "<|endoftext|>"}
            | {"config": 32000, "generation": [32000, 32001, 32007]},
            id="Phi-3-mini",
        ),
        pytest.param(
            {
                "tokens": {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2},
                "config": 2,
                "generation": 2,
            },
            id="SmolLM2-Instruct",
        ),
        pytest.param(
            {
                "template": MISTRAL,
                "tokens": {"<s>": 1, "</s>": 2},
                "eos": "</s>",
                "config": 2,
                "generation": 2,
            },
            id="Mistral",
        ),
        pytest.param(
            {"template": GLM, "tokens": {"<|endoftext|>": 1, "<|user|>": 2, "<|assistant|>": 3}}
            | {"eos": "<|endoftext|>", "config": [1, 2], "generation": [1, 2]},
            id="GLM-4",
        ),
        pytest.param(
            {
                "config": 151645,
                "template": CHATML.replace(
                    "{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}"
                ),
            },
            id="tags of transformers",
        ),
        pytest.param(
            {
                "config": 151645,
                "template": [{"name": "tool_use", "template": BARE}, {"name": "default", "template": CHATML}],
            },
            id="several templates",
        ),
    ],
)
def test_the_files_of_published_instruct_models_are_fine(tmp_path: Path, made: dict[str, Any]) -> None:
    assert check_model_dir(model(tmp_path / "model", **made)) == ()


@pytest.mark.parametrize(
    ("made", "note"),
    [
        pytest.param(
            {"eos": "<|endoftext|>", "config": 151643, "generation": 151643},
            "stops at <|endoftext|> (151643), and the chat template ends answers with <|im_end|> (151645)",
            id="Qwen2.5 base",
        ),
        pytest.param(
            {"template": GEMMA, "tokens": {"<bos>": 2, "<eos>": 1, "<end_of_turn>": 107}}
            | {"eos": "<eos>", "config": 1, "generation": 1},
            "add 107 to eos_token_id in generation_config.json",
            id="gemma-1",
        ),
        pytest.param(
            {"config": 151643, "generation": 151645},
            "the engine stops at <|im_end|> (151645)",
            id="old config",
        ),
        pytest.param(
            {"config": 151645, "generation": 151643},
            "the files name different end tokens: tokenizer_config.json <|im_end|> (151645), "
            "generation_config.json <|endoftext|> (151643)",
            id="dolphin",
        ),
        pytest.param(
            {"template": BARE, "eos": "<|endoftext|>"}, "ends answers with no end token", id="GPT-2 in a chat"
        ),
        pytest.param({"eos": None}, "no file names an end token", id="none named"),
        pytest.param(
            {"template": "{{ raise_exception('no') }}"}, "fails on a question with an answer", id="fails"
        ),
        pytest.param(
            {"template": "{{ messages.x.y }}"}, "fails on a question with an answer", id="undefined"
        ),
    ],
)
def test_what_is_odd_but_may_be_meant_is_said(tmp_path: Path, made: dict[str, Any], note: str) -> None:
    assert any(note in said for said in check_model_dir(model(tmp_path / "model", **made)))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"config": 0, "generation": 0}, "the files name different end tokens"),
        ({"config": 151645, "generation": 0}, "into eos_token_id of generation_config.json, or"),
        ({"config": 0, "generation": 151645}, "into eos_token_id of config.json, or"),
        ({"config": [0, 1], "generation": [151645, 151643]}, "config.json 0, 1; put <|im_end|> (151645)"),
        ({"config": 999999}, "config.json 999999"),
        ({"eos": "<|im_start|>", "config": 151644, "generation": 151644}, "add 151645 to eos_token_id"),
        (
            {"eos": "end", "config": 2, "generation": 2},
            "stops at end (2), and the chat template ends answers",
        ),
        ({"template": BARE, "config": 151645}, "have the template write the end token after an answer"),
        (
            {"eos": "<|end|>", "config": 151645},
            "names the end token '<|end|>', which tokenizer.json does not",
        ),
        ({"eos": None, "tokenizer_class": "PreTrainedTokenizerFast"}, "no file names an end token"),
        ({"template": "{% for m in messages %}"}, "the chat template is not valid"),
    ],
)
def test_answers_that_would_never_end_are_refused(tmp_path: Path, made: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        check_model_dir(model(tmp_path / "model", **made))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_strangers_template_reaches_nothing_outside_itself(tmp_path: Path) -> None:
    reach = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    assert "fails" in check_model_dir(model(tmp_path / "model", template=reach))[0]


def test_the_end_token_may_stand_in_the_older_file_of_special_tokens(tmp_path: Path) -> None:
    directory = model(tmp_path / "model", config=0)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "special_tokens_map.json").write_text(json.dumps({"eos_token": settings.pop("eos_token")}))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(TaskError, match="different end tokens"):
        check_model_dir(directory)


def test_an_older_tokenizer_names_its_tokens_in_its_configuration(tmp_path: Path) -> None:
    directory = model(tmp_path / "model", config=0)
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.model").write_text("x")
    assert check_model_dir(directory) == ()  # ids are not known
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {"151645": {"content": "<|im_end|>", "special": True}}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(TaskError, match="different end tokens"):
        check_model_dir(directory)
