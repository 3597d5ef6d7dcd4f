"""Endpoints by DNS name: one per address, resolved again every `refresh` seconds, sooner after a failure.

The system's resolver is used off the event loop (`loop.getaddrinfo`), with one query for a name at a time, however long
it takes. It returns no time to live, hence `refresh`. Each answer is the whole set: what it lacks has gone. Addresses
that cannot be a host are ignored (0.0.0.0, as DNS filters answer, would be this machine).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway.discovery.found import Address, Factor, Listener, Sleep, backoff
from gateway.policy.schema import DnsName

Resolve = Callable[[str, int, socket.AddressFamily], Awaitable[Sequence[str]]]
"""Name, port and family to addresses. Raises OSError (`socket.gaierror` is one)."""

FAMILIES = {"any": socket.AF_UNSPEC, "ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}


async def system_resolver(name: str, port: int, family: socket.AddressFamily) -> Sequence[str]:
    """Resolves by this machine's own means: hosts file, search list, DNS."""
    rows = await asyncio.get_running_loop().getaddrinfo(name, port, family=family, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in rows]


async def follow_name(wanted: DnsName, listener: Listener, resolve: Resolve, sleep: Sleep, factor: Factor) -> None:
    """See `found.Follow`."""
    parts = urlsplit(wanted.url)
    name, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    failures = 0
    while True:
        try:
            addresses = addressed(wanted.url, await resolve(name, port, FAMILIES[wanted.family]))
        except (OSError, UnicodeError) as error:
            addresses = ()
            listener.failed(getattr(error, "strerror", None) or type(error).__name__)
        else:
            listener.found(addresses)
        failures = 0 if addresses else failures + 1
        wait = min(backoff(failures), wanted.refresh) if failures else wanted.refresh
        await sleep(wait * factor())


def addressed(url: str, answer: Iterable[str]) -> tuple[Address, ...]:
    """The URL with each of these addresses in place of its host, sorted, none twice."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port is not None else ""
    usable = (text for text in answer if not _is_no_host(text))
    return tuple(
        sorted(
            Address(f"{parts.scheme}://{f'[{text}]' if ':' in text else text}{port}{parts.path}", parts.hostname)
            for text in set(usable)
        )
    )


def _is_no_host(text: str) -> bool:
    address = ip_address(text)
    return address.is_unspecified or address.is_multicast
