"""One HTTP/1.1 connection to a back end: an asyncio protocol around the httptools parser.

    connected ─> idle ── start ──> waiting for the head ──> body comes ──> complete ─> idle again, or closed
                  └───────────────────┴─────────────────────────┴── fail ──> closed for good

It serves one `LeanResponse` at a time. Received bytes go through the parser into the response's pieces, and its reader
is woken once for all that came together. Reading pauses while more than `HIGH_WATER` bytes wait. Whatever goes wrong
(the server closes, a limit passes, the reader leaves) ends in `fail`. The time limit is in `deadline`.

For example, an answer in two pieces: `start` writes the request and sets the limit for the first byte. The head comes:
`on_headers_complete` fills the response, whose waiter is woken. A piece comes: `on_body` adds it, and the limit is off
until the reader waits again. The last piece comes: `on_message_complete`, then `_finish` detaches the response and
gives the connection back to its owner, with the limit for idle ones.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol, cast

import httptools

from gateway.errors import BadUpstreamResponse, ConnectionLost, UpstreamTimeout
from gateway.upstream.client import Dropped, Extra, Headers, Timeouts
from gateway.upstream.deadline import NEVER, Limited
from gateway.upstream.headers import has_length, head_fault
from gateway.upstream.lean_request import MAX_WHOLE, framed, request_was_taken
from gateway.upstream.lean_response import LeanResponse

HIGH_WATER = 256 * 1024
"""Body bytes that may wait for the reader; a read from the socket (256 KB at most) may come on top."""
MAX_SILENCE = 64 * 1024
"""Bytes without a body byte among them: bounds the head, chunk extensions, trailers and interim answers alike."""


class Stale(ConnectionLost):
    """An idle connection that the server had closed without taking the request, so that sending it again is safe."""


class Owner(Protocol):
    """The connector that a connection belongs to. Exactly one of the two calls ends each use."""

    keep_alive: float

    def keep(self, connection: LeanConnection) -> bool:
        """Takes back a connection that has become idle; False if it is to be closed."""

    def drop(self, connection: LeanConnection) -> None:
        """Forgets a connection that was closed, whether in use or idle."""


class _Stop(Exception):
    """Ends parsing from within a callback."""


class LeanConnection(Limited):
    """One socket: idle, or busy with one response; closed for good once it fails."""

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self.closed = False
        self._used = False
        """Whether it has brought an answer, so that the server may have closed it since."""
        # Of the exchange at hand:
        self._response: LeanResponse | None = None
        """None while idle."""
        self._headers: Headers = []
        self._is_head = False
        """Whether the request is a HEAD, whose answer has no body."""
        self._silence = 0
        """Bytes received since the last one of a body."""
        self._fault: str | None = None
        """Why parsing was stopped."""
        self._keep = False
        """Whether the server lets the connection serve another request."""
        self._upload: asyncio.Task[None] | None = None
        """Sends a large body while the answer may already come."""
        # Flow control, towards the reader and towards the server:
        self._reading = True
        self._writable = True
        self._drained: asyncio.Future[None] | None = None

    def start(
        self, head: bytes, body: bytes | AsyncIterator[bytes], timeouts: Timeouts, extra: Extra | None, *, is_head: bool
    ) -> LeanResponse:
        """Begins an exchange. The connection must be idle and open."""
        assert self._transport is not None
        self._response = response = LeanResponse(self, timeouts, extra)
        self._headers = response.headers
        self._silence = 0
        self._is_head = is_head
        if isinstance(body, bytes) and len(body) <= MAX_WHOLE:
            # One write, hence one segment where it fits; a large body isn't worth the copy.
            self._transport.write(head + body)
            self.set_limit(timeouts.first_byte)
        else:
            self._transport.write(head)
            self._upload = self.loop.create_task(self._send_body(body, response))
        return response

    def resume(self) -> None:
        if not self._reading and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    def fail(self, error: BaseException | None = None) -> None:
        """Closes the socket now; a running response ends with `error`. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._upload is not None:
            self._upload.cancel()
        response, self._response = self._response, None
        if response is not None:
            response._connection = None
            response._error = error
            response.wake()
        self._owner.drop(self)
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
        self._parser = httptools.HttpResponseParser(self)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            # Not an answer: an error page for an idle connection, or worse. It must not be read as the next answer.
            self.fail()
            return
        self._silence += len(data)
        size = response._size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            if not response._complete:
                self.fail(BadUpstreamResponse(f"the back end did not answer in HTTP: {self._fault or error}"))
                return
        if response._size != size:
            response._has_body = True
            self._silence = 0
            self._deadline = NEVER
        if response._complete:
            self._finish(response)
        elif self._silence > MAX_SILENCE:
            self.fail(BadUpstreamResponse("the back end's headers are too large"))
        else:
            response.arrived()
            if response._size > HIGH_WATER and self._reading and not self.closed and self._transport is not None:
                self._reading = False
                self._transport.pause_reading()

    def eof_received(self) -> None:
        response = self._response
        if response is not None and response._has_head and not has_length(response.headers):
            self._keep = False
            response._complete = True
            self._finish(response)
        else:
            self._lose(in_order=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(in_order=False)
        # The parser holds this object's methods: a cycle, if left.
        del self._parser

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # What the parser calls:

    def on_message_begin(self) -> None:
        if self._response is None or self._response._complete:
            raise _Stop  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here as well, after the head has been handed over to a list that nobody reads.
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        status = self._parser.get_status_code()
        if status < 200 and status != 101:
            self._headers.clear()
            return
        headers = response.headers
        if self._silence > MAX_SILENCE and sum(len(n) + len(v) + 4 for n, v in headers) > MAX_SILENCE:
            self._fault = "the headers are too large"
        else:
            self._fault = head_fault(status, headers)
        if self._fault:
            raise _Stop
        response.status = status
        response._has_head = True
        self._headers = []
        if self._is_head:
            # The parser would wait for the body that the length announces, so this connection ends here.
            response._complete = True
            raise _Stop

    def on_body(self, body: bytes) -> None:
        response = self._response
        assert response is not None
        response._pieces.append(body)
        response._size += len(body)

    def on_message_complete(self) -> None:
        response = self._response
        assert response is not None
        if response._has_head:
            response._complete = True
            self._keep = self._parser.should_keep_alive()

    def _finish(self, response: LeanResponse) -> None:
        """The answer is complete: detaches the response; the connection becomes idle or is closed."""
        if not self._keep or self._upload is not None:
            self.fail()
            return
        self._response = None
        response._connection = None
        response.wake()
        self.resume()
        self._used = True
        if self._owner.keep(self):
            self.set_limit(self._owner.keep_alive)
        else:
            self.fail()

    def _lose(self, *, in_order: bool) -> None:
        """The server has closed, `in_order` by FIN and else by RST."""
        response = self._response
        if response is None:
            self.fail()
        elif response._has_head or self._silence:
            self.fail(ConnectionLost("the back end closed the connection in the middle of its answer"))
        elif self._used and not (in_order and request_was_taken(self._transport)):
            self.fail(Stale("the back end had closed the connection"))
        else:
            kind = Dropped if self._used else ConnectionLost
            self.fail(kind("the back end closed the connection without an answer"))

    def expired(self) -> None:
        response = self._response
        if response is None:
            self.fail()
        elif response._has_body or self._upload is not None:
            self.fail(UpstreamTimeout("the back end fell silent", phase="idle"))
        elif (more := response.more_time()) > 0.0:
            self.set_limit(more)
        else:
            self.fail(UpstreamTimeout("the back end sent no first byte in time", phase="first_byte"))

    async def _send_body(self, body: bytes | AsyncIterator[bytes], response: LeanResponse) -> None:
        try:
            async with aclosing(framed(body)) as pieces:
                async for piece in pieces:
                    await self._write(piece, response)
                    # The system may take megabytes without a pause, for which other requests would stand still.
                    await asyncio.sleep(0)
        except Exception as error:
            # Whatever the body's source raises belongs to the caller of `send`, who waits for the head.
            self._upload = None
            self.fail(error)
            return
        self._upload = None
        if not response._has_body:
            self.set_limit(response._timeouts.first_byte)

    async def _write(self, data: bytes | memoryview, response: LeanResponse) -> None:
        assert self._transport is not None
        self._transport.write(data)
        while not self._writable:
            if not response._has_body:
                self.set_limit(response._timeouts.idle)
            self._drained = self.loop.create_future()
            await self._drained
        if not response._has_body:
            self._deadline = NEVER
