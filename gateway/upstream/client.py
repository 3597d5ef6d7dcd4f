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
Extra = Callable[[], float]
"""Tells how many seconds beyond `Timeouts.first_byte` an answer's first byte may take. Asked only when it is late."""
Take = Callable[[bytes], bool]
"""Takes a piece of a body. Returns False to get no further one for now. Must neither wait nor close the response."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits per phase, in seconds; None is no limit. Each phase's `UpstreamTimeout` names it."""

    connect: float | None = 2.0
    first_byte: float | None = 300.0
    """From the request's last byte sent to the first byte of the answer's body. For a stream vLLM sends the head early;
    for a whole answer it sends nothing before the last token."""
    idle: float | None = 60.0
    """Between two pieces of the body, and for a back end that stops taking the request's body."""


@dataclass(frozen=True, slots=True)
class ConnectorStatistics:
    """A snapshot for asserts, logs and the operator's page."""

    active: int
    """Exchanges that hold a connection, including those still connecting."""
    idle: int
    opened: int
    """Connections opened since the start."""


class Response(Protocol):
    """An answer whose status and headers have arrived and whose body has not."""

    status: int
    headers: Headers
    """Names in lower case, in the order received, hop-by-hop headers included. Trailers are dropped."""
    ended: bool
    """True once `read` has returned the whole body, so that the last piece can be recognised as the last."""

    async def read(self) -> bytes:
        """All that has come of the body since the last call, waiting for it if nothing has; b"" at the proper end.

        A body with neither length nor chunks ends with its connection, so a clean cut looks like its end; a reset
        does not.

        Raises ConnectionLost if the body is cut, BadUpstreamResponse if its framing is broken, UpstreamTimeout if
        a phase's limit runs out; what came before that is returned first. When cancelled, closes the response.
        """
        ...

    async def pour(self, take: Take) -> bool:
        """Passes all that comes of the body to `take` as it comes, if possible without waking this task.

        Returns True once `take` has returned False, and False at the proper end. Raises and is cancelled as `read`;
        what `take` raises is raised here.
        """
        ...

    def hasten(self, seconds: float) -> None:
        """Lowers the idle limit to this, for what is left of the body."""
        ...

    def close(self) -> None:
        """Closes the connection at once, unless the whole body has come. Idempotent, never raises."""
        ...


async def pour_by_reading(response: Response, take: Take) -> bool:
    """`Response.pour` by means of `read`, for connectors that have no faster way."""
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
        extra: Extra | None = None,
    ) -> Response:
        """Sends one request and returns when the answer's headers have come.

        `target` is the raw path with its query. The connector sets `host` and framing headers: `headers` must hold
        neither (`headers.upstream_request_headers` sees to that). Bytes are sent with a Content-Length, an iterator in
        chunks as it yields. An answer that comes before the whole body is sent is returned at once.

        A reused connection that the server had closed without taking the request is replaced once, invisibly. One
        that it closed after taking the request raises Dropped, if that is known. An iterator is never sent twice.

        Raises ConnectFailed (nothing was sent), NothingAvailable (the connection limit is reached, nothing was
        sent), ConnectionLost, BadUpstreamResponse, UpstreamTimeout, and whatever the iterator raises. When
        cancelled, the connection is closed before the cancellation goes on.
        """
        ...

    def statistics(self) -> ConnectorStatistics: ...

    async def aclose(self) -> None:
        """Closes idle connections; active ones close when their response does."""
        ...
