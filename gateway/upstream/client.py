"""The one interface to a back end's HTTP server. Two connectors implement it: `lean.py` and `httpx_client.py`.

A connector belongs to one origin (scheme, host, port) and keeps that origin's connections. One request uses one
connection; closing a response that has not ended closes its connection, which is how vLLM learns to stop decoding.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import ConnectionLost

Headers = list[tuple[bytes, bytes]]
Take = Callable[[bytes], bool]
"""Takes a piece of a body; False if it wants no further one for now. Must neither wait nor close the response."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits per phase, in seconds; None is no limit. Each phase's `UpstreamTimeout` names it."""

    connect: float | None = 2.0
    first_byte: float | None = 300.0
    """From the request's last byte sent to the first byte of the answer's body. For a stream vLLM sends the head early;
    for a whole answer it sends nothing before the last token."""
    idle: float | None = 60.0
    """Between two pieces of the body, and for a back end that stops taking the request's body."""

    def later(self, seconds: float) -> Timeouts:
        """These, with so much more time for the first byte."""
        if not seconds or self.first_byte is None:
            return self
        return Timeouts(self.connect, self.first_byte + seconds, self.idle)


@dataclass(frozen=True, slots=True)
class ConnectorStatistics:
    """A snapshot for asserts, logs and the operator's page."""

    active: int
    """Exchanges that hold a connection, those still connecting included."""
    idle: int
    opened: int
    """Connections opened since the start."""


class Response(Protocol):
    """An answer whose status and headers have arrived and whose body has not."""

    status: int
    headers: Headers
    """Names in lower case, in the order received, hop-by-hop headers included. Trailers are dropped."""
    ended: bool
    """True once `read` has handed out the whole body, so that the last piece can be known as the last."""

    async def read(self) -> bytes:
        """All that has come of the body since the last call, waiting for it if nothing has; b"" at the proper end.

        A body with neither length nor chunks ends with its connection, so there a clean cut can't be told from
        the end; a reset can.

        Raises ConnectionLost if the body is cut, BadUpstreamResponse if its framing is broken, UpstreamTimeout if
        a phase's limit runs out; what came before is handed out first. When cancelled, closes the response.
        """
        ...

    async def pour(self, take: Take) -> bool:
        """Hands all that comes of the body to `take` as it comes, where possible without waking this task for it.

        Returns True once `take` has been False, False at the proper end. Raises and is cancelled as `read`; what
        `take` raises is raised here.
        """
        ...

    def close(self) -> None:
        """Closes the connection at once unless the body has come whole. Idempotent, never raises."""
        ...


async def pour_by_reading(response: Response, take: Take) -> bool:
    """`Response.pour` for answers that can do no better."""
    while piece := await response.read():
        if not take(piece):
            return True
    return False


class Dropped(ConnectionLost):
    """A reused connection was closed without a byte of the answer, though the server had taken the request."""


class Connector(Protocol):
    """Sends requests to one origin."""

    async def send(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
    ) -> Response:
        """Sends one request and returns when the answer's headers are there.

        `target` is the raw path with its query. `host` and framing headers are the connector's own: `headers` must
        hold neither (`headers.upstream_request_headers` sees to it). Bytes go with a Content-Length, an iterator
        goes in chunks as it yields; an answer that comes before the body is all sent is returned at once.

        A reused connection that the server had closed without taking the request is replaced once, invisibly; one
        that it closed after taking the request raises Dropped, where that can be told. An iterator is never sent twice.

        Raises ConnectFailed (nothing was sent), NothingAvailable (the connection limit is reached, nothing was
        sent), ConnectionLost, BadUpstreamResponse, UpstreamTimeout, and whatever the iterator raises. When
        cancelled, the connection is closed before the cancellation goes on.
        """
        ...

    def statistics(self) -> ConnectorStatistics: ...

    async def aclose(self) -> None:
        """Closes idle connections; active ones close when their response does."""
        ...
