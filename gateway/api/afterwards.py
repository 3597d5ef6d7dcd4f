"""What is done with a request once it is over, out of the way of those that run.

Counting, logging and learning cost as much as deciding, and a client that has its answer sends the next request at
once. So outcomes wait for some milliseconds, and are then taken in slices between which the loop serves requests: many
together, so that code and data are in the processor's caches for all but the first. Whatever reads the results
(metrics, decisions, an explanation) has the waiting outcomes taken first, and so sees all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from gateway.api.exchange import Observer
from gateway.types import Outcome

log = logging.getLogger("gateway.request")

DELAY = 0.02
"""Seconds that an outcome waits."""
SLICE = 0.0005
"""Seconds of work at a time."""
MOST_WAITING = 1000
"""Outcomes that may wait; beyond that they are taken at once, so that overload cannot pile them up."""


class Afterwards:
    """The queue between a request's end and the observers of outcomes."""

    def __init__(
        self,
        observers: Sequence[Observer],
        clock: Callable[[], float],
        taken: Callable[[], None] | None = None,
    ) -> None:
        """`taken` is called whenever the waiting outcomes have been taken."""
        self.observers = observers
        self._clock = clock
        self._taken = taken
        self._waiting: deque[Outcome] = deque()
        self._due: asyncio.Handle | None = None

    def add(self, outcome: Outcome) -> None:
        """Takes the outcome of a request that has just ended. Needs a running loop."""
        self._waiting.append(outcome)
        if len(self._waiting) > MOST_WAITING:
            self._take()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(DELAY, self._slice)

    def flush(self) -> None:
        """Has every outcome taken now."""
        while self._waiting:
            self._take()

    def _take(self) -> None:
        outcome = self._waiting.popleft()
        for observe in self.observers:
            try:
                observe(outcome)
            except Exception:
                # A fault of ours in one of them costs neither the others the outcome nor the request at hand its end.
                log.exception("the outcome of %s was not taken", outcome.request_id)

    def _slice(self) -> None:
        self._due = None
        end = self._clock() + SLICE
        while self._waiting:
            self._take()
            if self._clock() >= end:
                break
        if self._waiting:
            self._due = asyncio.get_running_loop().call_soon(self._slice)
        elif self._taken:
            self._taken()
