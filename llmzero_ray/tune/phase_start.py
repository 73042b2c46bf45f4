"""Description of a trial's phase, as one short text in its configuration.

It is a text, not a mapping, so that Tune's tables, folder names and trackers show it as one short value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmzero_ray.records import NodeKind, ResumeFrom

CONFIG_KEY = "llmzero_phase"
"""Key of a trial's configuration."""
LINEAGE_KEY = "llmzero"
"""Key of a trial's configuration with its place in the tree, value by value, for trackers."""
_TEXT = re.compile(
    r"node(?P<node>\d+)-(?P<kind>\w+?)"
    r"(-from(?P<source>\d+)at(?P<step>\d+))?-base(?P<base>\d+)(-steps(?P<steps>\d+))?"
)


@dataclass(frozen=True, kw_only=True)
class PhaseStart:
    """Node, start and length of the phase that a trial trains."""

    node: int
    """Node of the search, from 0."""
    kind: NodeKind
    resume_from: ResumeFrom | None
    """Another trial's checkpoint, or None to start from scratch."""
    base_step: int
    """Number of results along the whole path before this phase."""
    n_steps: int | None
    """Number of results after which the search ends the phase. If None, it ends when the trainable does."""

    def __str__(self) -> str:
        at = self.resume_from
        source = "" if at is None else f"-from{at.node}at{at.step}"
        steps = "" if self.n_steps is None else f"-steps{self.n_steps}"
        return f"node{self.node}-{self.kind}{source}-base{self.base_step}{steps}"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> PhaseStart | None:
        """Phase that a trial's configuration names, or None if the trial belongs to no search."""
        found = _TEXT.fullmatch(str(config.get(CONFIG_KEY, "")))
        if found is None:
            return None
        source, steps = found["source"], found["steps"]
        kind: Any = found["kind"]
        return cls(
            node=int(found["node"]),
            kind=kind,
            resume_from=None if source is None else ResumeFrom(node=int(source), step=int(found["step"])),
            base_step=int(found["base"]),
            n_steps=None if steps is None else int(steps),
        )
