"""What this process tells the others and learns from them, through the store: views of load, and learned state.

Learned state goes out every half minute and comes back after a restart: to Redis where there is one, else to a folder
of snapshot files (`--state-dir`), else nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gateway.api.core import Core, Learned
from gateway.state.store import EndpointView, Store, View

log = logging.getLogger("gateway.state")

SHARE_SECONDS = 30.0
CURVES, LENGTHS = "curves", "lengths"


def local_view(core: Core) -> View:
    """This process's in-flight counts and breaker states, by pool and URL."""
    core.limits.tick()
    endpoints = {
        f"{pool.name} {endpoint.url}": EndpointView(endpoint.in_flight, not endpoint.available())
        for pool in core.pools
        for endpoint in pool.endpoints
    }
    return View(endpoints, core.limits.in_flight())


class Sharing:
    """`restore` at the start, `run` until cancelled, `publish` at the end."""

    def __init__(self, store: Store, learned: Learned, replica: str) -> None:
        self._store = store
        self._learned = learned
        self._replica = replica

    async def restore(self) -> None:
        """Takes in what was learned before this start, by this process and the others."""
        self._take(CURVES, await self._store.share(CURVES, None), own=None)
        self._take(LENGTHS, await self._store.share(LENGTHS, None), own=None)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SHARE_SECONDS)
            await self.publish()

    async def publish(self) -> None:
        """Sends what this process knows and takes what the others sent since."""
        curves = self._learned.routing.curves.snapshot()
        self._take(CURVES, await self._store.share(CURVES, curves), own=self._replica)
        lengths = await asyncio.to_thread(self._learned.estimator.snapshot)
        await self._store.share(LENGTHS, lengths)

    def _take(self, name: str, blobs: Mapping[str, bytes], own: str | None) -> None:
        if name == CURVES:
            self._learned.routing.curves.merge(blobs, own)
            return
        for replica, blob in blobs.items():
            try:
                self._learned.estimator.merge(blob)
            except ValueError as error:
                log.warning("learned lengths not taken", extra={"fields": {"from": replica, "problem": str(error)}})
