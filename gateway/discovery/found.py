"""The interface between what finds endpoints (`dns`, `pods`) and what keeps them (`keeper`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.policy.schema import Where


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One endpoint that was found."""

    url: str
    """With an address for its host."""
    host: str | None = None
    """The name that was resolved, where one was."""


class Listener(Protocol):
    """Receives every answer. Neither call may block."""

    def found(self, addresses: tuple[Address, ...]) -> None:
        """Takes the whole set as it is now; an empty one counts as no answer."""
        ...

    def failed(self, why: str) -> None:
        """Takes a failure; `why` stays the same as long as the cause does."""
        ...


Follow = Callable[[Where, Listener], Awaitable[None]]
"""Follows one source and passes every answer to the listener; ends only when cancelled."""
Sleep = Callable[[float], Awaitable[None]]
Factor = Callable[[], float]
"""A random factor for each wait, so that many gateways do not query in step."""

SHORTEST_WAIT, LONGEST_WAIT = 1.0, 30.0


def backoff(failures: int, most: float = LONGEST_WAIT) -> float:
    """Seconds to wait after that many failures in a row (1 or more)."""
    return min(SHORTEST_WAIT * 2.0 ** min(failures - 1, 16), most)
