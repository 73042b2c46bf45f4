"""The conversation of the skill-based agent: one episode for each decision, in a file of the search.

Coordinator and stopper are two processes with one agent: each reads what the other has added before it asks.
An episode is added once its decision is made, so that a decision is never made twice: after a kill the
recorded one is given again. Not here: what is asked (agent.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from llmzero_ray.agents.llm.messages import ToolExchange

Kind: TypeAlias = Literal["run", "check"]
"""Of a decision: `run` the next run, `check` whether a running one goes on."""
MOST_CHARS = 400_000
"""Of a conversation; beyond it the oldest results of tools are left out."""
_SHORT = 400
"""Characters of a result that is never left out."""
LEFT_OUT = "(left out, the conversation is long: ask again where it is needed)"


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One decision: the question, the calls of tools on the way, and the call that decided."""

    kind: Kind
    node: int
    number: int
    """Of the try of a `run`, from 0; step of a `check`."""
    question: str
    exchanges: tuple[ToolExchange, ...]
    """The last one decided."""

    @property
    def key(self) -> tuple[Kind, int, int]:
        """What was decided."""
        return self.kind, self.node, self.number

    @property
    def tool(self) -> str:
        """The tool that decided."""
        return str(self.exchanges[-1].tool_use["name"])

    @property
    def input(self) -> Mapping[str, Any]:
        """What it was given."""
        found: Mapping[str, Any] = self.exchanges[-1].tool_use["input"]
        return found

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Episode:
        """The episode that `to_json` wrote. Raises KeyError or TypeError."""
        exchanges = tuple(
            ToolExchange(**{**one, "content": tuple(one["content"])}) for one in data["exchanges"]
        )
        return cls(**{**data, "exchanges": exchanges})


class Transcript:
    """All decisions of a search so far, the earliest first; thread-safe."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` None: kept in memory alone."""
        self._path = path
        self._own: list[Episode] = []
        self._lock = threading.Lock()

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Of this process and of others. A line that a killed process left unfinished is passed over."""
        if self._path is None or not self._path.is_file():
            return tuple(self._own)
        found: dict[tuple[Kind, int, int], Episode] = {}
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                episode = Episode.of(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue
            found.setdefault(episode.key, episode)
        return tuple(found.values())

    def decided(self, kind: Kind, node: int, number: int) -> Episode | None:
        """The episode of that decision; None: it has not been made."""
        return next((one for one in self.episodes if one.key == (kind, node, number)), None)

    def add(self, episode: Episode) -> None:
        """Keep a decision; on the disk when this returns."""
        with self._lock:
            self._own.append(episode)
            if self._path is None:
                return
            # The first line break ends a line that a killed process may have left.
            line = f"\n{episode.to_json()}\n".encode()
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line)
                os.fsync(file)
            finally:
                os.close(file)


def conversation(
    episodes: Sequence[Episode], question: str, exchanges: Sequence[ToolExchange]
) -> tuple[str, tuple[ToolExchange, ...]]:
    """(first text of the user's, exchanges since) of a conversation whose last question is `question`, with
    the exchanges on it so far. Each decision is followed by the next question."""
    texts = [*(episode.question for episode in episodes), question]
    turns: list[ToolExchange] = []
    for number, episode in enumerate(episodes):
        turns += episode.exchanges[:-1]
        turns.append(dataclasses.replace(episode.exchanges[-1], then=texts[number + 1]))
    return texts[0], _shortened([*turns, *exchanges])


def _shortened(turns: list[ToolExchange]) -> tuple[ToolExchange, ...]:
    total = sum(len(json.dumps([one.content, one.result, one.then])) for one in turns)
    for place, one in enumerate(turns):
        if total <= MOST_CHARS:
            break
        if len(one.result) > _SHORT:
            total -= len(one.result) - len(LEFT_OUT)
            turns[place] = dataclasses.replace(one, result=LEFT_OUT)
    return tuple(turns)
