"""Control requests: turns the files that commands leave in the search's directory into events or refusals.

Not here: writing requests (storage/presence.py), their validation (coordinator/steering.py).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from llmzero_ray.config.changes import with_changes
from llmzero_ray.coordinator import CoordinatorCore, refusal
from llmzero_ray.errors import CapacityError, LlmzeroError
from llmzero_ray.hyperparameters import normalize
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.storage.presence import Request, done_with, waiting_requests

from .event_loop import Judge
from .placement import check_fixed_capacity
from .threads import Threads

logger = logging.getLogger("llmzero_ray.actors.control_requests")
_MAX_PROBLEM = 2000
"""Maximum characters of a refusal, which is journalled and shown on terminals."""


class ControlRequests:
    """Requests to one search. Each is journalled before its file is removed. Its id makes it idempotent.

    The callback `post` is `EventLoop.post_judged`; `use_settings` is awaited after settings have changed.
    With `fixed_capacity`, the cluster never adds machines.
    """

    EVERY_S = 0.5

    def __init__(
        self,
        core: CoordinatorCore,
        post: Callable[[Judge], Awaitable[Event | None]],
        root: Path,
        *,
        use_settings: Callable[[], Awaitable[None]],
        fixed_capacity: bool,
    ) -> None:
        self._core, self._post, self._root = core, post, root
        self._use_settings, self._fixed_capacity = use_settings, fixed_capacity
        self._threads = Threads("requests")
        self._left = set[str]()
        """Ids of requests that were processed and whose files cannot be removed. A later coordinator
        processes them again, and the journal drops their events."""

    async def take(self, *, at_start: bool = False) -> None:
        """Process every pending request. `at_start` skips the capacity check, because the reservation of
        hardware that follows makes it.

        A `set` request to a finished search is left in place. The next coordinator takes it at its start, and
        continues the search if the settings extend it.
        """
        for request in await self._threads.run(waiting_requests, self._root):
            if request.id in self._left:
                continue
            over = await self._capacity_problem(request) if self._fixed_capacity and not at_start else None
            judged = functools.partial(self._judged, request, over, at_start=at_start)
            try:
                event = await self._post(judged)
            except Exception as error:
                logger.exception("request %s (%s) could not be journalled", request.id, request.kind)
                why = f"{type(error).__name__}: {error}"
                event = await self._post(functools.partial(_refused, request, why))
            if event is None:
                continue
            try:
                await self._threads.run(done_with, self._root, request.id)
            except OSError as error:  # the directory may be another user's
                self._left.add(request.id)
                logger.warning(
                    "requests/%s.json cannot be removed: %s. It was taken; remove it.", request.id, error
                )
            if isinstance(event, ev.SettingsChanged | ev.SearchExtended):
                await self._use_settings()

    def _judged(self, request: Request, over: str | None, *, at_start: bool) -> Event | None:
        """Event for a request, or None if it is left for the next coordinator."""
        if request.kind == "set" and self._core.finished is not None and not at_start:
            return None
        event = event_of(self._core, request)
        if over is not None and isinstance(event, ev.SettingsChanged):
            event = _refused(request, over)
        if isinstance(event, ev.RequestRefused):
            logger.warning("request %s (%s) is refused: %s", request.id, request.kind, event.message)
        return event

    async def _capacity_problem(self, request: Request) -> str | None:
        """Problem of a request that sets more slots than a cluster of fixed size can hold, otherwise None."""
        event = event_of(self._core, request)
        if not isinstance(event, ev.SettingsChanged):
            return None
        changed = with_changes(self._core.config, event.changes)
        if changed.slots.count <= self._core.config.slots.count:
            return None
        try:
            await self._threads.run(check_fixed_capacity, changed)
        except CapacityError as error:
            return str(error)
        return None


def event_of(core: CoordinatorCore, request: Request) -> Event:
    """Event for a request in the current state, or `RequestRefused` with the reason if it cannot be carried
    out."""
    try:
        event = _event_from(core, request)
        why = refusal(core, event)
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'request'}: {e['msg']}" for e in error.errors())
    except LlmzeroError as error:
        why = str(error)
    except Exception as error:
        # Anyone who can write to the directory can send anything; it must not end the coordinator's loop.
        logger.debug("request %s (%s)", request.id, request.kind, exc_info=True)
        why = f"it cannot be understood ({type(error).__name__}: {error})"
    return _refused(request, why) if why is not None else dataclasses.replace(event, source=_source(request))


# --- parts --------------------------------------------------------------------------------------------------


class _Stop(BaseModel):
    deadline_s: float | None = Field(None, ge=0, allow_inf_nan=False)


class _Hint(BaseModel):
    text: str


class _Veto(BaseModel):
    node: int


class _Clone(BaseModel):
    node: int
    changes: dict[str, Any]
    step: int | None = None
    n_steps: int | None = None


class _Approve(BaseModel):
    node: int
    refuse: bool = False
    changes: dict[str, Any] = {}
    n_steps: int | None = None
    tries: int | None = None


class _Set(BaseModel):
    changes: dict[str, Any]


def _event_from(core: CoordinatorCore, request: Request) -> Event:
    """Event that a request asks for, before the state is checked.

    Raises:
        ValidationError: a field is missing or of another type.
        ConfigError, HyperparameterError: a key or value is not allowed.
    """
    fields: Mapping[str, Any] = request.fields
    if request.kind == "unreadable":
        raise LlmzeroError(f"requests/{request.id}.json is not a request and was removed: {request.reason}")
    if request.kind == "stop":
        return ev.UserStop(reason=request.reason, deadline_s=_Stop.model_validate(fields).deadline_s)
    if request.kind == "pause":
        return ev.SearchPaused(reason=request.reason)
    if request.kind == "hint":
        return ev.HintGiven(text=_Hint.model_validate(fields).text)
    if request.kind == "veto":
        return ev.NodeVetoed(node=_Veto.model_validate(fields).node, reason=request.reason)
    if request.kind == "clone":
        clone = _Clone.model_validate(fields)
        changes = dict(normalize(clone.changes))
        return ev.CloneAsked(of=clone.node, step=clone.step, changes=changes, n_steps=clone.n_steps)
    if request.kind == "approve":
        answer = _Approve.model_validate(fields)
        run = core.runs.get(answer.node)
        return ev.ApprovalAnswered(
            node=answer.node,
            tries=(0 if run is None else run.tries) if answer.tries is None else answer.tries,
            accepted=not answer.refuse,
            changes=core.planner.space.normalize(answer.changes),
            n_steps=answer.n_steps,
            reason=request.reason,
        )
    changes = _Set.model_validate(fields).changes
    changed = ev.SettingsChanged if core.finished is None else ev.SearchExtended
    return changed(changes=changes, before={key: _value(core, key) for key in changes})


def _refused(request: Request, why: str) -> ev.RequestRefused:
    message = why if len(why) <= _MAX_PROBLEM else why[: _MAX_PROBLEM - 4] + " ..."
    return ev.RequestRefused(kind=request.kind, message=message, source=_source(request))


def _source(request: Request) -> str:
    return f"user:{request.id}"


def _value(core: CoordinatorCore, key: str) -> Any:
    """Current value of a dotted key, or None if there is none."""
    value: Any = core.config.to_json()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
