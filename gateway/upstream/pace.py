"""Which endpoint keeps streams waiting for their first token much longer than its siblings: it gets fewer requests.

Counting requests alone is slow to notice an engine that has become slow (throttled, swapping, prompts of another
client): it keeps what it has, its siblings finish, and all hold the same number. What shows at once is how long the
streams without a byte have been waiting. Once a second, with n of them at an endpoint (n >= LEAST_WAITING),

    share of its weight = max(LEAST_PART, RATIO * theirs / own)      own > LEAST_SECONDS, own > RATIO * theirs
    own = mean age of its waiting streams, theirs = that of all its siblings' (at least QUICK seconds)

and 1 otherwise. As it is computed afresh every second, it recovers within a second. Non-streamed answers tell nothing:
their first byte is their last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.upstream.endpoint import Endpoint
from gateway.upstream.pool import Pool

LEAST_WAITING = 3
LEAST_SECONDS = 2.0
QUICK = 0.5
RATIO = 3.0
LEAST_PART = 0.1
LONG_WAIT = 0.5
"""As a share of `timeouts.first_byte`: an endpoint where a stream waits longer is no better for one that was late."""


def watch_pace(pools: Iterable[Pool], now: float) -> None:
    """Looks at every endpoint's waiting streams and sets its pace. Call it once a second."""
    for pool in pools:
        waits = [(endpoint, *_waiting(endpoint, now)) for endpoint in pool.endpoints]
        count = sum(n for endpoint, n, _ in waits if endpoint.ready)
        total = sum(seconds for endpoint, _, seconds in waits if endpoint.ready)
        for endpoint, n, seconds in waits:
            theirs = max((total - seconds) / (count - n) if count > n else 0.0, QUICK)
            slow = endpoint.ready and n >= LEAST_WAITING and pool.ready > 1 and seconds > n * LEAST_SECONDS
            endpoint.breaker.paced(max(LEAST_PART, min(RATIO * theirs * n / seconds, 1.0)) if slow else 1.0)


def _waiting(endpoint: Endpoint, now: float) -> tuple[int, float]:
    """The number of streams without a byte, and the seconds they have waited in sum. Notes the longest wait."""
    ages = [now - lease.since for lease in endpoint.leases if lease.stream and not lease.answered]
    endpoint.longest_wait = max(ages, default=0.0)
    return len(ages), sum(ages)


def laggards(pools: Mapping[str, Pool], order: Iterable[str], now: float) -> set[str]:
    """URLs at which a stream that has waited in vain would fare no better: nothing was answered there recently, or
    others have waited there for long."""
    return {
        endpoint.url
        for name in order
        if (pool := pools.get(name)) is not None
        for endpoint in pool.endpoints
        if not endpoint.working(now) or endpoint.longest_wait > LONG_WAIT * (endpoint.timeouts.first_byte or 0.0)
    }
