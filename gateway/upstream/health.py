"""Active probes: every endpoint's health path, each in a task of its own, so that a hung one delays no other.

A probe asks the server whether it is alive, over the connector that requests use; it never runs a completion (a
one-token ping fails on reasoning models and costs engine time). A refusal, or a status other than 200, takes the
endpoint out at once; silence does so the second time, because a server that is busy with a long prompt may be late
once. A successful probe brings it back at once, unless its breaker is shut: then it permits a trial.

The same loop heeds what other replicas found (`doubt`; a newly doubted endpoint is probed at once), looks for stalls
(`stall`) and for slow endpoints (`pace`), closes endpoints that have drained, and watches the number of open files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from gateway.errors import GatewayError, NothingAvailable, UpstreamTimeout
from gateway.policy.schema import Health
from gateway.state.store import Others
from gateway.upstream.client import Headers, Timeouts
from gateway.upstream.doubt import heed
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.pace import watch_pace
from gateway.upstream.pools import Pools
from gateway.upstream.stall import watch_stalls

log = logging.getLogger("gateway.health")

PROBE_SECONDS = 2.0
PROBE_TIMEOUTS = Timeouts(PROBE_SECONDS, PROBE_SECONDS, PROBE_SECONDS)
LOOK_SECONDS = 1.0
"""From one look at every endpoint to the next."""
SILENCES = 2
"""Consecutive probes without an answer in time that take an endpoint out."""


class Prober:
    """Keeps one probing task per endpoint of the live pools. `run` until cancelled."""

    def __init__(self, pools: Pools, rng: Random, others: Callable[[], Others] = Others) -> None:
        """`others` are the other replicas' views."""
        self._pools = pools
        self._others = others
        self._rng = rng
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}
        self._health: dict[Endpoint, Health] = {}
        self._silences: dict[Endpoint, int] = {}

    async def run(self) -> None:
        self._pools.on_apply = self._match_pools
        self._match_pools()
        last = self._pools.clock()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                now = self._pools.clock()
                self.heed_others(now)
                watch_stalls(self._pools, now - last)
                last = now
                watch_pace(self._pools, now)
                self._pools.shedder.look()
                await self._pools.close_drained()
        finally:
            self._pools.on_apply = _nothing
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()

    def heed_others(self, now: float) -> None:
        """Takes in the other replicas' findings; an endpoint that is newly doubted is probed without waiting."""
        for endpoint in heed(self._pools, self._others(), now):
            log.warning("other replicas found an endpoint broken", extra={"fields": {"endpoint": endpoint.url}})
            if (task := self._tasks.get(endpoint)) is not None:
                task.cancel()
                self._tasks[endpoint] = asyncio.create_task(self._probe_forever(endpoint))

    def _match_pools(self) -> None:
        """Starts a task for each endpoint that is to be probed and has none; it probes at once."""
        self._health = {e: pool.policy.health for pool in self._pools for e in pool.endpoints}
        for endpoint in [e for e in self._tasks if e not in self._health or self._health[e].interval is None]:
            self._tasks.pop(endpoint).cancel()
            self._silences.pop(endpoint, None)
        for endpoint, health in self._health.items():
            if endpoint not in self._tasks and health.interval is not None:
                self._tasks[endpoint] = asyncio.create_task(self._probe_forever(endpoint))
            elif health.interval is None and not endpoint.probed_up:
                # Nobody would ever find it up again.
                endpoint.probed(True)

    async def _probe_forever(self, endpoint: Endpoint) -> None:
        while (health := self._health.get(endpoint)) is not None and health.interval is not None:
            await self.probe(endpoint, health)
            # Jitter keeps many replicas from probing in step.
            pause = health.interval * (0.9 + 0.2 * self._rng.random())
            await asyncio.sleep(min(pause, LOOK_SECONDS) if self._silences.get(endpoint) else pause)

    async def probe(self, endpoint: Endpoint, health: Health) -> None:
        """Makes one probe, and tells the endpoint the result."""
        why = await self._ask(endpoint, health)
        if why == "silence":
            self._silences[endpoint] = self._silences.get(endpoint, 0) + 1
            if self._silences[endpoint] < SILENCES:
                return
        else:
            self._silences.pop(endpoint, None)
        was_up = endpoint.probed_up
        endpoint.probed(why is None)
        if was_up and why is not None:
            log.warning("endpoint is down", extra={"fields": {"endpoint": endpoint.url, "probe": why}})
        elif not was_up and why is None:
            log.info("endpoint is up", extra={"fields": {"endpoint": endpoint.url}})

    async def _ask(self, endpoint: Endpoint, health: Health) -> str | None:
        """Why the endpoint is not healthy, or None. One whose connections are all in use by us counts as healthy."""
        headers: Headers = [(b"authorization", b"Bearer " + endpoint.api_key)] if endpoint.api_key else []
        try:
            async with asyncio.timeout(2 * PROBE_SECONDS):
                answer = await endpoint.connector.send(b"GET", health.path.encode(), headers, b"", PROBE_TIMEOUTS)
                try:
                    while await answer.read():
                        pass
                finally:
                    answer.close()
        except NothingAvailable:
            return None
        except (TimeoutError, UpstreamTimeout):
            return "silence"
        except GatewayError as error:
            return error.code
        return None if answer.status == 200 else f"status {answer.status}"


def _nothing() -> None: ...
