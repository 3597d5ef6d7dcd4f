"""The lean connector: plain `http://` over asyncio and httptools, at about the cost of the system calls.

Idle connections form a stack, so that the one used last is used first and the surplus expires. An idle connection is
closed after `keep_alive` seconds, which must be below the server's own limit (5 s for vLLM), so that a request seldom
meets a connection about to close; if it does, it is sent again on a new one (see `lean_protocol`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gateway.errors import ConnectFailed, NothingAvailable, UpstreamTimeout
from gateway.upstream.client import ConnectorStatistics, Extra, Headers, Timeouts
from gateway.upstream.lean_protocol import LeanConnection, Stale
from gateway.upstream.lean_response import LeanResponse

_WITHOUT_BODY = frozenset({b"GET", b"HEAD", b"OPTIONS", b"DELETE"})
"""Methods for which no Content-Length says that there is no body."""


class LeanConnector:
    """See `client.Connector`. `limit` bounds concurrent exchanges; 0 is no limit."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str | None = None,
        prefix: bytes = b"",
        limit: int = 0,
        keep_alive: float = 4.0,
    ) -> None:
        """`host` is a name or an IP literal (IPv6 without brackets), `name` what the Host header says in its place;
        `prefix` goes before every target."""
        self.keep_alive = keep_alive
        self._host = host
        self._port = port
        self._prefix = prefix
        self._limit = limit
        name = name or (f"[{host}]" if ":" in host else host)
        self._host_line = b" HTTP/1.1\r\nhost: " + (name if port == 80 else f"{name}:{port}").encode("ascii")
        self._free: dict[LeanConnection, None] = {}
        self._active = 0
        self._opened = 0
        self._closed = False

    async def send(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
        extra: Extra | None = None,
    ) -> LeanResponse:
        if self._limit and self._active >= self._limit:
            raise NothingAvailable("all connections to the back end are in use", retry_after=1)
        head = self._head(method, target, headers, body)
        if self._free:
            connection = self._free.popitem()[0]
            self._active += 1
            try:
                return await self._exchange(connection, head, body, timeouts, extra)
            except Stale:
                if not isinstance(body, bytes):
                    raise
        connection = await self._connect(timeouts.connect)
        return await self._exchange(connection, head, body, timeouts, extra)

    def statistics(self) -> ConnectorStatistics:
        return ConnectorStatistics(active=self._active, idle=len(self._free), opened=self._opened)

    def __repr__(self) -> str:
        return f"<LeanConnector {self._host}:{self._port} {self.statistics()}>"

    async def aclose(self) -> None:
        self._closed = True
        for connection in list(self._free):
            connection.fail()

    def keep(self, connection: LeanConnection) -> bool:
        """See `lean_protocol.Owner`."""
        if self._closed:
            return False
        self._active -= 1
        self._free[connection] = None
        return True

    def drop(self, connection: LeanConnection) -> None:
        """See `lean_protocol.Owner`."""
        if connection in self._free:
            del self._free[connection]
        else:
            self._active -= 1

    def _head(self, method: bytes, target: bytes, headers: Headers, body: bytes | AsyncIterator[bytes]) -> bytes:
        lines = [method + b" " + self._prefix + target + self._host_line]
        lines += [name + b": " + value for name, value in headers]
        if not isinstance(body, bytes):
            lines.append(b"transfer-encoding: chunked")
        elif body or method not in _WITHOUT_BODY:
            lines.append(b"content-length: %d" % len(body))
        # A line break inside any part would start a header, or a request, of somebody else's making.
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("a line break in a request's target or headers")
        return head + b"\r\n\r\n"

    async def _connect(self, limit: float | None) -> LeanConnection:
        loop = asyncio.get_running_loop()
        connection = LeanConnection(self, loop)
        self._active += 1
        try:
            async with asyncio.timeout(limit):
                await loop.create_connection(lambda: connection, self._host, self._port)
        except TimeoutError:
            connection.fail()
            raise UpstreamTimeout("connecting to the back end took too long", phase="connect") from None
        except OSError as error:
            connection.fail()
            raise ConnectFailed(f"cannot connect to the back end: {error.strerror or error}") from error
        except BaseException:
            connection.fail()
            raise
        self._opened += 1
        if connection.closed:
            raise ConnectFailed("the back end closed the connection before the request")
        return connection

    async def _exchange(
        self,
        connection: LeanConnection,
        head: bytes,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
        extra: Extra | None,
    ) -> LeanResponse:
        response = connection.start(head, body, timeouts, extra, is_head=head.startswith(b"HEAD "))
        await response.wait_for_head()
        return response
