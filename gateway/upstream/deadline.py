"""A protocol's one time limit, moved at no cost.

A connection's limit changes with every request and every piece: to the first byte, to the next piece, to the end of
being idle. Setting a timer for each would cost more than the rest of a piece. So the limit is a number, the deadline,
and there is at most one timer. To move the deadline later is an assignment; a timer that fires too early is set again.
"""

from __future__ import annotations

import asyncio
import math

NEVER = math.inf


class Limited(asyncio.Protocol):
    """Calls `expired` once the deadline has passed.

    For example, with a limit of 5 s set at 0 s and again at 3 s, the timer at 5 s stays; it fires, finds the deadline
    at 8 s, and is set for that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._deadline = NEVER
        """In the loop's time; setting it to `NEVER` is the cheap way to have no limit."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    def expired(self) -> None:
        raise NotImplementedError

    def set_limit(self, seconds: float | None) -> None:
        """Moves the deadline to `seconds` from now."""
        self._deadline = when = NEVER if seconds is None else self.loop.time() + seconds
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self.loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, NEVER
        remaining = self._deadline - self.loop.time()
        if remaining > 0:
            self.set_limit(remaining if remaining < NEVER else None)
        else:
            self.expired()
