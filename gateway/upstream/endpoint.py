"""One vLLM server as the gateway sees it: its connector, how much of ours runs there, whether it may be used."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.types import Result
from gateway.upstream.client import Connector, Timeouts


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """A snapshot for asserts, `/gateway/pools` and the status page."""

    url: str
    up: bool
    draining: bool
    in_flight: int
    started: int
    failures: int
    """Consecutive failures; any answer that is the back end's own sets it to 0."""
    weight: float
    slice: str | None


class Endpoint:
    """A back end's live state. It is keyed by its URL within a pool and survives policy reloads."""

    __slots__ = (
        "api_key",
        "connector",
        "draining",
        "failures",
        "in_flight",
        "prefix",
        "probed_up",
        "slice",
        "started",
        "timeouts",
        "url",
        "weight",
    )

    def __init__(self, url: str, connector: Connector, timeouts: Timeouts) -> None:
        self.url = url
        self.connector = connector
        self.timeouts = timeouts
        self.prefix = b""
        """Path in front of every upstream path, from the endpoint's URL."""
        self.api_key: bytes | None = None
        self.weight = 1.0
        self.slice: str | None = None
        self.in_flight = 0
        self.started = 0
        self.failures = 0
        self.probed_up = True
        """What the last health probe said; optimistic until the first one, so that a start is instant."""
        self.draining = False

    def available(self) -> bool:
        """The one predicate that decides whether a new request may go here."""
        return self.probed_up and not self.draining and self.weight > 0

    def statistics(self) -> EndpointStatistics:
        return EndpointStatistics(
            url=self.url,
            up=self.probed_up,
            draining=self.draining,
            in_flight=self.in_flight,
            started=self.started,
            failures=self.failures,
            weight=self.weight,
            slice=self.slice,
        )

    def __repr__(self) -> str:
        state = "draining" if self.draining else "up" if self.probed_up else "down"
        return f"<Endpoint {self.url} {state} in_flight={self.in_flight}>"


BACKEND_FAULTS = frozenset({Result.BACKEND_ERROR, Result.TRUNCATED, Result.TIMEOUT})


class Lease:
    """One in-flight slot of one endpoint. Counted from `Pool.lease` until `release`, which counts once."""

    __slots__ = ("endpoint", "pool", "released")

    def __init__(self, pool: str, endpoint: Endpoint) -> None:
        self.pool = pool
        self.endpoint = endpoint
        self.released = False
        endpoint.in_flight += 1
        endpoint.started += 1

    def release(self, result: Result) -> None:
        """Gives the slot back, whatever ended the request. A second call does nothing."""
        if self.released:
            return
        self.released = True
        endpoint = self.endpoint
        endpoint.in_flight -= 1
        # A client that left, or a 4xx, says nothing about the back end.
        if result in BACKEND_FAULTS:
            endpoint.failures += 1
        elif result is Result.OK or result is Result.CLIENT_ERROR:
            endpoint.failures = 0
