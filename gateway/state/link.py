"""A circuit breaker over one connection to Redis: when it counts as lost, and when it may be tried again.

Connected until `THRESHOLD` consecutive failures, of whatever class: refused, timed out, read-only, loading, cluster
down. Then lost: one attempt per pause, and the pause doubles with jitter up to a limit. One success reconnects it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

log = logging.getLogger("gateway.state")

THRESHOLD = 3
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 2.0
_NEVER = "NotYetReached"


class Link:
    """Starts unconnected, with an attempt due."""

    def __init__(self, name: str, *, clock: Callable[[], float], wall: Callable[[], float], rng: Random) -> None:
        self.connected = False
        self.since = wall()
        self.error: str | None = _NEVER
        self._name = name
        self._clock, self._wall, self._rng = clock, wall, rng
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._retry_at = clock()

    @property
    def sound(self) -> bool:
        """Connected, and the last attempt was a success."""
        return self.connected and not self._failures

    def allows(self) -> bool:
        """Whether an attempt makes sense now."""
        return self.connected or self._clock() >= self._retry_at

    def succeeded(self) -> None:
        if not self.connected:
            log.info("shared state: %s is connected", self._name)
            self.connected, self.since, self.error = True, self._wall(), None
        self._failures = 0
        self._pause = FIRST_PAUSE

    def failed(self, error: str) -> None:
        """`error` is a class name, perhaps with Redis' own word: it goes into logs and `/ready`, where a message could
        quote an address."""
        self._failures += 1
        if self.connected and self._failures < THRESHOLD:
            return
        if self.connected:
            log.warning("shared state: %s is lost (%s); this replica continues with its own view", self._name, error)
            self.connected, self.since = False, self._wall()
        elif self.error == _NEVER:
            log.warning(
                "shared state: %s cannot be reached (%s); this replica continues with its own view", self._name, error
            )
        self.error = error
        self._retry_at = self._clock() + self._pause * self._rng.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
