"""The two halves of an exchange, for each way in which Envoy may send their bodies.

    full duplex   answers may come at any time: head, body in parts of our own, trailers
    in turn       each message has exactly one answer: BUFFERED sends the whole body, and the head may still be changed
                  in the answer to it; STREAMED, for responses, sends the body as it comes

On one side a response half looks like a back end's answer (`upstream.client.Response`); on the other it takes what goes
to the client (`start`, `piece`, `end`). So the proxy's relay serves here as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from gateway.epp.inbox import Inbox
from gateway.epp.wire import (
    NO_CHANGES,
    PIECE_BYTES,
    BodyMode,
    Changes,
    Piece,
    RequestHead,
    ResponseHead,
    Side,
    Trailers,
    body_answer,
    head_answer,
    piece,
    trailers_answer,
)
from gateway.upstream.client import Headers, Take, pour_by_reading

Write = Callable[[Any], Awaitable[None]]
Body = bytes | AsyncIterator[bytes]


class RequestSide(Protocol):
    async def next(self) -> tuple[bytes, bool] | None:
        """The next part of the body, and whether it is the last; None if the stream ends instead."""
        ...

    async def go(self, changes: Changes, body: Body) -> None:
        """Sends the request on, with these changes and the whole body."""
        ...


class DuplexRequest:
    """FULL_DUPLEX_STREAMED."""

    def __init__(self, head: RequestHead, inbox: Inbox, write: Write) -> None:
        self._head = head
        self._inbox = inbox
        self._write = write
        self._trailers = False

    async def next(self) -> tuple[bytes, bool] | None:
        event = await self._inbox.take()
        if isinstance(event, Piece):
            return event.body, event.ended
        self._trailers = isinstance(event, Trailers)
        return None if event is None else (b"", True)

    async def go(self, changes: Changes, body: Body) -> None:
        if isinstance(body, bytes) and not self._head.ended:
            changes = with_length(changes, body)
        await self._write(head_answer(Side.REQUEST, changes))
        if self._head.ended:
            return
        if isinstance(body, bytes):
            await write_duplex(self._write, Side.REQUEST, body, ended=not self._trailers)
        else:
            async for part in body:
                await write_duplex(self._write, Side.REQUEST, part, ended=False)
            if not self._trailers:
                await self._write(piece(Side.REQUEST, b"", ended=True))
        if self._trailers:
            await self._write(trailers_answer(Side.REQUEST))


class BufferedRequest:
    """BUFFERED and BUFFERED_PARTIAL: a head, whose answer lets the body come, then the body in one message."""

    def __init__(self, head: RequestHead, inbox: Inbox, write: Write) -> None:
        self._inbox = inbox
        self._write = write
        self._asked = False
        self._came = b""

    async def next(self) -> tuple[bytes, bool] | None:
        if not self._asked:
            self._asked = True
            await self._write(head_answer(Side.REQUEST))
        event = await self._inbox.take()
        if isinstance(event, Piece):
            self._came = event.body
        return None if event is None else (self._came, True)

    async def go(self, changes: Changes, body: Body) -> None:
        if not self._asked:
            # There is no body, or the handler did not read it.
            await self._write(head_answer(Side.REQUEST, changes))
            return
        whole = body if isinstance(body, bytes) else b"".join([part async for part in body])
        if whole == self._came:
            await self._write(body_answer(Side.REQUEST, changes))
        else:
            await self._write(body_answer(Side.REQUEST, with_length(changes, whole), whole))


class ResponseSide:
    """What all modes have in common: an answer with a head, whose body is read piece by piece."""

    def __init__(self, head: ResponseHead, inbox: Inbox, write: Write) -> None:
        self.status = head.status
        self.headers: Headers = head.headers
        self.ended = head.ended
        self.on_first: Callable[[bytes], None] | None = None
        """Called with the first part of the body."""
        self._head = head
        self._inbox = inbox
        self._write = write
        self._trailers = False

    async def read(self) -> bytes:
        """The next part of the body; b"" at its end."""
        while not self.ended:
            await self.before_next()
            event = await self._inbox.next()
            if not isinstance(event, Piece):
                self.ended = self._trailers = isinstance(event, Trailers) and event.side is Side.RESPONSE
                if isinstance(event, Trailers) and event.side is Side.REQUEST:
                    await self._write(trailers_answer(Side.REQUEST))
                continue
            self.ended = event.ended
            self.came(event.body)
            if event.body:
                if self.on_first is not None:
                    self.on_first(event.body)
                    self.on_first = None
                return event.body
        return b""

    async def pour(self, take: Take) -> bool:
        return await pour_by_reading(self, take)

    async def before_next(self) -> None:
        """Sends what must be answered before the next message can come."""

    def came(self, body: bytes) -> None:
        """Takes note of a message with a part of the body, which may be empty."""

    def hasten(self, seconds: float) -> None:
        """Envoy sees to how long a back end may be silent."""

    def close(self) -> None:
        """Nothing to close: the connection to the back end is Envoy's."""

    async def start(self, changes: Changes) -> None:
        if self._head.ended:
            # The head's length is that of a body that is not sent, as after HEAD.
            changes = Changes([row for row in changes.put if row[0] != b"content-length"])
        await self._write(head_answer(Side.RESPONSE, changes))

    async def piece(self, body: bytes) -> None:
        raise NotImplementedError

    async def end(self, body: bytes) -> None:
        raise NotImplementedError


