"""The static upstream: as fast as Python answers, so that what is measured is the proxy in front of it.

    python -m tests.benchmarks.upstream --ports 9001 9002

One raw asyncio protocol on httptools. Two ports of one process stand for a plain and an MTP server; they differ only
in `/metrics`. A stream's tokens go out on an absolute timetable, first token one interval after the request, so that
a late timer delays one token and not all that follow. With an interval of 0 tokens follow each other as fast as the
reader takes them, with at most one socket buffer waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import time
from functools import partial
from typing import cast

import httptools
import uvloop

from tests.benchmarks import wire

_STREAM = re.compile(rb'"stream"\s*:\s*true')
_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
_STREAM_HEADERS = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _whole(status: bytes, kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Counters:
    """What the metrics page reports."""

    def __init__(self, speculative: bool) -> None:
        self.speculative = speculative
        self.finished = 0
        self.running = 0


class Stream:
    """One paced answer on one connection."""

    def __init__(self, connection: Connection, shape: wire.StreamShape, usage: bool) -> None:
        self._connection = connection
        self._shape = shape
        self._usage = usage
        self._pad = b"x" * shape.pad
        self._sent = 0
        self._arrived: int | None = time.monotonic_ns()
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._timer: asyncio.Handle | None = None
        self._paused = False
        connection.write(_STREAM_HEADERS)
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def pause(self, paused: bool) -> None:
        self._paused = paused
        if not paused and self._timer is None:
            self._schedule()

    def _schedule(self) -> None:
        if self._shape.interval_us == 0:
            self._timer = self._loop.call_soon(self._next)
        else:
            due = self._start + (self._sent + 1) * self._shape.interval_us / 1e6
            self._timer = self._loop.call_at(due, self._next)

    def _next(self) -> None:
        self._timer = None
        if self._sent == self._shape.tokens:
            self._connection.write(_chunk(wire.closing_events(self._sent, self._usage)) + b"0\r\n\r\n")
            self._connection.stream_ended()
            return
        event = wire.token_event(time.monotonic_ns(), self._arrived, self._pad)
        self._arrived = None
        self._sent += 1
        self._connection.write(_chunk(event))
        # A paused stream schedules nothing; resuming does.
        if not self._paused:
            self._schedule()


class Connection(asyncio.Protocol):
    """One keep-alive connection from a proxy or from the load generator."""

    def __init__(self, counters: Counters, answer: bytes, models: bytes) -> None:
        self._counters = counters
        self._answer = answer
        self._models = models
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._stream: Stream | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.stop()
            self._counters.running -= 1
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.abort()

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.pause(True)

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.pause(False)

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if path.endswith(b"/chat/completions"):
            self._complete(self._body[0] if len(self._body) == 1 else b"".join(self._body))
        elif path.endswith(b"/models"):
            self.write(_whole(b"200 OK", b"application/json", self._models))
        elif path == b"/metrics":
            counters = self._counters
            page = wire.metrics_page(counters.finished, counters.running, counters.speculative)
            self.write(_whole(b"200 OK", b"text/plain; version=0.0.4; charset=utf-8", page))
        elif path == b"/version":
            self.write(_whole(b"200 OK", b"application/json", b'{"version":"0.30.0"}'))
        elif path in (b"/health", b"/ping"):
            self.write(_whole(b"200 OK", b"text/plain", b""))
        else:
            self.write(_whole(b"404 Not Found", b"application/json", b'{"detail":"Not Found"}'))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def stream_ended(self) -> None:
        self._stream = None
        self._counters.running -= 1
        self._counters.finished += 1

    def _complete(self, body: bytes) -> None:
        # The plain search first: a pattern over 10 MB would hold the loop for tens of milliseconds.
        if b'"stream"' not in body or _STREAM.search(body) is None:
            self._counters.finished += 1
            self.write(self._answer)
            return
        found = wire.DIRECTIVE.search(body)
        shape = wire.StreamShape(*map(int, found.groups())) if found else wire.StreamShape(16, 10_000)
        self._counters.running += 1
        self._stream = Stream(self, shape, _USAGE.search(body) is not None)


async def serve(host: str, ports: list[int]) -> None:
    """Listens until SIGTERM or SIGINT; the second port and those after it call themselves MTP servers."""
    loop = asyncio.get_running_loop()
    answer = _whole(b"200 OK", b"application/json", wire.answer_body())
    models = wire.models_body()
    for place, port in enumerate(ports):
        counters = Counters(speculative=place > 0)
        await loop.create_server(partial(Connection, counters, answer, models), host, port, backlog=8192)
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A static OpenAI-compatible upstream for benchmarks.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--ports", type=int, nargs="+", default=[9001, 9002])
    options = parser.parse_args()
    uvloop.run(serve(options.host, options.ports))


if __name__ == "__main__":
    main()
