"""Conversation of the skill-based agent: one episode per decision, in a file of the search.

Coordinator and stopper are two processes that share the agent: each reads the other's additions before it
asks. An episode is added once its decision is made, so decisions are idempotent: after a restart, the
recorded one is returned.
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
"""Kind of decision: `run` for the next run, `check` for a verdict on a running one."""
MOST_CHARS = 400_000
"""Maximum characters of a conversation. Beyond that, the oldest tool results are left out."""
_SHORT = 400
"""Maximum characters of a result that is never left out."""
LEFT_OUT = "(left out, the conversation is long: ask again where it is needed)"


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One decision: the question, the tool calls, and the call that decided."""

    kind: Kind
    node: int
    number: int
    """Number of the try (from 0) for a `run`, step for a `check`."""
    question: str
    exchanges: tuple[ToolExchange, ...]
    """Tool calls; the last one decided."""

    @property
    def key(self) -> tuple[Kind, int, int]:
        """Key of the decision: (kind, node, number)."""
        return self.kind, self.node, self.number

    @property
    def tool(self) -> str:
        """Name of the tool that decided."""
        return str(self.exchanges[-1].tool_use["name"])

    @property
    def input(self) -> Mapping[str, Any]:
        """Input of that tool."""
        found: Mapping[str, Any] = self.exchanges[-1].tool_use["input"]
        return found

    def to_json(self) -> str:
        """The episode as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Episode:
        """Episode from the data of `to_json`. Raises KeyError or TypeError."""
        exchanges = tuple(
            ToolExchange(**{**one, "content": tuple(one["content"])}) for one in data["exchanges"]
        )
        return cls(**{**data, "exchanges": exchanges})


class Transcript:
    """All decisions of a search so far, earliest first. Thread-safe."""

    def __init__(self, path: Path | None = None) -> None:
        """If `path` is None, the conversation is kept in memory only."""
        self._path = path
        self._own: list[Episode] = []
        self._lock = threading.Lock()

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Episodes of this process and of others. Unfinished lines of killed processes are skipped."""
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
        """Episode of a decision, or None if it has not been made."""
        return next((one for one in self.episodes if one.key == (kind, node, number)), None)

    def add(self, episode: Episode) -> None:
        """Store a decision. It is on disk when this returns."""
        with self._lock:
            self._own.append(episode)
            if self._path is None:
                return
            # The leading line break ends an unfinished line that a killed process may have left.
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
    """(first user text, exchanges after it) of the conversation up to `question` and its exchanges so far.
    The next question follows each decision."""
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
