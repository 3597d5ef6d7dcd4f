"""Which endpoint of a pool gets the request.

Power of two choices: of two endpoints drawn at random, the one with fewer of our own requests per unit of weight. It
spreads a burst that arrives between two scrapes, where "least load" would send all of it to one endpoint, and it needs
no scan of the pool (Mitzenmacher 2001). If nothing runs at any of them they are drawn by weight, so that a lighter one
gets its share of quiet traffic too.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from gateway.upstream.endpoint import Endpoint

FEW = 4
"""Up to this number of endpoints, all are compared."""


def two_of(endpoints: Sequence[Endpoint], rng: Random) -> tuple[Endpoint, Endpoint]:
    """Two different endpoints of at least two, at random."""
    first = int(rng.random() * len(endpoints))
    second = int(rng.random() * (len(endpoints) - 1))
    return endpoints[first], endpoints[second + (second >= first)]


def least_loaded(endpoints: Sequence[Endpoint], rng: Random, now: float) -> Endpoint:
    """The least loaded of at most two candidates drawn at random; of few endpoints, the least loaded of all."""
    if len(endpoints) == 1:
        return endpoints[0]
    if len(endpoints) > FEW:
        endpoints = two_of(endpoints, rng)
    best = endpoints[0]
    best_load = -1.0
    ties = 1
    for endpoint in endpoints:
        weight = endpoint.weight if endpoint.breaker.ramp_from is None else endpoint.share(now)
        load = (endpoint.in_flight + 1) / weight
        if load < best_load or best_load < 0.0:
            best, best_load, ties = endpoint, load, 1
        elif load == best_load:
            # Reservoir sampling among equals, so that idle endpoints share the first requests.
            ties += 1
            if rng.random() * ties < 1:
                best = endpoint
    if not best.in_flight and ties < len(endpoints) and not any(endpoint.in_flight for endpoint in endpoints):
        # Endpoints that are coming back or in doubt get none until the others are busy.
        steady = [endpoint for endpoint in endpoints if endpoint.breaker.ramp_from is None]
        if len(steady) > 1:
            return rng.choices(steady, [endpoint.weight for endpoint in steady])[0]
    return best
