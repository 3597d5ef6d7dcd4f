"""Sends one malformed case over a socket of its own and says what the gateway made of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from tests.benchmarks.malformed_cases import Case

GRACE_SECONDS = 0.05
"""How long an answer is waited for that need not come."""
HUNG_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What came back."""

    statuses: tuple[int, ...]
    problem: str = ""
    """A violation in words; empty where the gateway did well."""


class _Answers:
    """Counts whole answers with httptools' response parser; an answer that is not HTTP is a violation too."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.whole = 0
        self.body = b""
        """Of the last answer."""
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises httptools.HttpParserError."""
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.body = b""
        self.statuses.append(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole += self.statuses[-1] >= 200


async def send(port: int, case: Case) -> Seen:
    """One case from its first byte to what it must bring, or to the gateway's closing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = _Answers()
    problem = ""
    try:
        writer.write(case.wire)
        with contextlib.suppress(ConnectionError):
            problem = await _read(reader, answers, case)
    finally:
        writer.transport.abort()
    if any(status >= 500 for status in answers.statuses):
        problem = f"status {max(answers.statuses)} {answers.body[:150].decode('latin-1')}"
    return Seen(tuple(answers.statuses), problem)


async def _read(reader: asyncio.StreamReader, answers: _Answers, case: Case) -> str:
    while answers.whole < max(case.answers, 1):
        try:
            async with asyncio.timeout(HUNG_SECONDS if answers.whole < case.answers else GRACE_SECONDS):
                data = await reader.read(65536)
        except TimeoutError:
            return "no answer" if answers.whole < case.answers else ""
        if not data:
            # A refusal in the middle of a pipeline ends the connection.
            refused = any(status in (400, 413, 431) for status in answers.statuses)
            return "" if answers.whole >= case.answers or refused else "closed without an answer"
        try:
            answers.feed(data)
        except httptools.HttpParserError as error:
            return f"an answer that is not HTTP: {error}"
    return ""


class AcceptsAll(asyncio.Protocol):
    """A back end that answers whatever is well framed, and counts what is not: the gateway's own framing is at test."""

    def __init__(self, unreadable: Callable[[], None]) -> None:
        self._unreadable = unreadable
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._unreadable()
            assert self._transport is not None
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._transport is not None
        if b'"stream":true' in self._body.replace(b" ", b""):
            event = (
                b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
            )
            kind, answer = b"text/event-stream", event
        else:
            kind, answer = (
                b"application/json",
                b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}',
            )
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(answer))
        self._transport.write(head + (b"" if self._parser.get_method() == b"HEAD" else answer))
