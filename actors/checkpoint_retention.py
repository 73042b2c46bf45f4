"""Retention of checkpoints: checks that resumed adapters are intact, and deletes adapters that are no longer
needed.

Not here: which adapters are needed (llmzero_ray.coordinator.checkpoint_retention), saving them (the engine).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from llmzero_ray.coordinator import CoordinatorCore, checkpoint_retention
from llmzero_ray.errors import StorageError
from llmzero_ray.records import PhaseSpec
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.manifests import problem_of
from llmzero_ray.utils.failpoints import reach
from llmzero_ray.utils.text import GIB

from .event_loop import Post

logger = logging.getLogger("llmzero_ray.actors.checkpoint_retention")


class CheckpointRetention:
    """Checkpoints of one search."""

    def __init__(self, core: CoordinatorCore, post: Post, storage: SearchStorage) -> None:
        self._core, self._post, self._storage = core, post, storage
        self._thinning = asyncio.Lock()

    async def is_sound(self, spec: PhaseSpec) -> bool:
        """Whether the adapter that a phase resumes from is intact. If not, posts `CheckpointCorrupt`."""
        source = spec.resume_from
        if source is None or spec.adapter is None:
            return True
        problem = await asyncio.to_thread(problem_of, Path(spec.adapter))
        if problem is None:
            return True
        logger.error("node=%d cannot start from %s: %s", spec.node, spec.adapter, problem)
        key = f"corrupt:{source.node}:{source.step}:{spec.node}"
        corrupt = ev.CheckpointCorrupt(
            node=source.node, step=source.step, problem=problem, found_by=spec.node, source=key
        )
        await self._post(corrupt)
        return False

    async def make_room(self) -> None:
        """Delete adapters until they fit into `checkpoints.max_gib`.

        Raises:
            StorageError: the pinned adapters alone are larger; no further phase may begin.
        """
        async with self._thinning:  # concurrent calls would journal the same adapters twice
            await self._make_room()

    async def _make_room(self) -> None:
        limit = self._core.config.checkpoints.max_gib
        if limit is None:
            return
        sizes = await asyncio.to_thread(self._storage.adapter_sizes)
        thinning = checkpoint_retention.thin(self._core, sizes, int(limit * GIB))
        if thinning.items:
            deleted = ev.CheckpointsDeleted(
                items=thinning.items,
                freed_bytes=thinning.freed_bytes,
                used_bytes=thinning.used_bytes,
                limit_bytes=int(limit * GIB),
            )
            await self._post(deleted)
        if not thinning.fits:
            kept = (thinning.used_bytes - thinning.freed_bytes) / GIB
            raise StorageError(
                f"{self._storage.paths.root}: adapters that the search still needs take {kept:.3g} GiB; "
                f"checkpoints.max_gib is {limit:g}. The same command with a higher one "
                "(--set checkpoints.max_gib=...) continues the search."
            )

    async def delete(self, command: cmd.DeleteCheckpoints) -> None:
        """Delete the adapters that the journal lists as deleted."""
        for item in command.items:
            reach("checkpoints.deleting")
            await asyncio.to_thread(self._storage.delete_adapter, item.node, item.step)
