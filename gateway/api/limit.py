"""A time limit for a block, at a third of the cost of `asyncio.timeout`: a request has three of them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class TimeLimit:
    """`with TimeLimit(seconds):` cancels the block when the time is up and raises TimeoutError in its place.

    None is no limit. As with `asyncio.timeout`, a cancellation from elsewhere passes through as what it is.
    """

    __slots__ = ("_cancelling", "_expired", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._expired = False
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._seconds is None:
            return
        loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        assert task is not None
        self._cancelling = task.cancelling()
        self._timer = loop.call_later(max(self._seconds, 0.0), self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None or self._task is None:
            return
        self._timer.cancel()
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        assert self._task is not None
        self._expired = True
        self._task.cancel()
