"""Load generators: a wave, a closed loop, an endless closed loop, an open loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.bench.client import BenchError, Endpoint
from gateway.bench.rows import Row

Body = Mapping[str, Any]
Tick = Callable[[str], None]
"""Progress callback: called after each step with its description."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be sent `at` seconds after the start."""

    at: float
    body: Body
    tag: str


async def wave(endpoint: Endpoint, bodies: Iterable[Body], tag: str = "") -> list[Row]:
    """Sends all requests at once and waits for all; rows in the order of `bodies`."""
    return list(await asyncio.gather(*(endpoint.ask(body, tag=tag) for body in bodies)))


async def closed(endpoint: Endpoint, bodies: Sequence[Body], concurrency: int, tag: str = "") -> list[Row]:
    """Keeps `concurrency` requests in flight until all bodies are answered; rows in the order of `bodies`."""
    rows: dict[int, Row] = {}
    left = iter(enumerate(bodies))

    async def client() -> None:
        for index, body in left:
            rows[index] = await endpoint.ask(body, tag=tag)

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return [rows[index] for index in sorted(rows)]


async def endless(endpoint: Endpoint, body: Callable[[], Body], concurrency: int, into: list[Row]) -> None:
    """Keeps `concurrency` requests in flight until cancelled; appends finished rows to `into`."""

    async def client() -> None:
        while True:
            into.append(await endpoint.ask(body()))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())


async def open_loop(
    endpoint: Endpoint, asks: Sequence[Ask], clock: Callable[[], float], done: Callable[[Row], None]
) -> None:
    """Sends each request at its due time, however many are in flight; latency counts from the due time.

    `done` receives each row when it is complete, so that an interrupted run keeps its rows.
    """
    start = clock()

    async def one(ask: Ask) -> None:
        done(await endpoint.ask(ask.body, tag=ask.tag, due=start + ask.at))

    async with asyncio.TaskGroup() as group:
        for ask in asks:
            if (wait := start + ask.at - clock()) > 0:
                await asyncio.sleep(wait)
            group.create_task(one(ask))


def require(rows: Sequence[Row], what: str) -> list[Row]:
    """The rows without errors. Raises BenchError with the first error if all failed."""
    good = [row for row in rows if not row.error]
    if rows and not good:
        row = rows[0]
        raise BenchError(f"{row.label}, {what}: every request failed, the first with: {row.error}")
    return good
