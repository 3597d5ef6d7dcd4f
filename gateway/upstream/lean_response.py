"""The answer that a lean connection carries: a list of pieces on one side, `read` on the other.

The connection lets go of the response once the last byte has come, so a slow reader holds memory that is bounded by the
pause in reading, but no connection.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.errors import ConnectionLost
from gateway.upstream.client import Headers, Timeouts


class Carrier(Protocol):
    """What a response needs of its connection."""

    loop: asyncio.AbstractEventLoop

    def set_limit(self, seconds: float | None) -> None: ...

    def resume(self) -> None: ...

    def fail(self, error: BaseException | None = None) -> None: ...


class LeanResponse:
    """See `client.Response`. Its connection fills the underscored fields; nobody else looks at them."""

    __slots__ = (
        "_complete",
        "_connection",
        "_error",
        "_has_body",
        "_has_head",
        "_pieces",
        "_size",
        "_timeouts",
        "_waiter",
        "ended",
        "headers",
        "status",
    )

    def __init__(self, connection: Carrier, timeouts: Timeouts) -> None:
        self.status = 0
        self.headers: Headers = []
        self.ended = False
        self._connection: Carrier | None = connection
        self._timeouts = timeouts
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_head = False
        self._has_body = False
        self._complete = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_head(self) -> None:
        while not self._has_head:
            await self._news()

    async def read(self) -> bytes:
        pieces = self._pieces
        while not pieces:
            if self._complete:
                self.ended = True
                return b""
            if self._connection is not None and self._has_body:
                self._connection.set_limit(self._timeouts.idle)
            await self._news()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        if self._complete:
            self.ended = True
        elif self._connection is not None:
            self._connection.resume()
        return data

    def close(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.fail(ConnectionLost("the response was closed"))
        self._pieces.clear()

    async def _news(self) -> None:
        """Waits until the connection has something to say; raises what it failed with."""
        if self._connection is None:
            # Raised once and let go, here too: kept, it would tie response, traceback and frames into a cycle.
            error, self._error = self._error, None
            try:
                raise error or ConnectionLost("the response is closed")
            finally:
                del error
        self._waiter = waiter = self._connection.loop.create_future()
        try:
            await waiter
        except asyncio.CancelledError:
            self.close()
            raise

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
