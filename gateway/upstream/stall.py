"""Finds endpoints that hang: requests run there, and nothing comes.

Two limits, on time during which something ran (idle time does not count):
    after the first byte  no piece on any stream for `breaker.stall`. Streams whose client reads too slowly do not
                          count, as we cause their silence.
    before it             nothing at all for `timeouts.first_byte`, which a long prompt may take; for `breaker.stall`
                          if the endpoint is on trial after a stall, or hangs for other replicas (`doubt`). It is
                          needed besides each request's own timeout, since clients leave long before that.

A non-streamed answer is silent until its last token. So before the first byte, an endpoint whose `/metrics` count new
tokens is working. If its metrics are missing and only such answers are waited for, the limit is extended by what the
shortest of them may take (`lease.extra_seconds`): their seconds count for less, so that a stream that comes later
meets the usual limit. At an endpoint that is found hung, a request for such an answer that cannot go elsewhere ends at
`timeouts.first_byte` if the metrics say that no tokens are produced.

A health probe cannot find a hang: the server answers while its engine is frozen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gateway.upstream.breaker import Gate, Trip
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.pool import Pool

log = logging.getLogger("gateway.health")


def watch_stalls(pools: Iterable[Pool], seconds: float) -> list[Endpoint]:
    """Looks at every endpoint; `seconds` have passed since the last look. Returns those that it found hung."""
    found = []
    for pool in pools:
        for endpoint in pool.endpoints:
            if endpoint.in_flight and is_stalled(endpoint, pool.policy.breaker.stall, seconds):
                endpoint.stalled()
                found.append(endpoint)
                log.warning("endpoint hangs", extra={"fields": {"endpoint": endpoint.url, "pool": pool.name}})
    return found


def is_stalled(endpoint: Endpoint, stall: float | None, seconds: float) -> bool:
    """Counts one look at an endpoint that has requests in flight; True once its silence is over the limit."""
    streams = [lease for lease in endpoint.leases if lease.answered]
    if endpoint.moved or (streams and not any(lease.waits for lease in streams)):
        endpoint.moved = False
        endpoint.silent = 0.0
        return False
    if endpoint.breaker.gate is Gate.SHUT:
        # Found already; what still runs there has its own limits.
        if endpoint.breaker.reason is Trip.STALL:
            endpoint.end_waiting()
        return False
    breaker = endpoint.breaker
    trial = endpoint.said_hung or (breaker.gate is Gate.PROBATION and breaker.reason is Trip.STALL)
    limit = stall if streams or trial else endpoint.timeouts.first_byte
    if streams or limit is None:
        endpoint.silent += seconds
        return limit is not None and endpoint.silent >= limit
    now = endpoint.clock()
    more = 0.0 if endpoint.counts_tokens(now) else min((lease.extra_seconds for lease in endpoint.leases), default=0.0)
    endpoint.silent += seconds * limit / (limit + more)
    return min(endpoint.silent, now - endpoint.generated_at) >= limit
