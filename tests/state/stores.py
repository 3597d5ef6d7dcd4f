"""Several replicas' stores in one process, on a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

from gateway.state.redis import RedisSettings, RedisStore
from gateway.state.redis_connect import read_url
from gateway.state.store import Ask, Grant, View

LONG = 60.0
"""Seconds: more than any machine takes for what should happen, so that only a failure ever waits for it."""


def make_store(url: str, replica: str = "a", **options: Any) -> RedisStore:
    """A store that gives a pipeline as long as it takes, unless `deadline` says otherwise."""
    settings = RedisSettings(**{"deadline": LONG, **options})
    return RedisStore(read_url(url), replica=replica, rng=Random(replica), settings=settings)


def hurry(store: RedisStore, deadline: float) -> None:
    """From now on a pipeline gets this long, in seconds. For a Redis that is about to be lost: with a short deadline
    from the start, a busy machine could lose it before."""
    store._quota._deadline = store._bulk._deadline = deadline


@asynccontextmanager
async def replicas(url: str, count: int = 1, **options: Any) -> AsyncIterator[list[RedisStore]]:
    """Started stores named a, b, c, ... which all know of each other. They sync when told, and wait long for Redis."""
    defaults = {"interval": 3600.0, "patience": LONG}
    async with AsyncExitStack() as stack:
        stores = [make_store(url, "abcdefgh"[i], **{**defaults, **options}) for i in range(count)]
        for store in stores:
            await store.start(View)
            stack.push_async_callback(store.aclose)
        for store in stores:
            await store.sync()
        yield stores


async def eventually(condition: Callable[[], bool], within: float = LONG) -> None:
    """Waits for a condition. Raises AssertionError when it does not come."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "the condition did not come"
        await asyncio.sleep(0.005)


async def reserve(store: RedisStore, **ask: Any) -> Grant | None:
    """Asks and waits for the answer."""
    fields: dict[str, Any] = {"bucket": "k:requests", "capacity": 10, "window": 60.0, "need": 1}
    future = store.reserve(Ask(**{**fields, **ask}))
    return None if future is None else await future
