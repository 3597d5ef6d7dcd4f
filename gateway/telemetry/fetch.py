"""Gets one page from a back end, whole, bounded in size and time.

It goes over the gateway's own connectors: for plain HTTP at about a tenth of the CPU of an httpx client, which counts
at 32 endpoints a second.
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
    """Why there is no page, in words that stay the same while the cause does."""


class Fetch(Protocol):
    """Where pages come from."""

    async def get(self, url: str, path: str, api_key: bytes | None, seconds: float) -> bytes:
        """The body of a 200. Raises FetchFailed for all else, and after `seconds` in any case."""
        ...

    async def forget(self, url: str) -> None:
        """Closes what is kept open for a back end that has gone."""
        ...

    async def aclose(self) -> None: ...


class Answer(Protocol):
    """As `gateway.upstream.client.Response`."""

    @property
    def status(self) -> int: ...

    async def read(self) -> bytes: ...

    def close(self) -> None: ...


class Origin(Protocol):
    """As `gateway.upstream.client.Connector`."""

    async def send(self, method: bytes, target: bytes, headers: Headers, body: bytes, timeouts: Any, /) -> Answer: ...

    async def aclose(self) -> None: ...


def _no_name(url: str) -> str | None:
    return None


class ConnectorFetch:
    """Pages over one connector for each back end, apart from the requests' connections and their limit."""

    def __init__(
        self, connect: Callable[[str], Origin], timeouts: object, host_of: Callable[[str], str | None] = _no_name
    ) -> None:
        """`connect` opens nothing yet; `timeouts` is the connector's own type, above `seconds` of any `get`.

        `host_of` is the name that a connector is made for, where it is not the URL's: another name is another
        connector, since the name is what a certificate is checked against.
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
