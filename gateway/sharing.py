"""What this process exchanges with the others through the store: views of load, and learned state.

Learned state goes to Redis if there is one, else to a folder of snapshot files (`--state-dir`), else nowhere:
- curves: each replica publishes its own sums under its name; readers replace what they had of it.
- tokens: likewise, for the weights that prompts are counted with.
- lengths: every half minute a replica publishes what it learned since, numbered, so that the others take each piece in
  once; and all of it, for its own next start. A new replica starts from the largest that another one has published.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Mapping

from gateway.api.core import Core, Learned
from gateway.state.store import Store, View
from gateway.upstream.doubt import voice

log = logging.getLogger("gateway.state")

SHARE_SECONDS = 30.0
RESTORE_SECONDS = 1.0
TRIES = 3
CURVES, TOKENS, LENGTHS, NEWS = "curves", "tokens", "lengths", "lengths-news"
_NUMBER = struct.Struct("<Q")


def local_view(core: Core) -> View:
    """This process's requests in flight by key, and by pool and URL which endpoints work for it or are broken."""
    core.limits.tick()
    now = core.clock()
    endpoints = {
        f"{pool.name} {endpoint.url}": voice(endpoint, now) for pool in core.pools for endpoint in pool.endpoints
    }
    return View(endpoints, core.limits.in_flight())


class Sharing:
    """Call `restore` at the start, `run` until cancelled, and `publish` at the end."""

    def __init__(
        self,
        store: Store,
        learned: Learned,
        replica: str,
        first_number: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`first_number` numbers the first piece published; this replica must not have used it before. `wall` is a
        clock that all replicas share: seconds since the epoch."""
        self._wall = wall
        self._store = store
        self._learned = learned
        self._replica = replica
        self._number = first_number
        self._restored = False
        self._taken: dict[str, int] = {}
        """The number of the last piece taken in from each other replica."""

    async def restore(self) -> None:
        """Takes in what this process and the others learned before this start.

        If the store can't say, nothing happens: `run` tries again, and until then nothing is published, because the
        little that is known after a start would replace all that was known before it.
        """
        found = [await self._store.share(name, None) for name in (CURVES, TOKENS, LENGTHS, NEWS)]
        if None in found:
            return
        curves, tokens, lengths, pieces = (rows or {} for rows in found)
        self._restored = True
        self._learned.routing.curves.merge(curves, self._replica, resume=True)
        self._learned.tokens.merge(tokens, self._replica, resume=True)
        if blob := lengths.get(self._replica) or max(lengths.values(), key=len, default=None):
            self._merge(blob, self._replica)
        for replica, news in pieces.items():
            self._taken[replica] = _number(news)

    async def run(self) -> None:
        """Publishes every half minute until cancelled."""
        while True:
            await asyncio.sleep(SHARE_SECONDS if self._restored else RESTORE_SECONDS)
            await (self.publish() if self._restored else self.restore())

    async def publish(self) -> None:
        """Sends what this process has learned, and takes in what the others have sent since."""
        if not self._restored:
            await self.restore()
        curves, tokens, estimator = self._learned.routing.curves, self._learned.tokens, self._learned.estimator
        heard = await self._share(CURVES, curves.snapshot(self._wall())) if self._restored else None
        if heard is None:
            # What is new stays with the estimator, for the next time.
            return
        curves.merge(heard, self._replica)
        if (heard := await self._share(TOKENS, tokens.snapshot(self._wall()))) is not None:
            tokens.merge(heard, self._replica)
        self._number += 1
        self._take(await self._share(NEWS, _NUMBER.pack(self._number) + estimator.changes()) or {})
        await self._share(LENGTHS, estimator.snapshot())

    async def _share(self, name: str, blob: bytes) -> Mapping[str, bytes] | None:
        """Publishes, and tries again where the store is late once: a process that ends has no other time."""
        for _ in range(TRIES):
            if (rows := await self._store.share(name, blob)) is not None:
                return rows
        return None

    def _take(self, news: Mapping[str, bytes]) -> None:
        for replica, blob in news.items():
            number = _number(blob)
            if replica != self._replica and number > self._taken.get(replica, 0):
                self._taken[replica] = number
                self._merge(blob[_NUMBER.size :], replica)

    def _merge(self, blob: bytes, replica: str) -> None:
        try:
            self._learned.estimator.merge(blob)
        except ValueError as error:
            log.warning("learned lengths not taken", extra={"fields": {"from": replica, "problem": str(error)}})


def _number(news: bytes) -> int:
    number: int = _NUMBER.unpack_from(news)[0] if len(news) >= _NUMBER.size else 0
    return number
