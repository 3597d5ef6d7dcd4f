"""Opens the upstream answer to a request: the attempt loop. The first body byte is the point of no return.

A failure before it releases the attempt's lease with its own error class and goes to another endpoint of the pool,
then to the next pool of the decision. A 502 or 503, and a stream whose first event is an error, count as "nothing
delivered" as long as there is somewhere else to go; where there is not, the back end's own answer is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.errors import BadUpstreamResponse, ConnectFailed, ConnectionLost, NothingAvailable, UpstreamTimeout
from gateway.types import Result
from gateway.upstream.client import Headers, Response
from gateway.upstream.endpoint import Endpoint, Lease
from gateway.upstream.pool import Pools

RETRY_STATUSES = frozenset({502, 503})
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What to send, whichever endpoint gets it. `body` and `headers` may depend on it (served name, its own key)."""

    method: bytes
    target: bytes
    """Raw path and query, without the endpoint's own prefix."""
    headers: Callable[[Endpoint], Headers]
    body: Callable[[str], bytes]
    """From the pool's name."""
    pools: Sequence[str]
    attempts: int
    wait_for_first: bool
    """Read a stream's first piece before the answer is committed, so that an error event can still fail over."""


@dataclass(slots=True)
class Opened:
    """An answer that will be relayed, with the lease that its end must release."""

    lease: Lease
    response: Response
    first: bytes | None
    """The first piece of a stream's body; None where it has not been read."""
    streams: bool


class Attempts:
    """The attempt loop of one request. `count` and `last_lease` stay readable when `open` raises or is cancelled."""

    __slots__ = ("_on_retry", "_pools", "count", "endpoint", "pool")

    def __init__(self, pools: Pools, on_retry: Callable[[str, str], None]) -> None:
        self._pools = pools
        self._on_retry = on_retry
        """Called with the pool and the error class of each attempt that is followed by another."""
        self.count = 0
        self.endpoint: str | None = None
        self.pool: str | None = None

    async def open(self, call: Call) -> Opened:
        """Returns the first answer worth relaying.

        Raises the last attempt's error, or NothingAvailable when no endpoint could be tried.
        """
        tried: set[str] = set()
        lease = self._lease(call, tried)
        if lease is None:
            raise NothingAvailable(
                f"no endpoint of {', '.join(call.pools)} can take this request now", retry_after=RETRY_AFTER_SECONDS
            )
        while True:
            tried.add(lease.endpoint.url)
            self.count += 1
            self.endpoint, self.pool = lease.endpoint.url, lease.pool
            error: Exception | None = None
            opened: Opened | None = None
            try:
                opened = await _attempt(lease, call)
            except (ConnectFailed, ConnectionLost, BadUpstreamResponse) as failed:
                lease.release(Result.BACKEND_ERROR)
                error = failed
            except UpstreamTimeout as failed:
                lease.release(Result.TIMEOUT)
                error = failed
            except BaseException:
                # Cancelled: the client left, which says nothing about the endpoint.
                lease.release(Result.CLIENT_CLOSED)
                raise
            reason = _retry_class(error, opened)
            if reason and self.count < call.attempts and (following := self._lease(call, tried)):
                if opened:
                    opened.response.close()
                    lease.release(Result.BACKEND_ERROR)
                self._on_retry(lease.pool, reason)
                lease = following
                continue
            if error:
                raise error
            assert opened
            return opened

    def _lease(self, call: Call, tried: set[str]) -> Lease | None:
        for pool in call.pools:
            if lease := self._pools.lease(pool, tried):
                return lease
        return None


async def _attempt(lease: Lease, call: Call) -> Opened:
    endpoint = lease.endpoint
    response = await endpoint.connector.send(
        call.method,
        endpoint.prefix + call.target,
        call.headers(endpoint),
        call.body(lease.pool),
        endpoint.timeouts,
    )
    streams = is_event_stream(response.headers)
    first: bytes | None = None
    if streams and call.wait_for_first and response.status == 200:
        try:
            first = await response.read()
        except BaseException:
            response.close()
            raise
    return Opened(lease, response, first, streams)


def is_event_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def starts_with_error(first: bytes) -> bool:
    """Whether a stream's first event is an error object. The space after `data:` is optional in SSE."""
    event = first[:64].removeprefix(b"data:").lstrip()
    return event.startswith((b'{"error"', b'{"object":"error"', b'{"type":"error"'))


def _retry_class(error: Exception | None, opened: Opened | None) -> str | None:
    """The class of a failure that another endpoint may not have, or None for an answer to relay."""
    if isinstance(error, ConnectFailed):
        return "connect"
    if isinstance(error, ConnectionLost | BadUpstreamResponse):
        return "lost"
    if isinstance(error, UpstreamTimeout):
        # The engine may still be at work on it; only a connection that never was is safe to repeat.
        return "connect" if error.phase == "connect" else None
    assert opened
    if opened.response.status in RETRY_STATUSES:
        return f"status_{opened.response.status}"
    if opened.first is not None and starts_with_error(opened.first):
        return "error_event"
    return None
