"""What one request asks of the back ends, and the answer that is opened for it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from gateway.records import keyword_record
from gateway.upstream.client import Extra, Headers, Response
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.fair import UNIT, Work
from gateway.upstream.lease import Lease
from gateway.upstream.prefill import Prompt


@keyword_record
class Call:
    """What to send, whichever endpoint gets it. `body` and `headers` may depend on it (served name, its own key)."""

    method: bytes
    target: bytes
    """Raw path and query; the connector knows its endpoint's prefix."""
    headers: Callable[[Endpoint], Headers]
    body: Callable[[str], bytes | AsyncIterator[bytes]]
    """From the pool's name. Called for each attempt; raises a GatewayError where it can't be given once more."""
    pools: Sequence[str]
    attempts: int
    """Requests that may be sent for this one, the first included."""
    wait_for_first: bool
    """Read a stream's first event before the answer is committed, so that an error event can still fail over."""
    endpoint: str | None = None
    """URL of the endpoint of the first pool that has the conversation's prefix cached: taken if it has a place."""
    work: Callable[[], Work] = lambda: UNIT
    """Its expected work, for the queue. Asked for where it has to wait."""
    first: Callable[[], float] = lambda: math.inf
    """Expected seconds to the answer's first byte; infinite where nothing is known. Asked for where it is late."""
    extra: Extra | None = None
    """For a whole answer: all of its tokens come before its first byte, which may be later than a stream's."""
    prompt: Callable[[Lease], Prompt | None] = lambda lease: None
    """Its prompt at a lease's engine, where that computes one: sent when the engine is about to get to it."""
    stream: bool = False
    """The answer comes in pieces, if it is a good one."""
    json: bool = False
    """A good answer is a JSON object, or a stream of events."""
    again: Callable[[], bool] = lambda: True
    """Whether the body can be given once more."""
    priority: int = 0
    key: str | None = None
    exclude: frozenset[str] = frozenset()
    """URLs of endpoints that can't serve the request."""


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
