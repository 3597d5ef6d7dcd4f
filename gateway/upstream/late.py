"""Why a first byte did not come in time: the endpoint hangs, the request is stuck, or its queue is too long."""

from __future__ import annotations

from gateway.errors import UpstreamTimeout
from gateway.upstream.breaker import Trip
from gateway.upstream.lease import Lease
from gateway.upstream.retry import OVERDUE, Hung, Late, Overdue


def why_late(late: UpstreamTimeout, lease: Lease, expected: float) -> UpstreamTimeout:
    """The error that says which, for `retry` to classify; `late` itself if the engine may still be working on it.

    `expected` is in seconds to the first byte, infinite if nothing is known. Call it after the lease is released.
    """
    breaker, limit = lease.endpoint.breaker, lease.endpoint.timeouts.first_byte
    if breaker.epoch != lease.epoch and breaker.reason is Trip.STALL:
        return Hung(late.message, phase=late.phase)
    if limit is not None and expected * OVERDUE <= limit + lease.extra_seconds:
        return Overdue(late.message, phase=late.phase)
    # A whole answer whose length is known has had the time for its tokens; the rest was spent in a queue.
    return Late(late.message, phase=late.phase) if lease.stream or lease.extra else late
