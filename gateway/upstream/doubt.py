"""What other replicas found out about an endpoint: a doubt, which never forbids anything.

Once a second each replica reports which endpoints it has found broken (by breaker or probe) and which work for it (an
answer began there a moment ago, or its streams are moving). Of the replicas that report either, this one included,

    most say broken     the endpoint is doubted: every other endpoint and pool is preferred, and while there is another,
                        it gets one request at a time; its health is probed at once; if it hangs for the others, it is
                        found hung here after `breaker.stall` instead of `timeouts.first_byte`
    half or fewer do    its weight is reduced to the share of those replicas for which it works

Hearsay alone shuts nothing: an endpoint without alternative serves as usual, and the first answer that it gives here is
a report of this replica's own. So one replica with a fault in its own network takes no endpoint away from the others.
Reports expire with the view that holds them, and without Redis there are none.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.state.store import EndpointView, Others
from gateway.upstream.breaker import Gate, Trip
from gateway.upstream.endpoint import DOUBTED, WORKING_SECONDS, Endpoint
from gateway.upstream.pool import Pool


def voice(endpoint: Endpoint, now: float) -> EndpointView:
    """What this replica reports about an endpoint, from its own experience only."""
    broken = endpoint.found_broken
    hung = endpoint.breaker.gate is not Gate.OPEN and endpoint.breaker.reason is Trip.STALL
    return EndpointView(endpoint.in_flight, shut=broken, works=not broken and works(endpoint, now), hung=hung)


def works(endpoint: Endpoint, now: float) -> bool:
    """Whether an answer began there a moment ago, or is still coming."""
    moving = endpoint.streaming > 0 and endpoint.silent < WORKING_SECONDS
    return moving or now - endpoint.answered_at < WORKING_SECONDS


def heed(pools: Iterable[Pool], others: Others, now: float) -> list[Endpoint]:
    """Weighs the other replicas' reports against this one's; returns the endpoints that are newly doubted."""
    new = []
    for pool in pools:
        doubted = False
        for endpoint in pool.endpoints:
            said = others.endpoints.get(f"{pool.name} {endpoint.url}")
            was = endpoint.doubted
            endpoint.doubt(1.0, hung=False)
            if said is not None and said.shut and not endpoint.found_broken:
                _weigh(endpoint, said.shut, said.works + works(endpoint, now), hung=said.hung > 0)
            doubted |= endpoint.doubted
            if endpoint.doubted and not was:
                new.append(endpoint)
        pool.doubted = doubted
    return new


def _weigh(endpoint: Endpoint, broken: int, sound: int, *, hung: bool) -> None:
    if broken > sound:
        endpoint.doubt(DOUBTED, hung=hung)
    else:
        endpoint.doubt(sound / (broken + sound), hung=False)
