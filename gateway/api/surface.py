"""Which path is served by what. Routed paths are looked up in one dictionary and answered as plain ASGI; the frame
(FastAPI) has the operators' routes and the list of models.

`OPTIONS` lists a path's methods and needs no key; `HEAD` works wherever `GET` does.
"""

from __future__ import annotations

from gateway.api.core import Core
from gateway.api.cors import allowed_origin, exposing, preflight
from gateway.api.downstream import App, Message, Receive, Scope, Send
from gateway.api.labels import LabelDesk
from gateway.api.passthrough import PATHS, PassThrough
from gateway.api.responses import PREFIX, Homes, StoredResponse
from gateway.api.routed import RoutedApi
from gateway.types import Api

ROUTED = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/chat/completions/batch": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
}


class Surface:
    """All HTTP paths of the gateway, as one ASGI application."""

    def __init__(self, core: Core, frame: App) -> None:
        self.core = core
        self.frame = frame
        homes, labels = Homes(), LabelDesk(core)
        self._routed: dict[str, App] = {
            path: RoutedApi(core, api, homes, labels=labels) for path, api in ROUTED.items()
        }
        self._stored = StoredResponse(core, homes)
        self._pass = PassThrough(core)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.frame(scope, receive, send)
        origins = self.core.active.policy.server.cors
        if origins and (origin := allowed_origin(scope, origins)) is not None:
            if (headers := preflight(scope, origin)) is not None:
                return await _empty(send, headers)
            send = exposing(send, origin)
        path: str = scope["path"]
        app = self._routed.get(path) or self._found(path)
        if scope["method"] == "OPTIONS" and app is not self.frame:
            takes = b"POST, OPTIONS" if path in self._routed else b"GET, POST, OPTIONS"
            return await _empty(send, [(b"allow", takes)])
        if app is self.frame:
            send = _listing_methods(send, asked=scope["method"] == "OPTIONS")
            if scope["method"] == "HEAD":
                # The server sends no body for HEAD, whatever comes.
                scope = {**scope, "method": "GET"}
            # Its answers include every request that has ended.
            self.core.afterwards.flush()
        await app(scope, receive, send)

    def _found(self, path: str) -> App:
        if path.startswith("/v1/"):
            if path.startswith(PREFIX):
                return self._stored
            return self.frame if is_model_list(path) else self._pass
        return self._pass if path in PATHS else self.frame


def is_model_list(path: str) -> bool:
    """Whether the path is `/v1/models` or below it."""
    return path == "/v1/models" or path.startswith("/v1/models/")


def _listing_methods(send: Send, *, asked: bool) -> Send:
    """Completes the methods that the frame's 405 names: it knows neither `HEAD` nor `OPTIONS`, which work here.

    Where `OPTIONS` `asked` for them, the 405 becomes the answer. Nothing else is changed.
    """
    listed_already = False

    async def sending(message: Message) -> None:
        nonlocal listed_already
        if message["type"] == "http.response.start" and message["status"] == 405:
            others = [(name, value) for name, value in message["headers"] if name != b"allow"]
            listed = next((value for name, value in message["headers"] if name == b"allow"), b"")
            methods = sorted({method.strip() for method in listed.split(b",") if method.strip()})
            if b"GET" in methods and b"HEAD" not in methods:
                methods.append(b"HEAD")
            allow = (b"allow", b", ".join([*methods, b"OPTIONS"]))
            if asked:
                listed_already = True
                return await _empty(send, [allow])
            message = {**message, "headers": [*others, allow]}
        if not listed_already:
            await send(message)

    return sending


async def _empty(send: Send, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
