"""Requests of persons, left in the search's directory, become events; what cannot be done is answered.

Not here: leaving requests (steering.py), what may be asked (llmzero_ray.coordinator.steering).
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from llmzero_ray import events as ev
from llmzero_ray.coordinator import refusal
from llmzero_ray.coordinator.core import CoordinatorCore
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.hyperparameters import normalize
from llmzero_ray.presence import Request, done_with, waiting_requests
from llmzero_ray.records import Event

if TYPE_CHECKING:
    from .coordinator import SearchCoordinator


class Inbox:
    """One search's requests; each is journalled before it is removed, and known again by its id."""

    def __init__(self, coordinator: SearchCoordinator) -> None:
        self._it = coordinator

    async def empty(self) -> None:
        """Take every request that waits."""
        root = self._it.storage.paths.root
        for request in await asyncio.to_thread(waiting_requests, root):
            event = event_of(self._it.core, request)
            await self._it.post(event)
            await asyncio.to_thread(done_with, root, request.id)
            if isinstance(event, ev.SettingsChanged):
                await use_settings(self._it)


async def use_settings(coordinator: SearchCoordinator) -> None:
    """Settings were changed: the ledger, the slots and the file follow the journal."""
    config = coordinator.core.config
    coordinator.till.use(config)
    coordinator.slots.use(config)
    if coordinator.core.n_settings:
        await asyncio.to_thread(coordinator.storage.write_config, config)


def event_of(core: CoordinatorCore, request: Request) -> Event:
    """What a request means as things stand; `RequestRefused` with the reason when it cannot be done."""
    try:
        event = _asked(core, request)
        why = refusal(core, event)
    except (KeyError, TypeError, ValueError, LlmzeroError) as error:
        event, why = ev.UserStop(reason=""), str(error)
    if why is not None:
        event = ev.RequestRefused(kind=request.kind, message=why)
    return dataclasses.replace(event, source=f"user:{request.id}")


def _asked(core: CoordinatorCore, request: Request) -> Event:
    asked: Any = request.asked
    if request.kind == "stop":
        deadline = asked.get("deadline_s")
        return ev.UserStop(reason=request.reason, deadline_s=None if deadline is None else float(deadline))
    if request.kind == "pause":
        return ev.SearchPaused(reason=request.reason)
    if request.kind == "hint":
        return ev.HintGiven(text=str(asked["text"]))
    if request.kind == "veto":
        return ev.NodeVetoed(node=int(asked["node"]), reason=request.reason)
    if request.kind == "clone":
        step, n_steps = asked.get("step"), asked.get("n_steps")
        return ev.CloneAsked(
            of=int(asked["node"]),
            step=None if step is None else int(step),
            changes=dict(normalize(asked["changes"])),
            n_steps=None if n_steps is None else int(n_steps),
        )
    changes = dict(asked["changes"])
    return ev.SettingsChanged(changes=changes, before={key: _now(core, key) for key in changes})


def _now(core: CoordinatorCore, key: str) -> Any:
    value: Any = core.config.to_json()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
