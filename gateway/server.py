"""uvicorn's HTTP protocol, which also tells a running request that its client's connection is lost.

ASGI tells it through `receive` alone, so that noticing takes a task of its own for each request; a callback costs next
to nothing. And an answer's head leaves together with the first bytes of its body, which saves a system call and a
packet. The application works without it, on any ASGI server, in ASGI's way.

Four things are otherwise than in uvicorn: a request that offers another protocol (Java's client offers h2c with every
body) is served as if it did not, its body included; HTTP/1.0 gets no chunks, which it cannot read; a head without end
is refused; and what is no HTTP at all is refused in the form of all other errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.api.downstream import CONNECTION, Scope
from gateway.errors import BadRequest, GatewayError, HeadersTooLarge

LONGEST_HEAD = 256 * 1024
"""Bytes; more of a head, in more than one read, ends the connection. What a request may have is for `api/head.py`."""


class _UntilClosed(int):
    """What is left to write of a body that ends with its connection: always enough, and never owed."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> _UntilClosed:
        return self

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class HeldWrites:
    """A transport that can hold one write back until the next one, but never beyond the present turn of the loop."""

    __slots__ = ("_held", "_holding", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._holding = False
        self._held: bytes | None = None
        self.is_closing = transport.is_closing

    def hold(self) -> None:
        """Holds the next write back."""
        self._holding = True

    def write(self, data: bytes) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.writelines((held, data))
        elif self._holding:
            self._holding, self._held = False, data
            asyncio.get_running_loop().call_soon(self._release)
        else:
            self._transport.write(data)

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.write(held)

    def close(self) -> None:
        self._release()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ClientConnection(HttpToolsProtocol):
    """One client's connection; see `downstream.Connection`. Requests find it in their scope."""

    _on_lost: Callable[[], None] | None = None
    _lost = False
    refused: GatewayError | None = None
    _offers = False
    """The message amid reading offers another protocol; `_before` is then the cycle of the one before it."""
    _head = -1
    """Bytes read of a head that has not ended; below zero outside of heads."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        held = HeldWrites(transport)
        self.hold = held.hold
        super().connection_made(cast(asyncio.Transport, held))

    def watch(self, on_lost: Callable[[], None] | None) -> None:
        self._on_lost = on_lost
        if on_lost is not None:
            # A large body has paused the reading, without which no end is seen.
            self.flow.resume_reading()
            if self._lost:
                on_lost()

    def straight(self) -> Callable[[bytes], bool] | None:
        # With a request waiting behind it, `cycle` is not the one whose answer goes out.
        cycle = self.cycle
        return None if cycle is None or self.pipeline or not cycle.chunked_encoding else self._write_chunk

    def _write_chunk(self, body: bytes) -> bool:
        if not self._lost:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return not self.flow.write_paused

    async def drain(self) -> None:
        if self.flow.write_paused:
            await self.flow.drain()

    def has_body(self) -> bool:
        # A later request's cycle, if there is one already, came after the whole of this one.
        return self.cycle is None or not self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self._refuse(BadRequest("this is not an HTTP request"))
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._offers:
                self._stay(data[upgrade.args[0] :])
        if self._head >= 0:
            self._head += len(data)
            if self._head > LONGEST_HEAD:
                self._head = -1
                self._refuse(HeadersTooLarge("the request's headers are too large"))

    def _stay(self, rest: bytes) -> None:
        """Reads the request again without its offer, for which the parser has skipped the body."""
        self._offers, self.cycle = False, self._before
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name not in (b"upgrade", b"http2-settings")]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _refuse(self, error: GatewayError) -> None:
        """Answers what never became a whole request, and hangs up; says nothing amid the answer to another one."""
        self.refused = error
        if self.transport.is_closing():
            return
        cycle = self.cycle
        unheard = cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline
        if cycle is None or cycle.response_complete or unheard:
            body = error.body()
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0
        cast(Scope, self.scope)[CONNECTION] = self

    def on_headers_complete(self) -> None:
        self._head = -1
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade():
            # Not served yet, see `_stay`; the parser takes the message for complete and says so to the cycle it finds.
            self._offers, self._before, self.cycle = (
                True,
                self.cycle,
                cast(Any, SimpleNamespace(response_complete=True)),
            )
            return
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _UntilClosed()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost = True
        if self._on_lost is not None:
            self._on_lost()
        # After a reset it would hold on to all this for as long as clients may keep idle connections.
        self._unset_keepalive_if_required()
        # A cycle knows its connection, by its scope: without these references each goes when the last of them is let
        # go, and none waits for a garbage collection.
        self.pipeline.clear()
        self.cycle = self.scope = None  # type: ignore[assignment]
