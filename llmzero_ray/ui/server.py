"""The server of `llmzero ui`: pages, views and their changes, and a person's requests to a search.

Every route requires the token's cookie and a known Host; SECURITY.md says what that guarantees. Pages and
views are read from files only. A person's request is sent as the commands send it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmzero_ray.cli.steering import send
from llmzero_ray.config.changes import read_settings
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.storage.locate import searches_in
from llmzero_ray.storage.presence import owner
from llmzero_ray.ui.followed import Followed
from llmzero_ray.ui.page import asset, data_text, served_page
from llmzero_ray.utils.text import json_or_none

_LOOK_S = 1.0
_MAX_BODY = 64 * 1024
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware that admits requests with a known host and the token, and sets the headers of responses."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str]) -> None:
        self._app, self._token, self._hosts = app, token, hosts
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """The response to a request that is not admitted. None if it is."""
        host = request.headers.get("host", "")
        if _hostname(host) not in self._hosts:
            return PlainTextResponse("unknown Host; use the address that `llmzero ui` printed\n", 421)
        cookie = f"llmzero-{urlsplit(f'//{host}').port or 80}"  # browsers share cookies between ports
        given = request.query_params.get("token")
        if given is not None and request.method == "GET":
            if not _same(given, self._token):
                return PlainTextResponse("wrong token\n", 401)
            rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != "token"]
            to = RedirectResponse(request.url.path + (f"?{urlencode(rest)}" if rest else ""), 303)
            to.set_cookie(cookie, self._session, httponly=True, samesite="strict")
            return to
        if not _same(request.cookies.get(cookie, ""), self._session):
            return PlainTextResponse("open the address with the token that `llmzero ui` printed\n", 401)
        if request.method not in ("GET", "HEAD"):
            origin = urlsplit(request.headers.get("origin", ""))
            if request.headers.get("x-llmzero") != "1" or origin.netloc != host:
                return PlainTextResponse("only the page itself may send requests\n", 403)
        return None


def _hostname(host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").lower() if parts.port != 0 else ""
    except ValueError:  # not an address
        return ""


def _same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(), other.encode())


class Searches:
    """The searches of a storage, or only one of them. Each is followed from the first request for it on."""

    def __init__(self, storage: Path, only: str | None, *, steering: bool) -> None:
        self.storage, self.only, self.steering = storage, only, steering
        self._known: dict[str, Followed] = {}

    def names(self) -> list[str]:
        """Their names."""
        if self.only:
            return [self.only]
        return [path.name for path in searches_in(self.storage, unreadable=True)]

    def followed(self, name: str) -> Followed:
        """One of them.

        Raises:
            HTTPException: there is none of that name.
        """
        if name not in self._known:
            if name not in self.names():
                raise HTTPException(404, "no such search")
            self._known[name] = Followed(self.storage / name, steering=self.steering)
        return self._known[name]

    def index(self) -> dict[str, Any]:
        """Data of the page that lists the searches."""
        rows = [self.followed(name).row() for name in self.names()]
        return {"storage": str(self.storage), "searches": rows}


def make_app(searches: Searches, *, token: str, hosts: frozenset[str]) -> ASGIApp:
    """The ASGI application. `hosts` are the names under which it may be addressed."""

    async def index(_: Request) -> Response:
        if searches.only:
            return RedirectResponse(f"/s/{searches.only}/", 303)
        found = await asyncio.to_thread(searches.index)
        return HTMLResponse(served_page(found, "llmzero", base=""))

    async def page(request: Request) -> Response:
        name = request.path_params["name"]
        found = await asyncio.to_thread(searches.followed(name).view)
        return HTMLResponse(served_page(found, name, base=f"/s/{name}"))

    async def view(request: Request) -> Response:
        found = await asyncio.to_thread(searches.followed(request.path_params["name"]).view)
        return Response(data_text(found), media_type="application/json")

    async def events(request: Request) -> Response:
        name = request.path_params.get("name")
        look = searches.index if name is None else searches.followed(name).view
        return EventSourceResponse(_changes(look), ping=15)

    async def steer(request: Request) -> Response:
        if not searches.steering:
            raise HTTPException(403, "read-only; start `llmzero ui` with --allow-steering to send requests")
        followed = searches.followed(request.path_params["name"])
        body = await request.body()
        try:
            asked = json_or_none(body) if len(body) <= _MAX_BODY else None
            if not isinstance(asked, dict):
                raise ConfigError("a request is a JSON object of at most 64 KiB")
            return PlainTextResponse(await asyncio.to_thread(_steer, followed, asked))
        except (LlmzeroError, ValueError) as error:
            return PlainTextResponse(str(error), 409)

    def part(name: str, media_type: str) -> Route:
        return Route(f"/{name}", lambda _: Response(asset(name), media_type=media_type))

    routes = [
        Route("/", index),
        Route("/events", events),
        part("page.css", "text/css"),
        part("page.js", "text/javascript"),
        Route("/s/{name}/", page),
        Route("/s/{name}/view.json", view),
        Route("/s/{name}/events", events),
        Route("/s/{name}/requests", steer, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token=token, hosts=hosts)


async def _changes(look: Callable[[], Mapping[str, Any]]) -> AsyncIterator[dict[str, str]]:
    """An event whenever the view has changed, with the parts, nodes and series that the reader lacks."""
    seen: object = None
    sent: dict[tuple[str, Any], Any] = {}
    while True:
        found = await asyncio.to_thread(look)
        if found is not seen and found != seen:
            seen = found
            yield {"event": "view", "data": await asyncio.to_thread(_news, found, sent)}
        await asyncio.sleep(_LOOK_S)


def _news(found: Mapping[str, Any], sent: dict[tuple[str, Any], Any]) -> str:
    if "nodes" not in found:
        sent.clear()  # the reader drops everything else
        return data_text(found)

    def news(kind: str, values: Mapping[Any, Any]) -> dict[Any, Any]:
        new = {name: one for name, one in values.items() if sent.get((kind, name), sent) != one}
        sent.update({(kind, name): one for name, one in new.items()})
        return new

    ours = {node["node"]: node for node in found["nodes"]}
    if any(kind == "node" and name not in ours for kind, name in sent):
        sent.clear()  # another search of the same name took its place
    whole = not sent
    nodes = news("node", ours)
    parts = {name: value for name, value in found.items() if name not in ("nodes", "series")}
    return data_text(
        {
            **news("part", parts),
            "nodes": list(nodes.values()),
            "series": news("series", found["series"]),
            "whole": whole,
        }
    )


def _steer(followed: Followed, asked: Mapping[str, Any]) -> str:
    """Send a person's request, and return the coordinator's answer.

    Raises:
        ConfigError: it was refused.
    """
    kind, reason = asked.get("kind"), str(asked.get("reason") or "")
    place = followed.storage
    fields: dict[str, Any] = {}
    if kind == "hint":
        fields = {"text": str(asked.get("text") or "")}
    elif kind == "veto":
        fields = {"node": asked.get("node")}
    elif kind == "clone":
        step, n_steps = (_number(asked, name) for name in ("step", "n_steps"))
        changes = _settings(asked)
        fields = {"node": asked.get("node"), "changes": changes, "step": step, "n_steps": n_steps}
    elif kind in ("approve", "refuse"):
        changes = _settings(asked)
        fields = {"node": asked.get("node"), "changes": changes, "n_steps": _number(asked, "n_steps")}
        fields |= {"refuse": kind == "refuse", "tries": asked.get("tries")}
    elif kind not in ("pause", "stop"):
        raise ConfigError(
            f"a request cannot be {kind!r}; must be hint, veto, clone, approve, refuse, pause or stop"
        )
    elif owner(place.paths.root) is None:
        raise ConfigError(f"{place.paths.root} is not running: there is nothing to {kind}.")
    said: list[str] = []
    send(place, "approve" if kind == "refuse" else kind, reason, say=said.append, **fields)
    return "\n".join(said)


def _settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The KEY=VALUE settings of a form, separated by newlines or spaces. A value may contain spaces too."""
    given = re.split(r"\s+(?=[\w.]+\s*=)", str(asked.get("settings") or "").strip())
    return read_settings(one for one in given if one)


def _number(asked: Mapping[str, Any], name: str) -> int | None:
    given = str(asked.get(name) or "").strip()
    if not given:
        return None
    if not given.isdecimal():
        raise ConfigError(f"{name} is {given!r}; must be a whole number")
    return int(given)
