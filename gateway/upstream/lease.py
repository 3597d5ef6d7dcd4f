"""One in-flight slot as an object: counted once when it is made, given back once, whatever ends the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.types import Result
from gateway.upstream.client import Headers
from gateway.upstream.retry import rest_seconds

if TYPE_CHECKING:
    from gateway.upstream.endpoint import Endpoint

REFUSAL_REST = 0.5
"""Seconds without new requests after a working endpoint refused one for its load."""


class SharedLimit:
    """Requests on one slice of a GPU, over all pools that have an endpoint there."""

    __slots__ = ("in_flight", "limit", "name")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        """0 is no limit."""
        self.in_flight = 0


class Holder(Protocol):
    """The pool of a lease: its own count, and whom to tell that a place is free."""

    in_flight: int

    @property
    def name(self) -> str: ...

    def freed(self, since: float) -> None: ...


class Lease:
    """A request's place at one endpoint. Made by the pool; the request's end calls `release`.

    While it runs, its owner says what is known: `answered` at the first byte, `waits` around each read of the body.
    """

    __slots__ = (
        "_holder",
        "_shared",
        "answered",
        "blameless",
        "client_fault",
        "endpoint",
        "epoch",
        "more",
        "move",
        "pool",
        "refused",
        "released",
        "since",
        "stream",
        "waits",
    )

    def __init__(self, holder: Holder, endpoint: Endpoint, now: float) -> None:
        self._holder = holder
        self.pool = holder.name
        self.endpoint = endpoint
        self.since = now
        self.epoch = endpoint.breaker.epoch
        self.released = False
        self.stream = False
        """Whether its answer comes in pieces, so that its first byte is its first token."""
        self.more = 0.0
        """Seconds that its first byte may take beyond `timeouts.first_byte`, where that is its last byte as well."""
        self.answered = False
        self.waits = False
        """Whether the back end's next piece is being waited for, rather than the client."""
        self.refused = False
        """The answer was a whole one that says "not now" or "broken": the process lives."""
        self.client_fault = False
        """The error in the answer is the request's own."""
        self.blameless = False
        """However it ends, it says nothing about the endpoint."""
        self.move: Callable[[bool], None] | None = None
        """Ends the wait for the first byte, so that another endpoint is tried; with True even where there is none.
        None once that would be too late."""
        endpoint.in_flight += 1
        endpoint.started += 1
        endpoint.leases.add(self)
        holder.in_flight += 1
        # Kept, because a reload may give the endpoint another one before this ends.
        self._shared = endpoint.shared
        if self._shared is not None:
            self._shared.in_flight += 1
        if not endpoint.ready:
            endpoint.breaker.begin(now)

    def first_byte(self, now: float) -> None:
        """The answer has begun. For a trial that is enough: an engine that answers is at work."""
        endpoint = self.endpoint
        self.answered = True
        endpoint.answered_at = now
        endpoint.moved = True
        endpoint.streaming += 1
        if not endpoint.ready:
            endpoint.breaker.succeeded(now, self.epoch)
            endpoint.refresh()

    def release(self, result: Result) -> None:
        """Gives the slot back, whatever ended the request. A second call does nothing."""
        if self.released:
            return
        self.released = True
        self.move = None
        endpoint, holder = self.endpoint, self._holder
        endpoint.leases.discard(self)
        endpoint.in_flight -= 1
        holder.in_flight -= 1
        if self._shared is not None:
            self._shared.in_flight -= 1
        if self.answered:
            endpoint.streaming -= 1
        endpoint.judge(self, result)
        holder.freed(self.since)


def heed_refusal(lease: Lease, status: int, headers: Headers, now: float, *, others: bool = True) -> None:
    """Lets an endpoint rest that says how long. One that refuses while it works for others is full, not broken: it
    rests a moment, and its breaker hears nothing. A limit (429) may be one client's: without `others` to go to, the
    next client hears for itself."""
    seconds = rest_seconds(headers)
    if status == 503 and lease.endpoint.working(now):
        lease.blameless = True
        seconds = REFUSAL_REST if seconds is None else seconds
    if seconds and (others or status != 429):
        lease.endpoint.rest(seconds)
