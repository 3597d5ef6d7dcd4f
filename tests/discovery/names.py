"""A resolver whose answers a test sets, and sources that ask it in quick succession."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.discovery.cluster import Cluster
from gateway.discovery.follow import follower
from gateway.discovery.found import Address, Follow


@dataclass(slots=True)
class Names:
    """What each name answers: addresses, or an error that is raised. Unknown ones do not exist."""

    answers: dict[str, Sequence[str] | OSError] = field(default_factory=dict)
    asked: list[tuple[str, int, socket.AddressFamily]] = field(default_factory=list)

    async def __call__(self, name: str, port: int, family: socket.AddressFamily) -> Sequence[str]:
        self.asked.append((name, port, family))
        answer = self.answers.get(name, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, OSError):
            raise answer
        return answer


async def soon(seconds: float) -> None:
    """In the place of any longer sleep."""
    await asyncio.sleep(0.005)


def quickly(names: Names | None = None, cluster: Cluster | None = None) -> Follow:
    return follower({}, random.Random(7), resolve=names or Names(), cluster=cluster, sleep=soon)


@dataclass(slots=True)
class Heard:
    """A listener that notes what it is told."""

    told: list[tuple[Address, ...] | str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def found(self, addresses: tuple[Address, ...]) -> None:
        self._note(addresses)

    def failed(self, why: str) -> None:
        self._note(why)

    def _note(self, what: tuple[Address, ...] | str) -> None:
        if not self.told or self.told[-1] != what:
            self.told.append(what)
        self.news.set()

    @property
    def urls(self) -> list[str]:
        """The last set told, or nothing while the last word was a failure."""
        last = self.told[-1] if self.told else ()
        return [] if isinstance(last, str) else [address.url for address in last]

    async def until_urls(self, *urls: str) -> None:
        await self.until(lambda: self.urls == list(urls))

    async def until_failed(self, why: str) -> None:
        await self.until(lambda: bool(self.told) and self.told[-1] == why)

    async def until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()
