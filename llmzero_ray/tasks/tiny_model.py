"""Make a tiny Qwen3 from scratch: 616,512 parameters, one token per character, a two-word chat template.

Everything that loads it (transformers, PEFT, VeRL's FSDP worker, vLLM) treats it as any other model. Needs
torch and transformers, imported when called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAD, START, END, UNKNOWN = "<|pad|>", "<|im_start|>", "<|im_end|>", "<unk>"
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}:{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a:{% endif %}"
)
SHAPE: dict[str, int] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}


def make_tokenizer() -> Any:
    """A transformers tokenizer: the printable ASCII characters and four special tokens, 100 in all."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([PAD, START, END, UNKNOWN, *CHARACTERS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[START],
        model_max_length=SHAPE["max_position_embeddings"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: Any, seed: int) -> Any:
    """Untrained float32 `Qwen3ForCausalLM` for this tokenizer. The caller's random state does not change."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokens = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer), tie_word_embeddings=False, bos_token_id=None, **tokens, **SHAPE
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config.update(**tokens)
    return model


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write weights (safetensors), configuration, generation configuration and tokenizer.

    Raises:
        OSError: the directory cannot be written.
    """
    from safetensors import SafetensorError

    try:
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    for path in directory.iterdir():
        # safetensors lets only its own user read, but a cluster's nodes may run as another one.
        path.chmod((directory / "config.json").stat().st_mode)


def chat_prompt(tokenizer: Any, prompt: str) -> str:
    """Text that the model reads for a user's prompt, up to the start of its answer."""
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    return text


def longest(tokenizer: Any, texts: Sequence[str]) -> int:
    """Tokens of the longest of some texts."""
    return max(len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"])
