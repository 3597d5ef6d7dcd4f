"""Endpoints that get no requests, or that fail those they get, each with the reason as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.api.core import Core
from gateway.upstream.breaker import Gate
from gateway.upstream.statistics import EndpointStatistics


@dataclass(frozen=True, slots=True)
class Trouble:
    """One endpoint of a pool."""

    pool: str
    endpoint: str
    up: bool
    """Whether it gets requests."""
    why: str
    """As its pages told it, else what keeps requests from it."""


def troubles(core: Core) -> list[Trouble]:
    """Of the live pools. An endpoint that is up and only tells no metrics is none."""
    records = core.watch.view.endpoints()
    found = []
    for pool in core.pools:
        for endpoint in pool.endpoints:
            up, record = endpoint.available(), records.get(endpoint.url)
            told = record and (record.complaint if up else record.why())
            if told or not up:
                found.append(Trouble(pool.name, endpoint.url, up, told or _kept_out(endpoint.statistics())))
    return found


def _kept_out(now: EndpointStatistics) -> str:
    if now.draining:
        return "it is taken out of its pool"
    if not now.probed_up:
        return "its health probe fails"
    if now.gate is not Gate.OPEN:
        return f"its breaker is {now.gate.value} ({now.trip.value if now.trip else 'no reason known'})"
    return f"it asked for a rest of {now.rests:.0f} s more"
