"""Snapshots of an endpoint and a pool, for asserts, `/gateway/pools` and the status page."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.upstream.breaker import Gate, Trip


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """One endpoint's."""

    url: str
    up: bool
    """Whether it may take a request now, apart from its limits."""
    draining: bool
    in_flight: int
    started: int
    failures: int
    """Consecutive failures; any proper answer of the back end resets it to 0."""
    weight: float
    slice: str | None
    probed_up: bool = True
    gate: Gate = Gate.OPEN
    trip: Trip | None = None
    """Why the breaker last shut."""
    rests: float = 0.0
    """Seconds for which it gets no more requests, because the back end asked for a rest or refused one."""
    streaming: int = 0
    doubted: bool = False
    """Whether most replicas with recent experience of it have found it broken."""
    prompt_tokens: int = 0
    """Of the requests that wait there for their first token, see `prefill`."""
    held: int = 0
    """Requests that wait here until those are fewer."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """One pool's. Counts are since the start."""

    name: str
    in_flight: int
    waiting: int
    """Requests in this pool's queue."""
    ready: int
    """Endpoints that are ready for requests."""
    queued: int
    """Requests that had to wait."""
    waited_seconds: float
    """Total time that requests have waited, including those that gave up."""
    rejected: dict[str, int]
    """Requests refused, by cause: `queue_full`, `displaced`, `queue_wait`, `down`."""
