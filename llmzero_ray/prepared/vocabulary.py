"""Check that the tokenizer, the configuration and the weights of a model agree on its vocabulary.

A configuration may name more tokens than the tokenizer has; many models pad their embedding. Not here: which
tokens end answers (end_tokens.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.end_tokens import EndTokens, TokenFiles, is_id, rendered, token_text

_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head"


def check_vocabulary(files: TokenFiles, shapes: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Return a note if the padding token lies outside the vocabulary. `shapes` are those of the weights, as
    far as they are known.

    Raises:
        TaskError: the embedding has another size, the output layer is missing, or prompts need tokens outside
            the vocabulary.
    """
    config, text_config = files.directory / "config.json", files.config.get("text_config")
    size = (text_config if isinstance(text_config, dict) else files.config).get("vocab_size")
    if not is_id(size):
        return ()
    _check_weights(files, shapes, size)
    tokens, vocab = EndTokens(files), files.vocab
    largest = max((id_ for text, id_ in vocab.items() if text not in tokens.special), default=-1)
    outside = {text: id_ for text, id_ in tokens.special.items() if id_ >= size}
    needed = [f"the token {largest} of tokenizer.json"] if largest >= size else []
    needed += [
        f"{text} ({id_}), which chats hold" for text, id_ in outside.items() if _is_written(text, files)
    ]
    pad_id = files.config.get("pad_token_id")
    needed += [f"pad_token_id {pad_id}"] if is_id(pad_id) and pad_id >= size else []
    if needed:
        raise TaskError(
            f"{config}: outside the vocabulary of {size} tokens (vocab_size) lies {', '.join(needed)}. Use "
            "the files that belong to the model, or resize its embedding: "
            "model.resize_token_embeddings(len(tokenizer))"
        )
    pad = token_text(files.settings.get("pad_token"))
    if pad is None or not vocab:
        return ()
    known = {**vocab, **tokens.special}
    at = known.get(pad, 1 + max(known.values()))  # transformers adds an unknown one
    if at < size:
        return ()
    return (
        f"{files.directory}: the padding token {pad} ({at}) lies outside the vocabulary of {size} tokens, so "
        "that padded rows fail without use_remove_padding; set pad_token in tokenizer_config.json to the end "
        "token",
    )


def _check_weights(files: TokenFiles, shapes: Mapping[str, Sequence[int]], size: int) -> None:
    """Check the embedding and the output layer of a model with the usual names."""
    if not shapes.get(_EMBEDDING):
        return
    n_rows = shapes[_EMBEDDING][0]
    if n_rows != size:
        raise TaskError(
            f"{files.directory}: {_EMBEDDING} has {n_rows} rows, and config.json names a vocabulary of "
            f"{size} tokens (vocab_size): the files are of different models. Copy or download the model again"
        )
    if files.config.get("tie_word_embeddings") is False and not any(_OUTPUT in name for name in shapes):
        raise TaskError(
            f"{files.directory}: the weights hold no {_OUTPUT}.weight, and tie_word_embeddings is false in "
            "config.json, so that the output layer would be random. Set it to true if the model uses its "
            "embedding there too, otherwise copy or download the model again"
        )


def _is_written(text: str, files: TokenFiles) -> bool:
    """Whether the chat template writes a token into a chat, or it is the end token."""
    if text == token_text(files.settings.get("eos_token")):
        return True
    with contextlib.suppress(Exception):  # a template that fails is check_end_tokens' to report
        return files.template is not None and any(text in chat for chat in rendered(files))
    return False
