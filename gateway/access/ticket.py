"""One admitted request: what it took from its key's limits, settled exactly once when it ends."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from gateway.access.quota import Quota, Spent
from gateway.state.board import Place
from gateway.types import Usage


class Limit(StrEnum):
    """What is limited; the words complete "the limit of 600 ..."."""

    REQUESTS = "requests per minute"
    TOKENS = "tokens per minute"
    INPUT_TOKENS = "input tokens per minute"
    OUTPUT_TOKENS = "output tokens per minute"
    IN_FLIGHT = "requests at a time"

    def used(self, usage: Usage) -> int:
        """What a finished request counts for, under a limit on tokens."""
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        if self is Limit.INPUT_TOKENS:
            return prompt
        return completion if self is Limit.OUTPUT_TOKENS else prompt + completion


class Holder:
    """Counts a key's requests in flight."""

    __slots__ = ("in_flight", "place")

    def __init__(self) -> None:
        self.in_flight = 0
        self.place: Place | None = None
        """Where the other workers see this count; None where they need not or cannot."""


class Ticket:
    """Held from admission until `settle`, which counts once; the request's `finally` is the place for it."""

    __slots__ = ("_clock", "_holder", "_taken")

    def __init__(
        self, holder: Holder | None, taken: tuple[tuple[Limit, Quota, Spent], ...], clock: Callable[[], float]
    ) -> None:
        """Without a holder it is the ticket of an open door."""
        self._holder = holder
        """Of the request until it is settled, then None."""
        self._taken = taken
        self._clock = clock
        if holder is not None:
            holder.in_flight += 1

    def settle(self, usage: Usage | None = None, *, reached: bool = True) -> None:
        """Ends it. A second call does nothing.

        Args:
            usage: what the back end counted; it replaces the tokens estimated at admission.
            reached: whether the request got to a back end. One that did not costs no tokens; one that did and left
                no count (a stream cut short, say) costs its estimate. The request itself counts either way.
        """
        holder, self._holder = self._holder, None
        if holder is None:
            return
        holder.in_flight -= 1
        if holder.place is not None:
            holder.place.say(holder.in_flight)
        now = self._clock()
        for limit, quota, spent in self._taken:
            if limit is Limit.REQUESTS or (usage is None and reached):
                continue
            more = (limit.used(usage) if usage else 0) - spent.units
            if more > 0:
                quota.charge(more, now)
            elif more < 0:
                quota.refund(-more, spent)
