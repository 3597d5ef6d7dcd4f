"""The answer of an httpx exchange: filled by the exchange's task, read by the request's."""

from __future__ import annotations

import asyncio

from gateway.errors import ConnectionLost, UpstreamTimeout
from gateway.upstream.client import Headers, Take, Timeouts, pour_by_reading

HIGH_WATER = 256 * 1024
"""Body bytes that may wait for the reader; one piece may come on top."""

_FIRST_BYTE = "the back end sent no first byte in time"


class HttpxResponse:
    """See `client.Response`. Filled by its exchange's task."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.status = 0
        self.headers: Headers = []
        self.ended = False
        self.reused = True
        """Whether the exchange went over a connection that was there before."""
        self._timeouts = timeouts
        self._idle = timeouts.idle
        self._task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self.has_head = False
        self._has_body = False
        self._complete = False
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._first_byte_by: float | None = None
        self._head_limit: asyncio.Timeout | None = None

    def attach(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def hasten(self, seconds: float) -> None:
        self._idle = seconds if self._idle is None else min(self._idle, seconds)

    def close(self) -> None:
        # One cancellation only, see above; `_task` is let go with it.
        task, self._task = self._task, None
        if task is not None and not self._complete:
            task.cancel()
        self._pieces.clear()
        self._room.set()
        self._news.set()

    async def wait_for_head(self) -> None:
        try:
            async with asyncio.timeout(None) as self._head_limit:
                while not self.has_head:
                    await self._wait()
        except TimeoutError:
            self.close()
            raise UpstreamTimeout(_FIRST_BYTE, phase="first_byte") from None
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._head_limit = None

    async def read(self) -> bytes:
        loop = asyncio.get_running_loop()
        by = self._first_byte_by
        if self._has_body:
            by = None if self._idle is None else loop.time() + self._idle
        try:
            async with asyncio.timeout_at(by):
                while not self._pieces and not self._complete:
                    await self._wait()
        except TimeoutError:
            self.close()
            if self._has_body:
                raise UpstreamTimeout("the back end fell silent", phase="idle") from None
            raise UpstreamTimeout(_FIRST_BYTE, phase="first_byte") from None
        except asyncio.CancelledError:
            self.close()
            raise
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._room.set()
        self.ended = self._complete
        return data

    async def pour(self, take: Take) -> bool:
        return await pour_by_reading(self, take)

    async def _wait(self) -> None:
        if self._error is not None:
            error, self._error, self._task = self._error, None, None
            raise error
        if self._task is None:
            raise ConnectionLost("the response is closed")
        self._news.clear()
        await self._news.wait()

    # What the task calls:

    def on_event(self, event: str) -> None:
        """Follows httpcore through the phases that it doesn't report otherwise."""
        if event.endswith("connect_tcp.started"):
            self.reused = False
        elif event.endswith("send_request_body.complete"):
            self._start_first_byte()

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers, self.has_head = status, headers, True
        if self._first_byte_by is None:
            self._start_first_byte()
        self._news.set()

    async def on_piece(self, piece: bytes) -> None:
        """Returns when there is room for more."""
        self._has_body = True
        self._pieces.append(piece)
        self._size += len(piece)
        self._news.set()
        while self._size > HIGH_WATER:
            self._room.clear()
            await self._room.wait()

    def on_end(self, error: Exception | None) -> None:
        self._complete = error is None
        self._error = error
        self._news.set()

    def _start_first_byte(self) -> None:
        if self._timeouts.first_byte is not None:
            self._first_byte_by = asyncio.get_running_loop().time() + self._timeouts.first_byte
            if self._head_limit is not None:
                self._head_limit.reschedule(self._first_byte_by)
