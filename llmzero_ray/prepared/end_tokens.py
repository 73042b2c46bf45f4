"""Check that the answers of a model can end: its files agree on end tokens, and its chat template writes one.

The rule follows the stop tokens of VeRL 0.9.1 with vLLM 0.24 to 0.27: the tokenizer's end token, and the
`eos_token_id` of generation_config.json, or of config.json without such a file. Only certain failures are
errors. A base model, whose end-of-document token does not end a turn, gets a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from llmzero_ray.errors import TaskError

_DOCUMENT_END = re.compile(
    r"[<\[(|｜]*(/s|eos|eod|endoftext|end[_▁ ]of[_▁ ](text|sentence|document))[>\])|｜]*", re.IGNORECASE
)
_ASKED, _ANSWERED = "a question to the model", "an answer of the model"
_USER, _ASSISTANT = ({"role": "user", "content": _ASKED}, {"role": "assistant", "content": _ANSWERED})
_GENERATION_TAG = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""Transformers' tags around an assistant's text, which write nothing."""
_NO_DEFAULT = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes without a default end token."""


@dataclass(frozen=True, kw_only=True)
class TokenFiles:
    """Content of the files of a model directory that name tokens."""

    directory: Path
    tokenizer: Mapping[str, Any]
    """tokenizer.json; empty where the tokenizer is of another kind."""
    settings: Mapping[str, Any]
    """Content of tokenizer_config.json, with missing values from special_tokens_map.json."""
    config: Mapping[str, Any]
    generation: Mapping[str, Any] | None
    """generation_config.json, or None if there is none."""
    template: str | None
    """Chat template, or None if it is not known."""

    @property
    def vocab(self) -> dict[str, int]:
        """Token -> id, without most added tokens. Empty where tokenizer.json is missing."""
        model = self.tokenizer.get("model")
        vocab = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocab, list):  # Unigram: a list of [token, score]
            return {str(piece[0]): at for at, piece in enumerate(vocab) if isinstance(piece, list) and piece}
        return {text: at for text, at in vocab.items() if is_id(at)} if isinstance(vocab, dict) else {}


def check_end_tokens(files: TokenFiles) -> tuple[str, ...]:
    """Return one sentence for each oddity of the end tokens that may be intended. Empty if there is none.

    Raises:
        TaskError: the answers certainly never end, or the files contradict each other.
    """
    tokens = EndTokens(files)
    written, problem = _written(files, tokens)
    notes = [] if problem is None else [problem]
    named = {name: ids for name, ids in tokens.named.items() if ids}
    if not named and tokens.end is None:
        said = (
            f"{files.directory}: no file names an end token, so that answers run to the cap; set eos_token "
        )
        said += "in tokenizer_config.json and eos_token_id in generation_config.json"
        if files.settings.get("tokenizer_class") in _NO_DEFAULT:
            raise TaskError(said)
        return (*notes, f"{said}, unless the tokenizer's class brings one")
    notes += _disagreement(files, tokens, named, written)
    if written is not None:
        notes += _never_written(files, tokens, written)
    return tuple(notes)


class EndTokens:
    """Names and ids of the tokens that end answers."""

    def __init__(self, files: TokenFiles) -> None:
        known = [
            (entry.get("id"), entry.get("content"), entry.get("special", True))
            for entry in _dicts(files.tokenizer.get("added_tokens"))
        ]
        decoder = files.settings.get("added_tokens_decoder")
        for key, entry in decoder.items() if isinstance(decoder, dict) else ():
            if isinstance(entry, dict) and key.isdecimal():
                known.append((int(key), entry.get("content"), entry.get("special", True)))
        self.special = {str(text): id_ for id_, text, special in known if special and is_id(id_)}
        self.texts = {id_: str(text) for id_, text, _ in known if is_id(id_)}
        self.end = token_text(files.settings.get("eos_token"))
        if self.end is not None:
            self._find(files, self.end)
        config = files.config.get("eos_token_id")
        if config is None and isinstance(files.config.get("text_config"), dict):
            config = files.config["text_config"].get("eos_token_id")
        end = self.special.get(self.end or "")
        self.named = {
            "tokenizer_config.json": [] if end is None else [end],
            "generation_config.json": _ids((files.generation or {}).get("eos_token_id")),
            "config.json": _ids(config),
        }
        used = "config.json" if files.generation is None else "generation_config.json"
        self.stops = {*self.named["tokenizer_config.json"], *self.named[used]}
        """Ids at which the engine stops."""

    def _find(self, files: TokenFiles, end: str) -> None:
        """Look for the tokenizer's end token among all tokens.

        Raises:
            TaskError: there is none of that name.
        """
        if end in self.special:
            return
        if not (vocab := files.vocab):
            return
        found = next((id_ for id_, text in self.texts.items() if text == end), vocab.get(end))
        if found is None:
            raise TaskError(
                f"{files.directory / 'tokenizer_config.json'} names the end token {end!r}, which "
                "tokenizer.json does not have, so that no answer ends with it; set eos_token to one that does"
            )
        self.special[end], self.texts[found] = found, end

    def is_document_end(self, id_: int) -> bool:
        """Whether this is a token that ends documents, by its name."""
        return _DOCUMENT_END.fullmatch(self.texts.get(id_, "")) is not None

    def shown(self, ids: Iterable[int]) -> str:
        """Description of tokens: `<|im_end|> (151645), 7`."""
        return ", ".join(f"{self.texts[i]} ({i})" if i in self.texts else str(i) for i in sorted(set(ids)))


def _disagreement(
    files: TokenFiles, tokens: EndTokens, named: Mapping[str, list[int]], written: set[int] | None
) -> list[str]:
    """A note on files that have no end token in common with the tokenizer and the template.

    Raises:
        TaskError: one of them names a token that does not end a document either.
    """
    right = {*tokens.named["tokenizer_config.json"], *(written or ())}
    other = {name: ids for name, ids in named.items() if not right.intersection(ids)}
    if not right or not other:
        return []
    listed = ", ".join(f"{name} {tokens.shown(ids)}" for name, ids in named.items())
    said = f"{files.directory}: the files name different end tokens: {listed}"
    if any(not any(map(tokens.is_document_end, ids)) for ids in other.values()):
        raise TaskError(
            f"{said}; put {tokens.shown(right)} into eos_token_id of {' and '.join(other)}, or correct "
            "eos_token in tokenizer_config.json"
        )
    return [f"{said}; the engine stops at {tokens.shown(tokens.stops)}"]


def _never_written(files: TokenFiles, tokens: EndTokens, written: set[int]) -> list[str]:
    """A note on a template that ends no answer with a token at which the engine stops.

    Raises:
        TaskError: none of these tokens ends documents, so that no model would write one.
    """
    if not tokens.stops or tokens.stops & written:
        return []
    said = (
        f"{files.directory}: the engine stops at {tokens.shown(tokens.stops)}, and the chat template ends "
        f"answers with {tokens.shown(written) or 'no end token'}"
    )
    todo = (
        f"add {', '.join(map(str, sorted(written)))} to eos_token_id in generation_config.json"
        if written
        else "have the template write the end token after an answer"
    )
    if not any(map(tokens.is_document_end, tokens.stops)):
        raise TaskError(f"{said}, so that answers run to the cap; {todo}")
    return [f"{said}; this suits a base model, answers of an instruct model run to the cap: for one, {todo}"]


def _written(files: TokenFiles, tokens: EndTokens) -> tuple[set[int] | None, str | None]:
    """(ids of the tokens with which the template ends an answer, None), or (None, why that is not known).

    Raises:
        TaskError: the template is not valid, or leaves the question out.
    """
    if files.template is None:
        return None, None
    import jinja2

    try:
        texts = list(rendered(files))
    except jinja2.TemplateSyntaxError as error:
        raise TaskError(
            f"{files.directory}: the chat template is not valid: {error}; every prompt is rendered with it"
        ) from None
    except Exception as error:  # noqa: BLE001 - the template is foreign code
        return None, f"{files.directory}: the chat template fails on a question with an answer: {error}"
    if not any(_ASKED in text for text in texts):
        raise TaskError(
            f"{files.directory}: the chat template leaves the question out, so that all prompts would be the "
            "same; it must write the content of a message that is a text"
        )
    tails = [part.split(_ASKED)[0] for text in texts for part in text.split(_ANSWERED)[1:]]
    if not tails or not tokens.special:
        return None, None
    longest_first = sorted(filter(None, tokens.special), key=len, reverse=True)
    first = re.compile("|".join(map(re.escape, longest_first)))
    return {tokens.special[found.group()] for tail in tails if (found := first.search(tail))}, None


def rendered(files: TokenFiles) -> Iterator[str]:
    """A chat of one turn and one of two as transformers renders them, in Jinja's sandbox."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def fail(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals |= {"raise_exception": fail, "strftime_now": lambda _: "01 Jan 2026"}
    template = environment.from_string(_GENERATION_TAG.sub("", files.template or ""))
    special = {key: token_text(value) for key, value in files.settings.items() if key.endswith("_token")}
    special = {key: value for key, value in special.items() if value is not None}
    for chat in ([_USER, _ASSISTANT], [_USER, _ASSISTANT, _USER, _ASSISTANT]):
        yield template.render(
            **special, messages=chat, add_generation_prompt=False, tools=None, documents=None
        )


def token_text(token: object) -> str | None:
    """A token as files write it, as text or as an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def _ids(value: object) -> list[int]:
    return [id_ for id_ in (value if isinstance(value, list) else [value]) if is_id(id_)]


def is_id(value: object) -> TypeGuard[int]:
    """Whether a value of a file is a token's id."""
    return isinstance(value, int) and not isinstance(value, bool)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
