"""Endpoints that get no requests, or that fail those they get, each with the reason as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.api.core import Core
from gateway.telemetry.endpoint import EndpointTelemetry
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
    """What keeps requests from it, then what its pages tell, which need not be the cause."""


def troubles(core: Core) -> list[Trouble]:
    """Of the live pools. An endpoint that is up and only tells no metrics is none."""
    records = core.watch.view.endpoints()
    found = []
    for pool in core.pools:
        for endpoint in pool.endpoints:
            up, record = endpoint.available(), records.get(endpoint.url)
            if not up:
                found.append(Trouble(pool.name, endpoint.url, up, _why(endpoint.statistics(), record)))
            elif record and record.complaint:
                found.append(Trouble(pool.name, endpoint.url, up, record.complaint))
    return found


def _why(now: EndpointStatistics, record: EndpointTelemetry | None) -> str:
    cause, told = _kept_out(now), record.why() if record else None
    if record is None or told is None:
        return cause
    return f"{cause}; its {'/metrics' if record.error else '/v1/models'}: {told}"


def _kept_out(now: EndpointStatistics) -> str:
    if now.draining:
        return "it is taken out of its pool"
    if now.weight <= 0:
        return "its weight is 0"
    if not now.probed_up:
        return "its health probe fails"
    if now.gate is not Gate.OPEN:
        return f"its breaker is {now.gate.value} ({now.trip.value if now.trip else 'no reason known'})"
    return f"it asked for a rest of {now.rests:.0f} s more"
