"""One request on a client's connection, and its answer: uvicorn's cycle, which sends in another way and tells more.

An answer's head leaves together with the first bytes of its body, which saves a system call and a packet. Heads are
checked for line breaks once, not each name and value with a pattern. And a request finds its cycle in its scope, as a
`downstream.Connection`: its body where it has come already, a way to write pieces of the answer without ASGI's
messages, and a callback for the loss of the connection.

HTTP/1.0 gets no chunks, which it cannot read: without a length, the connection's end is the body's, and an answer that
is cut ends with a reset.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import pack
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.api.downstream import CONNECTION, WHOLE, Message
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.server import ClientConnection

_RESET = pack("ii", 1, 0)
"""For SO_LINGER: closing discards what is unsent and resets the connection."""


class Cycle(RequestResponseCycle):
    """Made by its connection once a request's head is there."""

    _held: bytes | None = None
    """The head, until there are bytes of the body to go with it; at most for a turn of the loop."""
    _until_closed = False
    """Whether the body ends with the connection."""
    _bodiless = False
    """Whether the answer has no body, whatever its headers say."""

    def __init__(self, connection: ClientConnection, scope: Any, *, keep_alive: bool) -> None:
        super().__init__(
            scope,
            connection.transport,
            connection.flow,
            connection.logger,
            connection.access_logger,
            False,
            connection.server_state.default_headers,
            asyncio.Event(),
            connection.expect_100_continue,
            keep_alive,
            connection.on_response_complete,
        )
        self._connection = connection

    async def run_asgi(self, app: Any) -> None:
        """Runs the application, and cuts the connection if that leaves its answer unfinished."""
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            self.logger.error("Exception in ASGI application\n", exc_info=error)
        finally:
            if not self.response_started and not self.disconnected:
                await self.send_500_response()
            elif not self.response_complete and not self.disconnected:
                self._cut()
            self.on_response = _nothing
            # The scope holds this object, which holds the scope: neither is to wait for a garbage collection.
            self.scope.pop(CONNECTION, None)  # type: ignore[misc]

    async def send(self, message: Message) -> None:  # type: ignore[override]
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.response_started:
            self._begin(message["status"], message.get("headers", ()))
            if WHOLE not in message:
                asyncio.get_running_loop().call_soon(self._release)
        elif kind == "http.response.body" and self.response_started and not self.response_complete:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"the message {kind!r} does not belong here")

    def _begin(self, status: int, headers: Any) -> None:
        line, closes = STATUS_LINE[status], False
        self._bodiless = self.scope["method"] == "HEAD" or status in (204, 304)
        lines = []
        for name, value in (*self.default_headers, *headers):
            name = name.lower()
            if name == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif name == b"connection" and b"close" in [token.strip().lower() for token in value.split(b",")]:
                self.keep_alive, closes = False, True
            lines.append(name + b": " + value)
        if not self.keep_alive and not closes:
            lines.append(b"connection: close")
        unframed = self.chunked_encoding is None and not self._bodiless
        self._until_closed = unframed and self.scope["http_version"] == "1.0"
        if unframed and not self._until_closed:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked")
        head = b"\r\n".join(lines)
        if head.count(b"\n") + 1 != (len(lines) or 1) or head.count(b"\r") != head.count(b"\n"):
            self.chunked_encoding, self.expected_content_length = None, 0
            raise RuntimeError("a line break in an answer's headers")
        self.response_started, self.waiting_for_100_continue = True, False
        self._held = line + head + (b"\r\n\r\n" if lines else b"\r\n")

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self._bodiless:
            self.expected_content_length = 0
            self._write(b"")
        elif self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._write(chunk if more else chunk + b"0\r\n\r\n")
        else:
            if not self._until_closed:
                self.expected_content_length -= len(body)
                if self.expected_content_length < 0:
                    raise RuntimeError("the body is longer than its Content-Length")
            self._write(body)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("the body is shorter than its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write(self, data: bytes) -> None:
        if self._held is None:
            self.transport.write(data)
        else:
            held, self._held = self._held, None
            self.transport.writelines((held, data))

    def _release(self) -> None:
        if self._held is not None and not self.disconnected:
            self._write(b"")

    def _cut(self) -> None:
        """Ends the connection amid the answer, so that the client can tell."""
        self._release()
        if self._until_closed:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        else:
            self.transport.close()

    # What a `downstream.Connection` tells:

    @property
    def refused(self) -> GatewayError | None:
        return self._connection.refused

    def watch(self, on_lost: Callable[[], None] | None) -> None:
        self._connection.watch(on_lost)

    def has_body(self) -> bool:
        return not self.more_body

    def whole_body(self) -> bytes | None:
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        return body

    def straight(self) -> Callable[[bytes], bool] | None:
        return self._write_chunk if self.chunked_encoding else None

    def _write_chunk(self, body: bytes) -> bool:
        if not self.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(body), body))
        return not self.flow.write_paused

    async def drain(self) -> None:
        if self.flow.write_paused:
            await self.flow.drain()


def _nothing() -> None:
    """What is left to call at the end of an answer that has ended."""
