"""The `ip:port` of each endpoint of the policy, as Envoy accepts nothing else.

An address in the URL is used as it is. A name is resolved in the background, again and again, so that a pod that comes
back elsewhere is found; an endpoint whose name does not resolve cannot be picked. A name should mean one pod (a
StatefulSet's, not a Service's): of several addresses one is used, the same one as long as it exists.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

log = logging.getLogger("gateway.epp")

LOOK_SECONDS = 5.0


class Addresses:
    """The addresses by URL. `run` keeps those of names up to date until cancelled."""

    def __init__(self, urls: Callable[[], Iterable[str]]) -> None:
        self._urls = urls
        """Returns the URLs of the current endpoints."""
        self._known: dict[str, str | None] = {}
        self._several: set[str] = set()
        self._asked = asyncio.Event()

    def of(self, url: str) -> str | None:
        """`ip:port`, or None while a name has no address."""
        try:
            return self._known[url]
        except KeyError:
            found = self._known[url] = literal(url)
            if found is None:
                self._asked.set()
            return found

    async def run(self) -> None:
        while True:
            self._asked.clear()
            await self.look()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Resolves every name once, concurrently, and forgets endpoints that have gone."""
        urls = set(self._urls())
        for gone in self._known.keys() - urls:
            del self._known[gone]
        await asyncio.gather(*(self._resolve(url) for url in urls if literal(url) is None))

    async def _resolve(self, url: str) -> None:
        host, port = _host_and_port(url)
        loop, before = asyncio.get_running_loop(), self._known.get(url)
        try:
            rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            # A malformed name raises UnicodeError.
            self._known[url] = None
            if before is not None:
                why = getattr(error, "strerror", None) or type(error).__name__
                log.warning("endpoint has no address", extra={"fields": {"endpoint": url, "error": why}})
            return
        found = sorted({_written(str(row[4][0]), port) for row in rows})
        if len(found) > 1 and url not in self._several:
            self._several.add(url)
            log.warning("endpoint has %d addresses and one is used", len(found), extra={"fields": {"endpoint": url}})
        self._known[url] = before if before in found else found[0]


def literal(url: str) -> str | None:
    """The address in the URL itself; None if the URL has a name."""
    host, port = _host_and_port(url)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return _written(host, port)


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
