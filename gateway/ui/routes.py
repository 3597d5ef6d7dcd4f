"""`GET /`, its files, and `GET /gateway/events`. The page itself holds no data; the events are for operators only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from contextlib import aclosing
from hashlib import sha256
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.api.core import Core
from gateway.api.downstream import Receive, Scope, Send
from gateway.api.ops import only_operators
from gateway.errors import NotFound
from gateway.policy.watch import ReloadState
from gateway.ui.live import Live
from gateway.ui.snapshot import Snapshots

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def ui_router(
    core: Core,
    reload_state: Callable[[], ReloadState | None],
    wall: Callable[[], float],
    processes: int,
) -> APIRouter:
    """The page's routes. `processes` is the number of workers that share the port."""
    router = APIRouter(include_in_schema=False)
    assets = load_assets()
    live = Live(Snapshots(core, reload_state, wall, processes).take, lambda: core.draining)

    @router.get("/")
    async def page(request: Request) -> Response:
        return assets["index.html"].answer(request)

    @router.get("/gateway/ui/{name}")
    async def asset(name: str, request: Request) -> Response:
        if name not in assets:
            raise NotFound(f"there is no /gateway/ui/{name}")
        return assets[name].answer(request)

    @router.get("/gateway/events", dependencies=[only_operators(core)])
    async def events() -> Response:
        return EventStream(live)

    return router


class Asset:
    """One file of the page."""

    def __init__(self, name: str, body: bytes) -> None:
        self._body = body
        self._tag = f'"{sha256(body).hexdigest()[:16]}"'
        self._headers = {
            **SECURITY,
            "content-type": f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8",
            "cache-control": "no-cache",
            "etag": self._tag,
        }

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the client has it already."""
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=self._headers)
        return Response(self._body, headers=self._headers)


def load_assets() -> dict[str, Asset]:
    """The package's files by name."""
    folder = files("gateway.ui").joinpath("static")
    return {file.name: Asset(file.name, file.read_bytes()) for file in folder.iterdir()}


class EventStream(Response):
    """Server-sent events for one viewer, until it leaves or the gateway stops."""

    def __init__(self, live: Live) -> None:
        super().__init__(media_type="text/event-stream")
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(_left(receive))
        try:
            async with aclosing(self._live.events()) as events:
                first = await anext(events)
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await send(_body(first))
                async for event in events:
                    if left.done():
                        return
                    await send(_body(event))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            # The server cancels what is still open when it stops; nothing needs to be said about that.
            return
        finally:
            left.cancel()


_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


def _body(event: bytes) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": event, "more_body": True}


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
