"""What finds endpoints tells whoever keeps them."""

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
    """Who hears of each answer. Neither call blocks."""

    def found(self, addresses: tuple[Address, ...]) -> None:
        """The whole set as it is now; an empty one is taken for no answer."""
        ...

    def failed(self, why: str) -> None:
        """No answer; `why` stays the same while the cause does."""
        ...


Follow = Callable[[Where, Listener], Awaitable[None]]
"""Finds what is at one place and tells the listener of every answer; ends only when cancelled."""
Sleep = Callable[[float], Awaitable[None]]
Factor = Callable[[], float]
"""Drawn anew for each wait and multiplied with it, so that many gateways don't ask in step."""

SHORTEST_WAIT, LONGEST_WAIT = 1.0, 30.0


def backoff(failures: int, most: float = LONGEST_WAIT) -> float:
    """Seconds to wait after that many failures in a row (1 or more)."""
    return min(SHORTEST_WAIT * 2.0 ** min(failures - 1, 16), most)
