"""Hop 7: the answer's bytes go to the client as they came, and the end is judged.

A stream is relayed piece by piece: once it is under way, from the back end's connection straight to the client's. The
request's task sees to its beginning, to a client that is slow, and to its end. A whole (non-stream) answer is gathered
first when it is small, so that a back end that breaks off in the middle is a clean 502 and not half a body. A stream
that the back end cuts gets an in-band error event and no `[DONE]`: half an answer must never look like a whole one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from gateway.api.dialect import Dialect
from gateway.api.downstream import Downstream
from gateway.api.exchange import Exchange
from gateway.api.stream import BLANK, LineHold
from gateway.errors import GatewayError, NothingAvailable, UpstreamError, UpstreamTimeout, clear_tracebacks
from gateway.types import Result
from gateway.upstream.call import Opened
from gateway.upstream.client import Headers
from gateway.upstream.headers import is_packed_stream
from gateway.upstream.proxy import GATHER_BYTES
from gateway.words import OK

HEARTBEAT = b": keep-alive\n\n"
AFTER_END_SECONDS = 1.0
"""How long a back end may keep a stream open after its end mark or its own error event."""

Rewrite = Callable[[bytes], bytes]
Clock = Callable[[], float]


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
    most = 0 if not response.ended and is_packed_stream(response.headers) else GATHER_BYTES
    while size <= most:
        piece, begun = (await response.read() if begun is None else begun), None
        if piece:
            if exchange.first_byte is None:
                exchange.first_byte = clock()
            pieces.append(piece)
            size += len(piece)
        if response.ended or not piece:
            return await _send_gathered(exchange, down, opened, headers, b"".join(pieces), dialect, rewrite)
    # Too large to gather (audio, images, embeddings in bulk): from here on piece by piece, unchanged.
    await down.start(response.status, headers)
    exchange.status = response.status
    await down.piece(b"".join(pieces))
    pieces.clear()
    while piece := await response.read():
        await down.piece(piece)
    await down.end()
    exchange.result = result_of(response.status, opened.fault)


async def _send_gathered(
    exchange: Exchange,
    down: Downstream,
    opened: Opened,
    headers: Headers,
    body: bytes,
    dialect: Dialect,
    rewrite: Rewrite | None,
) -> None:
    response = opened.response
    if opened.fault is not None:
        exchange.error = "no_answer"
    elif response.status == 200:
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
    exchange.result = result_of(response.status, opened.fault)
    await down.answer(response.status, headers, body)


def result_of(status: int, fault: int | None = None) -> Result:
    """How an answer of the back end counts by its status, or by its `fault` (see `Opened`) where that is good."""
    if fault is not None:
        status = fault or 502
    if status < 400:
        return OK
    # 401 and 403 are the gateway's own key being refused: nothing that the client did wrong.
    if status in (401, 403) or status >= 500:
        return Result.BACKEND_ERROR
    return Result.CLIENT_ERROR


class StreamRelay:
    """Relays one event stream; every way in which it can end is settled here, in band where it must be."""

    __slots__ = (
        "_clock",
        "_dialect",
        "_down",
        "_endpoint",
        "_exchange",
        "_heartbeat",
        "_hold",
        "_moved",
        "_opened",
        "_rewrite",
        "_tail",
        "_write",
    )

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
        self._moved = 0.0
        """When the last piece came; kept for heartbeats only."""
        self._endpoint = opened.lease.endpoint
        self._tail = dialect.tail()
        self._hold = LineHold()

    async def run(self, headers: Headers, time_left: AbstractContextManager[None]) -> None:
        """`time_left` raises UpstreamTimeout when the request's total time is up."""
        exchange, tail = self._exchange, self._tail
        if not self._down.early:
            await self._down.start(self._opened.response.status, headers)
        exchange.status = self._opened.response.status
        failure: GatewayError | None = None
        try:
            with time_left:
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
        await self._let_go(failure)
        self._read_tail()
        if tail.error_seen or self._opened.fault is not None:
            exchange.result = result_of(502, self._opened.fault)
            exchange.error = "error_event" if tail.error_seen else "no_answer"
            if tail.error_seen and not tail.bytes().endswith(BLANK):
                # Readers drop an event without its blank line, and the half answer before it would look whole.
                await (self._down.piece(b"\n\n") if failure is None else self._fail(failure))
            elif not tail.error_seen and not tail.done():
                # Readers take a stream without an event for an answer without a word.
                await self._fail(failure or UpstreamError("the back end ended the stream without an answer"))
        elif tail.done() or (failure is None and self._whole()):
            exchange.result = Result.OK
        else:
            failure = failure or UpstreamError("the back end ended the stream before the answer was finished")
            exchange.result = Result.TIMEOUT if isinstance(failure, UpstreamTimeout) else Result.TRUNCATED
            exchange.error = failure.code
            await self._fail(failure)
        if failure is not None:
            clear_tracebacks(failure)
        await self._down.end()

    async def _let_go(self, failure: GatewayError | None) -> None:
        """Passes on what is held of a last line without an end. Where the stream was cut, only an end mark: half an
        error event would be none to the client, who gets one of ours instead."""
        held = self._hold.rest()
        if held and (failure is None or held.removeprefix(b"data:").strip() == b"[DONE]"):
            self._tail.feed(held)
            await self._down.piece(self._rewrite(held) if self._rewrite else held)

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
        """Moves pieces until the upstream body ends. Raises UpstreamError or UpstreamTimeout when it breaks off.

        Most pieces go from the back end's connection through `_pass` to the client's, and never wake this task.
        """
        opened, down, lease = self._opened, self._down, self._opened.lease
        pour = opened.response.pour
        self._write = down.writer()
        more = await self._reading(pour(self._begin)) if opened.first is None else bool(opened.first)
        if opened.first:
            self._begin(opened.first)
        while more:
            lease.waits = False
            await down.drain()
            lease.waits = True
            more = await self._reading(pour(self._pass))

    def _begin(self, piece: bytes) -> bool:
        """Passes the first piece on, which tells when the back end began, and lets the task look after it."""
        self._exchange.first_byte = now = self._clock()
        if not self._opened.lease.answered and self._opened.fault is None:
            self._opened.lease.first_byte(now)
        if self._exchange.on_first:
            self._exchange.on_first(piece)
        self._pass(piece)
        return False

    def _pass(self, piece: bytes) -> bool:
        """Passes a piece on. False if the client takes no more for now, or the task is to see to how this ends."""
        tail = self._tail
        self._endpoint.moved = True
        if self._heartbeat is not None:
            self._moved = self._clock()
        passing = self._hold.take(piece)
        if not passing:
            return True
        tail.feed(passing)
        if tail.ending:
            # A back end may hold the socket after the last event; its client need not wait for that.
            self._opened.response.hasten(AFTER_END_SECONDS)
        if self._rewrite:
            passing = self._rewrite(passing)
        return not passing or self._write(passing)

    async def _reading(self, pouring: Coroutine[Any, Any, bool]) -> bool:
        """Reads on, as the state of the stream wants it."""
        return await (pouring if self._heartbeat is None else self._with_heartbeats(pouring, self._heartbeat))

    async def _with_heartbeats(self, pouring: Coroutine[Any, Any, bool], every: float) -> bool:
        """Reads on, with a comment to the client for every silent interval. Comments are no first token."""
        pending = asyncio.ensure_future(pouring)
        self._moved = self._clock()
        try:
            while True:
                done, _ = await asyncio.wait((pending,), timeout=self._moved + every - self._clock())
                if done:
                    return pending.result()
                if self._clock() >= self._moved + every:
                    await self._down.piece(HEARTBEAT)
                    self._moved = self._clock()
        finally:
            pending.cancel()
