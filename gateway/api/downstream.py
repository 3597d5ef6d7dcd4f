"""The client's side of one request, over ASGI: read the body once, notice when the client leaves, send.

Noticing works as `asyncio.timeout` does: the request's own task is cancelled, wherever that is (queue, connect, first
token, mid-stream). Our own server calls back when the connection is lost (`gateway.server`); under any other one task
waits for `http.disconnect`. There is no polling, and nobody else calls `receive`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from gateway.errors import BodyTooLarge, GatewayError, MethodNotAllowed, RequestTimeout, Unauthorized

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGE = 1_048_576
"""Bytes of a request body from which on it is put together in a turn of the loop of its own."""
BODY_SECONDS = 60.0
"""How long a client may take between two pieces of its request body."""


CONNECTION = "gateway.connection"
"""Where in a scope our own server puts the `Connection`."""
WHOLE = "gateway.whole"
"""In a message that starts an answer: all of its body is the next message, so that the head may wait for that."""


class Connection(Protocol):
    """What a server can tell of the connection that a request came over."""

    refused: GatewayError | None
    """What the server itself has answered to a body that it could not read."""

    def watch(self, on_lost: Callable[[], None] | None) -> None:
        """Calls `on_lost` once when the connection is lost, at once if it already is; None ends that."""

    def has_body(self) -> bool:
        """Whether all of the request's body has come, so that receiving it does not wait."""

    def whole_body(self) -> bytes | None:
        """The request's body, in place of receiving it, if all of it has come."""

    def straight(self) -> Callable[[bytes], bool] | None:
        """Writes a piece of the answer whose head has gone out, at once; False if the client takes no more for now.
        None where this answer's pieces have to be sent in ASGI's way."""

    async def drain(self) -> None:
        """Waits until the client takes more."""


class ClientLeft(Exception):
    """The client closed its connection before the answer was whole."""


class Downstream:
    """One request's client."""

    __slots__ = ("_connection", "_kept", "_receive", "_send", "_task", "_watch", "early", "left", "started")

    def __init__(self, receive: Receive, send: Send, connection: Connection | None = None) -> None:
        self._receive = receive
        self._send = send
        self._connection = connection
        self._task: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[Message] | None = None
        self._kept = b""
        """Pieces that `drain` will send."""
        self.left = False
        self.started = False
        """Whether status and headers have gone out, so that no other status can."""
        self.early = False
        """Whether they went out with a heartbeat, before there was an answer."""

    async def body(self, limit: int, declared: int | None) -> bytes:
        """The whole request body. Raises BodyTooLarge, RequestTimeout or ClientLeft."""
        if declared is not None and declared > limit:
            raise BodyTooLarge(f"the body has {declared} bytes; this gateway takes {limit} (server.max_body_bytes)")
        if self._connection is not None and (whole := self._connection.whole_body()) is not None:
            if len(whole) > limit:
                raise _too_large(limit)
            return whole
        whole = b"".join([piece async for piece in self.pieces(limit, declared)])
        if len(whole) > LARGE:
            # To put megabytes together takes milliseconds, and so does what follows: not in one turn of the loop.
            await asyncio.sleep(0)
        return whole

    async def pieces(self, limit: int, declared: int | None) -> AsyncIterator[bytes]:
        """The request body piece by piece. Raises as `body` does, the size's error once the limit is passed."""
        if declared is not None and declared > limit:
            raise BodyTooLarge(f"the body has {declared} bytes; this gateway takes {limit} (server.max_body_bytes)")
        size = 0
        more = True
        while more:
            message = await self._next_piece()
            more = message.get("more_body", False)
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            if piece:
                yield piece

    async def _next_piece(self) -> Message:
        if self._connection is not None and self._connection.has_body():
            message = await self._receive()
        else:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    message = await self._receive()
            except TimeoutError:
                raise RequestTimeout(f"no byte of the request body came for {BODY_SECONDS:g} seconds") from None
        if message["type"] == "http.disconnect":
            self.left = True
            refused = None if self._connection is None else self._connection.refused
            raise refused or ClientLeft
        return message

    def watch(self, task: asyncio.Task[Any] | None = None) -> None:
        """From now on, a client that leaves cancels the task, by default the current one. Call once, after the body
        is read."""
        self._task = task or asyncio.current_task()
        if self._connection is not None:
            self._connection.watch(self._leave)
            return
        self._watch = asyncio.get_running_loop().create_task(self._receive())  # type: ignore[arg-type]
        self._watch.add_done_callback(self._on_message)

    def _on_message(self, watch: asyncio.Task[Message]) -> None:
        if not watch.cancelled() and not watch.exception() and watch is self._watch:
            self._leave()

    def _leave(self) -> None:
        self.left = True
        if self._task:
            self._task.cancel()

    def unwatch(self) -> None:
        """Ends the watch; a later disconnect no longer cancels anything. Idempotent."""
        if self._connection is not None:
            self._connection.watch(None)
        watch, self._watch = self._watch, None
        if watch:
            watch.cancel()

    def absorb_cancel(self) -> bool:
        """After CancelledError: True if it was the client's leaving, which is then settled for the task."""
        if self.left and self._task:
            self._task.uncancel()
            return True
        return False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer at once."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers, WHOLE: True})
        await self.end(body)

    async def piece(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def writer(self) -> Callable[[bytes], bool]:
        """For the pieces of an answer that has started: sends one at once; False if `drain` is due before the next."""
        straight = None if self._connection is None else self._connection.straight()
        return straight or self._keep

    def _keep(self, body: bytes) -> bool:
        self._kept += body
        return False

    async def drain(self) -> None:
        """Waits until the client takes more."""
        if self._kept:
            kept, self._kept = self._kept, b""
            await self.piece(kept)
        elif self._connection is not None:
            await self._connection.drain()

    async def end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has over {limit} bytes (server.max_body_bytes)")


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """What HTTP wants beside an error's body."""
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


async def send_error(down: Downstream, error: GatewayError, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    """Answers with a gateway-made error; `body` is its JSON."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *extra,
        *error_headers(error),
    ]
    await down.answer(error.status, headers, body)
