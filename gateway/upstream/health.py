"""Active probes: every endpoint's health path, each in a task of its own, so that a hung one delays no other.

A probe asks the server whether it is alive; it never runs a completion (a one-token ping fails on reasoning models
and costs engine time).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

import httpx

from gateway.policy.schema import Health
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.pool import Pools

log = logging.getLogger("gateway.health")

PROBE_SECONDS = 2.0
IDLE_SECONDS = 1.0


class Prober:
    """Keeps one probing task per endpoint, as the pools stand. `run` until cancelled."""

    def __init__(self, pools: Pools, rng: Random, client: Callable[[], httpx.AsyncClient]) -> None:
        self._pools = pools
        self._rng = rng
        self._make_client = client
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with self._make_client() as client:
            try:
                while True:
                    self._match_pools(client)
                    await self._pools.close_drained()
                    await asyncio.sleep(IDLE_SECONDS)
            finally:
                for task in self._tasks.values():
                    task.cancel()
                await asyncio.gather(*self._tasks.values(), return_exceptions=True)
                self._tasks.clear()

    def _match_pools(self, client: httpx.AsyncClient) -> None:
        wanted = {endpoint: pool for pool in self._pools for endpoint in pool.endpoints}
        for endpoint in [e for e in self._tasks if e not in wanted]:
            self._tasks.pop(endpoint).cancel()
        for endpoint, pool in wanted.items():
            if endpoint not in self._tasks and pool.policy.health.interval is not None:
                name = pool.name
                self._tasks[endpoint] = asyncio.create_task(self._probe_forever(client, endpoint, name))

    async def _probe_forever(self, client: httpx.AsyncClient, endpoint: Endpoint, pool: str) -> None:
        while True:
            health = self._pools[pool].policy.health
            await self.probe(client, endpoint, health)
            # Jitter keeps many replicas from probing in step.
            await asyncio.sleep((health.interval or IDLE_SECONDS) * (0.9 + 0.2 * self._rng.random()))

    async def probe(self, client: httpx.AsyncClient, endpoint: Endpoint, health: Health) -> None:
        """One probe; the endpoint's `probed_up` says afterwards what it found."""
        headers = {"authorization": "Bearer " + endpoint.api_key.decode()} if endpoint.api_key else {}
        try:
            answer = await client.get(endpoint.url + health.path, timeout=PROBE_SECONDS, headers=headers)
            up, why = answer.status_code == 200, f"status {answer.status_code}"
        except httpx.HTTPError as error:
            up, why = False, type(error).__name__
        if up != endpoint.probed_up:
            endpoint.probed_up = up
            if up:
                endpoint.failures = 0
                log.info("endpoint is up", extra={"fields": {"endpoint": endpoint.url}})
            else:
                log.warning("endpoint is down", extra={"fields": {"endpoint": endpoint.url, "probe": why}})
