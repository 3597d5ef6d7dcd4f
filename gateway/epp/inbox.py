"""The messages of one Envoy stream that have not been taken yet, and whether the stream has ended.

A task reads ahead, so that a client that leaves is noticed while its request waits for a slot. It stops reading when a
few messages are queued, so that a slow reader slows the sender down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.epp.wire import Event, Piece, ResponseHead, Side, Trailers, read

AHEAD = 8
"""Messages that are read ahead."""

Read = Callable[[], Awaitable[Any]]


class Inbox:
    """`run` reads until the stream ends; `take` and `next` return what it has read."""

    def __init__(self, source: Read, end: object) -> None:
        self._source = source
        self._end = end
        """What `source` returns once the other side has closed."""
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._over = False
        self._whole = False
        self.left = asyncio.Event()
        """Set once the stream has ended in the middle of an exchange and all that came before has been taken."""

    async def run(self) -> None:
        """Reads until the end. Raises what `source` raises, and ValueError for a malformed message, which ends the
        stream."""
        try:
            await self._read_on()
        except BaseException:
            self.hang_up()
            raise

    async def _read_on(self) -> None:
        while (message := await self._source()) is not self._end:
            if (event := read(message)) is None:
                continue
            self._whole = self._whole or _ends_exchange(event)
            self._events.append(event)
            self._news.set()
            while len(self._events) >= AHEAD:
                self._room.clear()
                await self._room.wait()
        self._over = True
        self._news.set()
        self._look()

    async def take(self) -> Event | None:
        """The next event; None if the stream ends instead."""
        while not self._events and not self._over:
            await self._wait()
        return self._take() if self._events else None

    async def next(self) -> Event:
        """The next event. After the stream's end it waits for ever; the caller is cancelled once `left` is set."""
        while not self._events:
            await self._wait()
        return self._take()

    def hang_up(self) -> None:
        """Ends the inbox of a stream that was reset or is malformed: nothing more can be sent on it."""
        self._over = True
        self._news.set()
        self.left.set()

    def _take(self) -> Event:
        event = self._events.popleft()
        self._room.set()
        self._look()
        return event

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _look(self) -> None:
        if self._over and not self._events and not self._whole:
            self.left.set()


def _ends_exchange(event: Event) -> bool:
    """Whether the client has everything once this event is passed on."""
    if isinstance(event, Piece | ResponseHead):
        return event.ended and (isinstance(event, ResponseHead) or event.side is Side.RESPONSE)
    return isinstance(event, Trailers) and event.side is Side.RESPONSE
