"""One in-flight slot as an object: counted once when it is made, and given back once, however the request ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gateway.types import Result
from gateway.upstream.client import Extra, Headers
from gateway.upstream.retry import rest_seconds

if TYPE_CHECKING:
    from gateway.upstream.endpoint import Endpoint

REFUSAL_REST = 0.5
"""Seconds without new requests after a working endpoint refused one for its load."""


class SharedLimit:
    """Requests on one slice of a GPU, across all pools that have an endpoint there."""

    __slots__ = ("in_flight", "limit", "name")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        """0 is no limit."""
        self.in_flight = 0


class Holder(Protocol):
    """The pool of a lease: its count of requests, when the newest came, and what to call when a slot becomes free."""

    in_flight: int
    newest: float

    @property
    def name(self) -> str: ...

    def freed(self, since: float) -> None: ...


class Move(Protocol):
    """Ends the wait for the first byte, so that another endpoint is tried; with `anyway`, even if there is no other."""

    def __call__(self, *, anyway: bool) -> None: ...


class Lease:
    """A request's slot at one endpoint. The pool makes it; whatever ends the request calls `release`.

    While the request runs, its owner keeps this up to date: `first_byte` once, `waits` around each read of the body.
    """

    __slots__ = (
        "_holder",
        "_shared",
        "answered",
        "blameless",
        "client_fault",
        "endpoint",
        "epoch",
        "extra",
        "move",
        "pool",
        "refused",
        "released",
        "sent",
        "since",
        "stream",
        "waits",
    )

    def __init__(self, holder: Holder, endpoint: Endpoint, now: float) -> None:
        self._holder = holder
        self.pool = holder.name
        self.endpoint = endpoint
        self.since = self.sent = now
        """When the slot was taken, and when the request went out: later, where its prompt had to wait for its turn."""
        self.epoch = endpoint.breaker.epoch
        self.released = False
        self.stream = False
        """Whether the answer is streamed, so that its first byte is its first token."""
        self.extra: Extra | None = None
        """For a non-streamed answer, whose first byte is also its last, at an engine known to work; else None."""
        self.answered = False
        self.waits = False
        """Whether the relay is waiting for the back end's next piece, rather than for the client."""
        self.refused = False
        """Whether the back end answered with a refusal or an error of its own, so that its process is alive."""
        self.client_fault = False
        """Whether the error in the answer is the request's own fault."""
        self.blameless = False
        """Whether its end says nothing about the endpoint."""
        self.move: Move | None = None
        """None once it is too late to move."""
        endpoint.in_flight += 1
        endpoint.started += 1
        endpoint.leases.add(self)
        holder.in_flight += 1
        holder.newest = now
        # Remembered, because a reload may give the endpoint another one before this ends.
        self._shared = endpoint.shared
        if self._shared is not None:
            self._shared.in_flight += 1
        if not endpoint.ready:
            endpoint.breaker.begin(now)

    @property
    def extra_seconds(self) -> float:
        """Seconds beyond `timeouts.first_byte` that its first byte may take."""
        return 0.0 if self.extra is None else self.extra()

    def left(self, now: float) -> float | None:
        """Seconds left until a stream's first event is due; None where it never is."""
        limit = self.endpoint.timeouts.first_byte
        return None if limit is None else self.sent + limit - now

    def first_byte(self, now: float) -> None:
        """Call when the answer has begun. For a trial that is enough: an engine that answers is working."""
        endpoint = self.endpoint
        endpoint.prefill.left(self)
        self.answered = True
        endpoint.answered_at = now
        endpoint.moved = True
        endpoint.streaming += 1
        if not endpoint.ready:
            endpoint.breaker.succeeded(now, self.epoch)
            endpoint.refresh()

    def release(self, result: Result) -> None:
        """Gives the slot back, however the request ended. A second call does nothing."""
        if self.released:
            return
        self.released = True
        self.move = None
        endpoint, holder = self.endpoint, self._holder
        endpoint.leases.discard(self)
        endpoint.prefill.left(self)
        endpoint.in_flight -= 1
        holder.in_flight -= 1
        if self._shared is not None:
            self._shared.in_flight -= 1
        if self.answered:
            endpoint.streaming -= 1
        endpoint.judge(self, result)
        holder.freed(self.since)


def heed_refusal(lease: Lease, status: int, headers: Headers, now: float, *, others: bool = True) -> None:
    """Lets an endpoint rest for as long as its `Retry-After` asks.

    One that refuses while it serves other requests is full, not broken: it rests for a moment, and its breaker does not
    count the refusal. A 429 may concern one client only, so without `others` to go to the endpoint does not rest.
    """
    seconds = rest_seconds(headers)
    if status == 503 and lease.endpoint.working(now):
        lease.blameless = True
        seconds = REFUSAL_REST if seconds is None else seconds
    if seconds and (others or status != 429):
        lease.endpoint.rest(seconds)
