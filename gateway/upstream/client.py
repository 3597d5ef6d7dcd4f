"""The one interface to a back end's HTTP server. Two connectors implement it: `lean.py` and `httpx_client.py`.

A connector belongs to one origin (scheme, host, port) and keeps that origin's connections. One request uses one
connection; closing a response that has not ended closes its connection, which is how vLLM learns to stop decoding.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits per phase, in seconds; None is no limit. Each phase's `UpstreamTimeout` names it."""

    connect: float | None = 2.0
    first_byte: float | None = 300.0
    """From the request's last byte sent to the first byte of the answer's body (vLLM sends headers early)."""
    idle: float | None = 60.0
    """Between two pieces of the body."""


@dataclass(frozen=True, slots=True)
class ConnectorStatistics:
    """A snapshot for asserts, logs and the operator's page."""

    active: int
    idle: int
    opened: int
    """Connections opened since the start."""


class Response(Protocol):
    """An answer whose status and headers have arrived and whose body has not."""

    status: int
    headers: Headers
    """Names in lower case, in the order received, hop-by-hop headers included."""

    async def read(self) -> bytes:
        """The next piece of the body, as it came; b"" at the proper end.

        Raises ConnectionLost if the body is cut, UpstreamTimeout if a phase's limit runs out.
        """
        ...

    def close(self) -> None:
        """Gives the connection back if the body has ended, else closes it at once. Idempotent, never raises."""
        ...


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

        `target` is the raw path with its query. `host` and framing headers are the connector's own. A reused
        connection that turns out to be closed before any byte of the answer is replaced once, invisibly.

        Raises ConnectFailed (nothing was sent), ConnectionLost, BadUpstreamResponse, UpstreamTimeout. When
        cancelled, the connection is closed before the cancellation goes on.
        """
        ...

    def statistics(self) -> ConnectorStatistics: ...

    async def aclose(self) -> None:
        """Closes idle connections; active ones close when their response does."""
        ...
