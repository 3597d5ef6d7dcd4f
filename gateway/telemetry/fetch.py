"""Fetches one page from a back end, with limits on size and time.

It uses the gateway's own connectors, which take about a tenth of an httpx client's CPU for plain HTTP. With 32
endpoints scraped every second that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from gateway.errors import GatewayError

MAX_PAGE_BYTES = 16 * 1024 * 1024
Headers = list[tuple[bytes, bytes]]

_ACCEPT = b"application/json, text/plain;version=0.0.4;q=0.9"


class FetchFailed(Exception):
    """A page could not be fetched. The message is the same for the same cause, so that repeats can be recognised."""


class Fetch(Protocol):
    """Fetches pages."""

    async def get(self, url: str, path: str, api_key: bytes | None, seconds: float) -> bytes:
        """The body of a 200 response. Raises FetchFailed for anything else, and after `seconds` at the latest."""
        ...

    async def forget(self, url: str) -> None:
        """Closes the connections to a removed back end."""
        ...

    async def aclose(self) -> None: ...


class Answer(Protocol):
    """The part of `gateway.upstream.client.Response` that is used here."""

    @property
    def status(self) -> int: ...

    async def read(self) -> bytes: ...

    def close(self) -> None: ...


class Origin(Protocol):
    """The part of `gateway.upstream.client.Connector` that is used here."""

    async def send(self, method: bytes, target: bytes, headers: Headers, body: bytes, timeouts: Any, /) -> Answer: ...

    async def aclose(self) -> None: ...


def _no_name(url: str) -> str | None:
    return None


class ConnectorFetch:
    """Fetches over one connector per back end, separate from the requests' connections and their limit."""

    def __init__(
        self, connect: Callable[[str], Origin], timeouts: object, host_of: Callable[[str], str | None] = _no_name
    ) -> None:
        """`connect` must not open a connection yet. `timeouts` is the connector's type and must exceed each `seconds`.

        `host_of` is the TLS host name of a URL, where it differs from the URL's host. A changed name gets a new
        connector, since the certificate is checked against it.
        """
        self._connect = connect
        self._timeouts = timeouts
        self._host_of = host_of
        self._origins: dict[str, tuple[str | None, Origin]] = {}

    async def get(self, url: str, path: str, api_key: bytes | None, seconds: float) -> bytes:
        origin = await self._origin(url)
        headers: Headers = [(b"accept", _ACCEPT), (b"accept-encoding", b"identity")]
        if api_key:
            headers.append((b"authorization", b"Bearer " + api_key))
        try:
            async with asyncio.timeout(seconds):
                answer = await origin.send(b"GET", path.encode(), headers, b"", self._timeouts)
                try:
                    return await _whole(answer.status, _pieces(answer))
                finally:
                    answer.close()
        except TimeoutError:
            raise FetchFailed("timeout") from None
        except GatewayError as error:
            raise FetchFailed(error.code) from error

    async def _origin(self, url: str) -> Origin:
        host = self._host_of(url)
        if (kept := self._origins.get(url)) is not None:
            if kept[0] == host:
                return kept[1]
            await self.forget(url)
        origin = self._connect(url)
        self._origins[url] = host, origin
        return origin

    async def forget(self, url: str) -> None:
        if kept := self._origins.pop(url, None):
            await kept[1].aclose()

    async def aclose(self) -> None:
        for url in list(self._origins):
            await self.forget(url)


async def _pieces(answer: Answer) -> AsyncIterator[bytes]:
    while piece := await answer.read():
        yield piece


async def _whole(status: int, pieces: AsyncIterator[bytes]) -> bytes:
    if status != 200:
        raise FetchFailed(f"status {status}")
    kept: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > MAX_PAGE_BYTES:
            raise FetchFailed(f"page above {MAX_PAGE_BYTES} bytes")
        kept.append(piece)
    return kept[0] if len(kept) == 1 else b"".join(kept)