class DuplexResponse(ResponseSide):
    """FULL_DUPLEX_STREAMED."""

    async def piece(self, body: bytes) -> None:
        await write_duplex(self._write, Side.RESPONSE, body, ended=False)

    async def end(self, body: bytes) -> None:
        if self._head.ended:
            return
        if not self._trailers:
            await write_duplex(self._write, Side.RESPONSE, body, ended=True)
            return
        if body:
            await write_duplex(self._write, Side.RESPONSE, body, ended=False)
        await self._write(trailers_answer(Side.RESPONSE))


class TurnResponse(ResponseSide):
    """STREAMED, BUFFERED, BUFFERED_PARTIAL: what is sent between two reads answers the first of them."""

    def __init__(self, head: ResponseHead, inbox: Inbox, write: Write, mode: BodyMode, early: Changes) -> None:
        super().__init__(head, inbox, write)
        self._early: Changes | None = early
        """The answer to the head; None once it is given. It cannot wait, as the body comes only after it."""
        self._buffered = mode is not BodyMode.STREAMED
        self._last: bytes | None = None
        """The part that has come and is not answered yet."""
        self._out: list[bytes] = []

    async def before_next(self) -> None:
        await self._answer_head()
        await self._answer_last()

    def came(self, body: bytes) -> None:
        self._last = body

    async def start(self, changes: Changes) -> None:
        await self._answer_head()

    async def piece(self, body: bytes) -> None:
        self._out.append(body)

    async def end(self, body: bytes) -> None:
        self._out.append(body)
        await self._answer_head()
        await self._answer_last()
        if self._trailers:
            await self._write(trailers_answer(Side.RESPONSE))

    async def _answer_head(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            await self._write(head_answer(Side.RESPONSE, early))

    async def _answer_last(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        out = b"".join(self._out)
        self._out.clear()
        if out == last:
            await self._write(body_answer(Side.RESPONSE))
        else:
            changes = with_length(NO_CHANGES, out) if self._buffered else NO_CHANGES
            await self._write(body_answer(Side.RESPONSE, changes, out))


async def write_duplex(write: Write, side: Side, body: bytes, *, ended: bool) -> None:
    """A body, or part of one, in messages of the recommended size; at least one."""
    last = max(len(body) - 1, 0) // PIECE_BYTES * PIECE_BYTES
    for start in range(0, last, PIECE_BYTES):
        await write(piece(side, body[start : start + PIECE_BYTES], ended=False))
    await write(piece(side, body[last:], ended=ended))


def with_length(changes: Changes, body: bytes) -> Changes:
    """The changes, and the length of a body that is not the one that came."""
    put = [*changes.put, (b"content-length", b"%d" % len(body))]
    return Changes(put, changes.drop, destination=changes.destination)
