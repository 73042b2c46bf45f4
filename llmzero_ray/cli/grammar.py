"""The grammar that all commands share: KEY=VALUE with or without `--set`, `.` or nothing for the only search.

Not here: names of searches and nodes (options.py), the keys of settings (settings.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperOption

ONLY = "."
"""Name of the only search of a storage."""
SEARCH = "SEARCH"
BEST = "best"
"""Name of the node with the best validation score."""
_BOUNDS = re.compile(r"; \d*<?=?x<=?\d+(?=\])")
"""A range behind the default, as Typer writes it."""
_SETTING = re.compile(r"[+~]*[A-Za-z_][\w.+-]*=")


class GrammarCommand(TyperCommand):
    """One command. It completes its words before Typer parses them, and its help shows no Python types."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Complete the words, and parse them."""
        found = args if ctx.resilient_parsing else self._completed(args)
        rest: list[str] = super().parse_args(ctx, found)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is Typer's
        """Words of the usage line."""
        settings = ["[KEY=VALUE ...]"] if "--set" in self._options() else []
        return ["[OPTIONS]", *map(_shown, self._arguments()), *settings]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        params = [param for param in self.get_params(ctx) if isinstance(param, TyperOption)]
        options = filter(None, (param.get_help_record(ctx) for param in params))
        rows = {
            "Arguments": [(_shown(one), one.help or "") for one in self._arguments()],
            "Options": [
                (name.translate({60: None, 62: None}), _BOUNDS.sub("", text)) for name, text in options
            ],
        }
        for title, lines in rows.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def _arguments(self) -> list[TyperArgument]:
        return [param for param in self.params if isinstance(param, TyperArgument)]

    def _options(self) -> dict[str, TyperOption]:
        return {name: param for param in self.params if isinstance(param, TyperOption) for name in param.opts}

    def _completed(self, args: Sequence[str]) -> list[str]:
        """The words with `--set` before each setting, and with `.` where the search is left out."""
        options = self._options()
        found: list[str] = []
        words: list[str] = []
        storage = "runs"
        rest: Iterator[str] = iter(args)
        for word in rest:
            name, equals, given = word.partition("=")
            option = options.get(name)
            if word == "--":
                found += [word, *rest]
            elif option is not None and not option.is_flag:
                value = given if equals else next(rest, None)
                found += [word] if equals or value is None else [word, value]
                storage = value or storage if name == "--storage" else storage
            elif "--set" in options and _SETTING.match(word):
                found += ["--set", word]
            else:
                found.append(word)
                words += [word] if option is None and not word.startswith("-") else []
        arguments = self._arguments()
        if not arguments or arguments[0].metavar != SEARCH or len(words) >= len(arguments):
            return found
        # A single word is read as the search, so that the text is reported missing.
        of_text = arguments[-1].metavar == "TEXT" and len(words) == 1 and " " not in words[0]
        return found if of_text or (words and _exists(words[0], storage)) else [ONLY, *found]


def _shown(argument: TyperArgument) -> str:
    """`CONFIG`, or `[SENTENCE]` for an optional argument."""
    name = argument.metavar or argument.name or ""
    return name if argument.required and name != SEARCH else f"[{name}]"


def is_node(word: str) -> bool:
    """Whether a word names a node: a number or `best`."""
    return word == BEST or word.isdecimal()


def _exists(word: str, storage: str) -> bool:
    """Whether a word names a path, or something in the storage; for a word that names a node, a search."""
    try:
        places = Path(word), Path(storage).expanduser() / word
        if not is_node(word):
            return any(place.exists() for place in places)
        from llmzero_ray.storage.locate import is_search  # imports pydantic

        return any(map(is_search, places))
    except (OSError, RuntimeError):  # RuntimeError: there is no such user
        return False
