"""What one request asks of the back ends, and the answer that is opened for it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from gateway.upstream.client import Extra, Headers, Response
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.fair import UNIT, Work
from gateway.upstream.lease import Lease
from gateway.upstream.prefill import Prompt


class Call:
    """What to send, whichever endpoint gets it. Whoever sends subclasses it: `body` and `headers` may depend on the
    endpoint (served name, its own key), and most of the rest is asked for only where something goes wrong."""

    method = b"POST"
    target: bytes
    """Raw path and query; the connector knows its endpoint's prefix."""
    pools: Sequence[str]
    attempts = 1
    """Requests that may be sent for this one, the first included."""
    wait_for_first = True
    """Read a stream's first event before the answer is committed, so that an error event can still fail over."""
    endpoint: str | None = None
    """URL of the endpoint of the first pool that has the conversation's prefix cached: taken if it has a place."""
    stream = False
    """The answer comes in pieces, if it is a good one."""
    json = False
    """A good answer is a JSON object, or a stream of events."""
    priority = 0
    key: str | None = None
    exclude: frozenset[str] = frozenset()
    """URLs of endpoints that can't serve the request."""

    def headers(self, endpoint: Endpoint) -> Headers:
        raise NotImplementedError

    def body(self, pool: str) -> bytes | AsyncIterator[bytes]:
        """Called for each attempt; raises a GatewayError where it can't be given once more."""
        raise NotImplementedError

    def again(self) -> bool:
        """Whether the body can be given once more."""
        return True

    def work(self) -> Work:
        """Its expected work, for the queue. Asked for where it has to wait."""
        return UNIT

    def first(self) -> float:
        """Expected seconds to the answer's first byte; infinite where nothing is known. Asked for where it is late."""
        return math.inf

    def extra(self) -> Extra | None:
        """For a whole answer: all of its tokens come before its first byte, which may be later than a stream's."""
        return None

    def prompt(self, lease: Lease) -> Prompt | None:
        """Its prompt at a lease's engine, where that computes one: sent when the engine is about to get to it."""
        return None


@dataclass(slots=True)
class Opened:
    """An answer that will be relayed, with the lease that its end must release."""

    lease: Lease
    response: Response
    first: bytes | None
    """What has been read of the body; None where nothing has."""
    streams: bool
    fault: int | None = None
    """Of a good status that comes without an answer: the error's own status, or 0. See `verdict`."""
