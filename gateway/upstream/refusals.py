"""The errors of requests that get no slot."""

from __future__ import annotations

from gateway.errors import GatewayError, NothingAvailable, TooManyRequests
from gateway.upstream.pool import Pool


def down_text(order: tuple[str, ...]) -> str:
    """For a request whose pools have no usable endpoint."""
    return f"no endpoint of {', '.join(order)} can take this request now"


def full_error(home: Pool, *, several: bool) -> GatewayError:
    """For a full queue: 429 for the key that fills it while `several` keys wait, else 503."""
    after = home.retry_after()
    if several:
        return TooManyRequests("too many requests of this key are waiting (limits.queue)", retry_after=after)
    return NothingAvailable(f"the queue of {home.name} is full (limits.queue)", retry_after=after)
