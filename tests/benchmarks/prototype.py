"""The yardstick for our own code: a raw ASGI endpoint on uvicorn with a minimal httptools connector, no features.

It parses the body for what a router would look at, forwards, and relays as it reads. It has no timeouts, no errors
of its own, no back-pressure and no pass-through: what the gateway costs above it is what the gateway's work costs.

    python -m tests.benchmarks.prototype --port 8081 --upstream http://127.0.0.1:9001
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import orjson
import uvicorn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_OWN = {b"connection", b"keep-alive", b"transfer-encoding"}


class Exchange(asyncio.Protocol):
    """One keep-alive connection to the upstream; one request at a time."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self.started = self.ended = False
        self.waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.ended = True
        self.wake()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        self.wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.started = True

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.ended = True

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def news(self) -> None:
        """Waits for headers, a piece of the body, or the end."""
        self.waiter = asyncio.get_running_loop().create_future()
        await self.waiter
        self.waiter = None

    def begin(self, data: bytes) -> None:
        assert self.transport is not None
        self.headers, self.body = [], []
        self.started = self.ended = False
        self.transport.write(data)


class Prototype:
    """The ASGI app."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.head = f"POST %s HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\n".encode()
        self.idle: list[Exchange] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        request = orjson.loads(body)
        # What a router reads, so that the yardstick pays for the same parse.
        request["model"], request["messages"], request.get("max_tokens"), request.get("stream")
        exchange = await self.connection()
        exchange.begin(self.head % scope["raw_path"] + b"content-length: %d\r\n\r\n" % len(body) + body)
        while not exchange.started and not exchange.ended:
            await exchange.news()
        headers = [pair for pair in exchange.headers if pair[0] not in _OWN]
        status = exchange.parser.get_status_code()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        while not exchange.ended:
            if exchange.body:
                data, exchange.body = b"".join(exchange.body), []
                await send({"type": "http.response.body", "body": data, "more_body": True})
            else:
                await exchange.news()
        await send({"type": "http.response.body", "body": b"".join(exchange.body), "more_body": False})
        if exchange.transport is not None:
            self.idle.append(exchange)

    async def connection(self) -> Exchange:
        while self.idle:
            if (exchange := self.idle.pop()).transport is not None:
                return exchange
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(Exchange, self.host, self.port)
        return exchange


def main() -> None:
    parser = argparse.ArgumentParser(description="A proxy without features: what the request path costs at least.")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--upstream", default="http://127.0.0.1:9001")
    options = parser.parse_args()
    uvicorn.run(
        Prototype(options.upstream), port=options.port, log_level="warning", access_log=False, lifespan="off",
        loop="uvloop", http="httptools", server_header=False, date_header=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
