"""Short forms for one exchange over a connector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from gateway.upstream.client import Connector, Headers, Response, Timeouts
from tests.stub import Stub

GUARD = 60.0
"""Seconds after which a test gives up on something that should have happened; never a measure of speed."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer read to its end."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def send(
    connector: Connector,
    body: bytes | AsyncIterator[bytes] = b"{}",
    *,
    method: bytes = b"POST",
    target: bytes = b"/v1/chat/completions",
    headers: Headers | None = None,
    timeouts: Timeouts | None = None,
) -> Response:
    work = connector.send(method, target, headers or [], body, timeouts or Timeouts())
    return await asyncio.wait_for(work, GUARD)


async def read(response: Response) -> bytes:
    return await asyncio.wait_for(response.read(), GUARD)


async def rest(response: Response) -> bytes:
    pieces = []
    while piece := await read(response):
        pieces.append(piece)
    return b"".join(pieces)


async def fetch(connector: Connector, body: bytes | AsyncIterator[bytes] = b"{}", **options: object) -> Whole:
    response = await send(connector, body, **options)  # type: ignore[arg-type]
    try:
        return Whole(response.status, dict(response.headers), await rest(response))
    finally:
        response.close()


async def closed(stub: Stub, index: int = -1) -> None:
    """Waits for the end of one of the stub's connections, the latest by default. The stub may not have it yet: a client
    can give up before its server comes to accept."""
    await stub.until(lambda: len(stub.connections) > max(index, 0))
    await asyncio.wait_for(stub.connections[index].closed.wait(), GUARD)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds; for what a connector does by itself and tells nobody."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0)

    await asyncio.wait_for(poll(), GUARD)
