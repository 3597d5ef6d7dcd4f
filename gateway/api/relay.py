"""Hop 7: the answer's bytes go to the client as they came, and the end is judged.

A stream is relayed piece by piece. A whole (non-stream) answer is gathered first when it is small, so that a back
end that breaks off in the middle is a clean 502 and not half a body. A stream that the back end cuts gets an in-band
error event and no `[DONE]`: half an answer must never look like a whole one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from gateway.api.dialect import Dialect
from gateway.api.downstream import Downstream
from gateway.api.exchange import Exchange
from gateway.api.stream import LineHold
from gateway.errors import GatewayError, NothingAvailable, UpstreamError, UpstreamTimeout, let_go
from gateway.types import Result
from gateway.upstream.client import Headers, Response
from gateway.upstream.proxy import GATHER_BYTES, Opened

HEARTBEAT = b": keep-alive\n\n"
AFTER_ERROR_SECONDS = 1.0
"""How long a back end may keep a stream open after its own error event."""

Rewrite = Callable[[bytes], bytes]
Clock = Callable[[], float]
TimeLeft = Callable[[], AbstractAsyncContextManager[None]]
"""A block's limit: raises UpstreamTimeout when the request's total time is up."""


async def relay_whole(
    exchange: Exchange,
    down: Downstream,
    opened: Opened,
    headers: Headers,
    dialect: Dialect,
    rewrite: Rewrite | None,
    clock: Clock,
) -> None:
    """Relays an answer that is not an event stream.

    Raises UpstreamError or UpstreamTimeout while nothing has gone to the client; after that, cuts the connection.
    """
    response = opened.response
    pieces: list[bytes] = []
    size = 0
    begun = opened.first
    while size <= GATHER_BYTES:
        piece, begun = (await response.read() if begun is None else begun), None
        if not piece:
            return await _send_gathered(exchange, down, response, headers, b"".join(pieces), dialect, rewrite)
        if exchange.first_byte is None:
            exchange.first_byte = clock()
        pieces.append(piece)
        size += len(piece)
    # Too large to gather (audio, images, embeddings in bulk): from here on piece by piece, unchanged.
    await down.start(response.status, headers)
    exchange.status = response.status
    await down.piece(b"".join(pieces))
    pieces.clear()
    while piece := await response.read():
        await down.piece(piece)
    await down.end()
    exchange.result = result_of(response.status)


async def _send_gathered(
    exchange: Exchange,
    down: Downstream,
    response: Response,
    headers: Headers,
    body: bytes,
    dialect: Dialect,
    rewrite: Rewrite | None,
) -> None:
    if response.status == 200:
        exchange.usage = dialect.usage(body)
        exchange.finish_reason = dialect.finish_reason(body)
        if exchange.on_first:
            exchange.on_first(body)
        if rewrite:
            body = rewrite(body)
    if response.status not in (204, 304):
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
    exchange.status = response.status
    exchange.result = result_of(response.status)
    await down.start(response.status, headers)
    await down.end(body)


def result_of(status: int) -> Result:
    """How an answer of the back end counts by its status."""
    if status < 400:
        return Result.OK
    # 401 and 403 are the gateway's own key being refused: nothing that the client did wrong.
    if status in (401, 403) or status >= 500:
        return Result.BACKEND_ERROR
    return Result.CLIENT_ERROR


class StreamRelay:
    """Relays one event stream; every way in which it can end is settled here, in band where it must be."""

    __slots__ = ("_clock", "_dialect", "_down", "_exchange", "_heartbeat", "_hold", "_opened", "_rewrite", "_tail")

    def __init__(
        self,
        exchange: Exchange,
        down: Downstream,
        opened: Opened,
        dialect: Dialect,
        rewrite: Rewrite | None,
        clock: Clock,
        heartbeat: float | None,
    ) -> None:
        self._exchange = exchange
        self._down = down
        self._opened = opened
        self._dialect = dialect
        self._rewrite = rewrite
        self._clock = clock
        self._heartbeat = heartbeat
        """Seconds of silence after which a comment goes out; None for never."""
        self._tail = dialect.tail()
        self._hold = LineHold()

    async def run(self, headers: Headers, time_left: TimeLeft) -> None:
        exchange, tail = self._exchange, self._tail
        if not self._down.early:
            await self._down.start(self._opened.response.status, headers)
        exchange.status = self._opened.response.status
        failure: GatewayError | None = None
        try:
            async with time_left():
                await self._pump()
        except (UpstreamError, UpstreamTimeout) as failed:
            failure = failed
            # The request's own limit says nothing about the back end.
            self._opened.lease.blameless = isinstance(failed, UpstreamTimeout) and failed.phase == "total"
        except asyncio.CancelledError:
            if self._down.left and tail.done():
                # SDKs close at `[DONE]` and do not wait for the body's own end: this answer is whole.
                exchange.whole = True
                self._read_tail()
            elif not self._down.left:
                # The server stops although this stream runs: its client must not take it for finished.
                await self._fail(NothingAvailable("this gateway is stopping"))
            raise
        self._read_tail()
        if tail.error_seen:
            exchange.result, exchange.error = Result.BACKEND_ERROR, "error_event"
        elif tail.done() or (failure is None and self._whole()):
            exchange.result = Result.OK
        else:
            failure = failure or UpstreamError("the back end ended the stream before the answer was finished")
            exchange.result = Result.TIMEOUT if isinstance(failure, UpstreamTimeout) else Result.TRUNCATED
            exchange.error = failure.code
            await self._fail(failure)
        if failure is not None:
            let_go(failure)
        await self._down.end()

    def _read_tail(self) -> None:
        seen = self._tail.bytes()
        self._exchange.usage = self._dialect.usage(seen)
        self._exchange.finish_reason = self._dialect.finish_reason(seen)

    def _whole(self) -> bool:
        """Whether a stream that ended in good order, but without its end mark, is whole."""
        return self._dialect.clean_end or (not self._tail.named and self._exchange.finish_reason is not None)

    async def _fail(self, error: GatewayError) -> None:
        await self._down.piece(self._dialect.event(error, self._tail.bytes()))

    async def _pump(self) -> None:
        """Moves pieces until the upstream body ends. Raises UpstreamError or UpstreamTimeout when it breaks off."""
        opened, tail, hold, rewrite, send = self._opened, self._tail, self._hold, self._rewrite, self._down.piece
        lease, endpoint = opened.lease, opened.lease.endpoint
        read = opened.response.read if self._heartbeat is None else self._read_with_heartbeat
        piece = opened.first if opened.first is not None else await read()
        if piece:
            self._exchange.first_byte = now = self._clock()
            if not lease.answered:
                lease.first_byte(now)
            if self._exchange.on_first:
                self._exchange.on_first(piece)
        while piece:
            endpoint.moved, lease.waits = True, False
            tail.feed(piece)
            passing = hold.take(piece)
            if rewrite and passing:
                passing = rewrite(passing)
            if passing:
                await send(passing)
            lease.waits = True
            piece = await (self._read_after_error() if tail.error_seen else read())
        if held := hold.rest():
            await send(rewrite(held) if rewrite else held)

    async def _read_after_error(self) -> bytes:
        """A back end may hold the socket after its error event; its client need not wait for that."""
        try:
            async with asyncio.timeout(AFTER_ERROR_SECONDS):
                return await self._opened.response.read()
        except TimeoutError:
            return b""

    async def _read_with_heartbeat(self) -> bytes:
        """The next piece, with a comment to the client for every silent interval. Comments are no first token."""
        pending = asyncio.ensure_future(self._opened.response.read())
        try:
            while True:
                done, _ = await asyncio.wait((pending,), timeout=self._heartbeat)
                if done:
                    return pending.result()
                await self._down.piece(HEARTBEAT)
        finally:
            pending.cancel()
