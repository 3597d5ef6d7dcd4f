"""The answer that a lean connection carries: a list of pieces on one side, `read` or `pour` on the other.

While it is poured, pieces go from the connection's callback to the taker without waking a task. The task that pours is
woken at the end, for an error, and when the taker wants no more for now.

The connection detaches from the response once the last byte has come. So a slow reader holds no connection, but only
memory, which the pause in reading bounds.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.errors import ConnectionLost
from gateway.upstream.client import Extra, Headers, Take, Timeouts


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
        "_extra",
        "_has_body",
        "_has_head",
        "_idle",
        "_pieces",
        "_size",
        "_take",
        "_timeouts",
        "_waiter",
        "ended",
        "headers",
        "status",
    )

    def __init__(self, connection: Carrier, timeouts: Timeouts, extra: Extra | None = None) -> None:
        self.status = 0
        self.headers: Headers = []
        self.ended = False
        self._connection: Carrier | None = connection
        self._timeouts = timeouts
        self._idle = timeouts.idle
        self._extra = extra
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_head = False
        self._has_body = False
        self._complete = False
        self._error: BaseException | None = None
        self._take: Take | None = None
        """The current taker of poured pieces."""
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
                self._connection.set_limit(self._idle)
            await self._news()
        data = self._gathered()
        if self._complete:
            self.ended = True
        elif self._connection is not None:
            self._connection.resume()
        return data

    async def pour(self, take: Take) -> bool:
        try:
            while self._pieces or not self._complete:
                if self._pieces:
                    if not take(self._gathered()):
                        return True
                    continue
                if self._connection is not None:
                    self._connection.resume()
                    if self._has_body:
                        self._connection.set_limit(self._idle)
                self._take = take
                await self._news()
                if self._take is None:
                    return True
        finally:
            self._take = None
        self.ended = True
        return False

    def hasten(self, seconds: float) -> None:
        self._idle = seconds if self._idle is None else min(self._idle, seconds)

    def close(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.fail(ConnectionLost("the response was closed"))
        self._pieces.clear()

    async def _news(self) -> None:
        """Waits until something has happened on the connection; raises what it failed with."""
        if self._connection is None:
            # Raised once and dropped: kept, it would tie response, traceback and frames into a cycle.
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

    def _gathered(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        return data

    def arrived(self) -> None:
        """Called when something has come and more will: pours it, or wakes the reader."""
        take, connection = self._take, self._connection
        if take is not None and self._pieces and connection is not None:
            try:
                more = take(self._gathered())
            except Exception as fault:
                # Not the back end's: it belongs to the task that pours.
                connection.fail(fault)
                return
            if more:
                connection.set_limit(self._idle)
                return
            self._take = None
        self.wake()

    def more_time(self) -> float:
        """Extra seconds for the first byte, given once."""
        extra, self._extra = self._extra, None
        return 0.0 if extra is None else extra()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
