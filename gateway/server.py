"""uvicorn's HTTP protocol, which also tells a running request that its client's connection is lost.

ASGI tells it through `receive` alone, so that noticing takes a task of its own for each request; a callback costs next
to nothing. How answers are sent is in `gateway.cycle`. The application works without both, on any ASGI server, in
ASGI's way.

Three things are otherwise than in uvicorn: a request that offers another protocol (Java's client offers h2c with every
body, and a WebSocket begins so) is served as if it did not, its body included; a head without end is refused; and what
is no HTTP at all is refused in the form of all other errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.cycle import Cycle
from gateway.errors import BadRequest, GatewayError, HeadersTooLarge

LONGEST_HEAD = 256 * 1024
"""Bytes; more of a head, in more than one read, ends the connection. What a request may have is for `api/head.py`."""


class ClientConnection(HttpToolsProtocol):
    """One client's connection; its requests' cycles find it."""

    _on_lost: Callable[[], None] | None = None
    _lost = False
    _running: Cycle | None = None
    """Of the requests at hand, the one whose turn it is; `cycle` is that of the last."""
    refused: GatewayError | None = None
    _offers = False
    """The message amid reading offers another protocol; `_before` is then the cycle of the one before it."""
    _head = -1
    """Bytes read of a head that has not ended; below zero outside of heads."""
    _idle_until = inf
    """When a client without a whole request head is let go, by the loop's clock; infinite while a request runs."""

    def watch(self, on_lost: Callable[[], None] | None) -> None:
        """See `downstream.Connection`."""
        self._on_lost = on_lost
        if on_lost is not None:
            # A large body has paused the reading, without which no end is seen.
            self.flow.resume_reading()
            if self._lost:
                on_lost()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._rest()

    def data_received(self, data: bytes) -> None:
        if self._head < 0:
            # The pieces of a head get no more time than its beginning had.
            self._idle_until = inf
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self._refuse(BadRequest("this is not an HTTP request"))
        except httptools.HttpParserUpgrade as upgrade:
            if self._offers:
                self._stay(data[upgrade.args[0] :])
        if self._head >= 0:
            self._head += len(data)
            if self._head > LONGEST_HEAD:
                self._head = -1
                self._refuse(HeadersTooLarge("the request's headers are too large"))
        if self._idle_until == inf and (self.cycle is None or self.cycle.response_complete):
            # Between requests: half a head, a blank line, or more of a body that was refused before it had come.
            self._rest()

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

    def on_headers_complete(self) -> None:
        self._head, self._idle_until = -1, inf
        parser, scope, before = self.parser, self.scope, self.cycle
        method, version, url = parser.get_method(), parser.get_http_version(), httptools.parse_url(self.url)
        if parser.should_upgrade() and method != b"CONNECT":
            # Not served yet, see `_stay`; the parser takes the message for complete and says so to the cycle it finds.
            self._offers, self._before, self.cycle = True, before, cast(Any, SimpleNamespace(response_complete=True))
            return
        path = url.path.decode("ascii")
        scope["method"], scope["http_version"] = method.decode("ascii"), version
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"], scope["query_string"] = self.root_path.encode() + url.path, url.query or b""
        self.cycle = Cycle(self, scope, keep_alive=version != "1.0" and parser.should_keep_alive())
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            # Pipelined: its turn comes when the answers before it are complete.
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._rest()

    def _rest(self) -> None:
        """Lets the client go if nothing more comes for a while."""
        self._idle_until = self.loop.time() + self.timeout_keep_alive
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_at(self._idle_until, self._on_idle)

    def _on_idle(self) -> None:
        """One timer serves all of a connection's requests: it looks again where one came after it was set."""
        self.timeout_keep_alive_task = None
        if self._idle_until <= self.loop.time():
            self.timeout_keep_alive_handler()
        elif self._idle_until < inf:
            self.timeout_keep_alive_task = self.loop.call_at(self._idle_until, self._on_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        self._lost = True
        if self._on_lost is not None:
            self._on_lost()
        # After a reset it would hold on to all this for as long as clients may keep idle connections.
        self._unset_keepalive_if_required()
        # A cycle knows its connection, by its scope: without these references each goes when the last of them is let
        # go, and none waits for a garbage collection.
        self.pipeline.clear()
        self.cycle = self.scope = self._running = None  # type: ignore[assignment]
