"""Snapshots as a stream: one producer for all viewers, and none while there is no viewer.

The first viewer starts the producer and the last one to leave ends it. Each tick is encoded once. A viewer that reads
slowly misses ticks and delays no other. The points of the chart over time are kept between viewers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson

from gateway.errors import NothingAvailable

log = logging.getLogger("gateway.ui")

TICK_SECONDS = 1.0
MOST_VIEWERS = 64
POINTS = 600


class Live:
    """The stream of snapshots; each viewer calls `events`."""

    def __init__(
        self, take: Callable[[], dict[str, Any]], ending: Callable[[], bool], tick: float = TICK_SECONDS
    ) -> None:
        """`take` makes a snapshot with a `point` in it; `ending` tells whether the process is stopping."""
        self._take = take
        self._ending = ending
        self._tick_seconds = tick
        self._points: deque[dict[str, Any]] = deque(maxlen=POINTS)
        self._task: asyncio.Task[None] | None = None
        self._tick = asyncio.Event()
        self._event = b""
        self.viewers = 0

    @property
    def producing(self) -> bool:
        """Whether snapshots are being made."""
        return self._task is not None

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: a snapshot with the points so far at once, then one per tick.

        Ends when the process stops. Raises NothingAvailable if there are too many viewers.
        """
        if self.viewers >= MOST_VIEWERS:
            raise NothingAvailable("too many viewers of this gateway's status", retry_after=10)
        self.viewers += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._produce())
            yield _event({**self._take(), "history": list(self._points)})
            while not self._task.done() and not self._ending():
                await self._tick.wait()
                yield self._event
        finally:
            self.viewers -= 1
            if not self.viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _produce(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._tick_seconds)
                snapshot = self._take()
                self._points.append(snapshot["point"])
                self._event = _event(snapshot)
                self._next()
        except Exception:
            # Viewers must not wait for ever because of a fault of ours: their streams end, and the page reconnects.
            log.exception("the status stream failed")
        finally:
            self._next()

    def _next(self) -> None:
        done, self._tick = self._tick, asyncio.Event()
        done.set()


def _event(snapshot: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(snapshot) + b"\n\n"
