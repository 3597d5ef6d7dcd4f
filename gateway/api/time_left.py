"""The total time of requests (`timeouts.total`), with one timer for all of them.

`asyncio.timeout` sets a timer for each request and takes it back some milliseconds later, which cost a request 2 % of
its time in the gateway. Hardly any limit is ever reached, so here a limit is an entry in a dictionary, and the timer
waits for the earliest that there was when it was set: for that of requests which have ended, as a rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType

from gateway.errors import UpstreamTimeout


class Deadlines:
    """The limits that run now. One per process; its timer lives on the running loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is that of the deadlines, in seconds. The waiting is in real time."""
        self._clock = clock
        self._running: dict[TimeLeft, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        """Never later than the earliest deadline that runs."""

    def __len__(self) -> int:
        return len(self._running)

    def until(self, deadline: float | None) -> TimeLeft:
        """Limits the block, in a task of its own, to what is left until then. None is no limit."""
        return TimeLeft(self, inf if deadline is None else deadline)

    def add(self, limit: TimeLeft) -> None:
        self._running[limit] = None
        if limit.deadline < self._timer_at:
            self._set(limit.deadline)

    def remove(self, limit: TimeLeft) -> None:
        self._running.pop(limit, None)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(at - self._clock(), 0.0), self._due)

    def _due(self) -> None:
        self._timer, self._timer_at = None, inf
        now = self._clock()
        for limit in sorted((limit for limit in self._running if limit.deadline <= now), key=lambda due: due.deadline):
            self.remove(limit)
            limit.expire()
        if self._running:
            self._set(min(limit.deadline for limit in self._running))


class TimeLeft:
    """One block's limit; see `Deadlines.until`. Raises UpstreamTimeout (phase `total`) out of the block.

    As with `asyncio.timeout`, the block's task is cancelled, and a cancellation by anybody else passes through.
    """

    __slots__ = ("_all", "_before", "_expired", "_task", "deadline")

    def __init__(self, deadlines: Deadlines, deadline: float) -> None:
        self._all = deadlines
        self.deadline = deadline
        self._task: asyncio.Task[object] | None = None
        self._before = 0
        """How often the task had been asked to cancel when the block began."""
        self._expired = False

    def __enter__(self) -> None:
        if self.deadline < inf:
            self._task = task = asyncio.current_task()
            assert task is not None
            self._before = task.cancelling()
            self._all.add(self)

    def expire(self) -> None:
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        self._all.remove(self)
        task, self._task = self._task, None
        if self._expired and task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise UpstreamTimeout("the request's total time (timeouts.total) ran out", phase="total") from None
