"""The door to the pools: a slot at once if there is one, else a bounded wait in fair order (see `fair.py`).

A request that finds room costs no task and no future. Any other is queued once, counted at the first of its pools whose
queue has room, and gets the first slot that becomes free in any of its pools. It leaves with a lease, or with

    503  `queue_wait` is over, the queue is full, or none of its pools has an endpoint worth waiting for
    429  the queue is full and its key is the one that fills it: with several keys waiting, a newcomer displaces the
         newest request of the key that has most in the queue, among keys of the lowest priority

each with a `Retry-After` computed from how fast slots become free, or from when an endpoint is tried next.
A client that leaves gives up its entry at once. Requests that failed over (`urgent`) go first: they have waited before.
Requests that only some endpoints of a pool can serve wait in the same queue, in a lane of their own.

If breakers have shut all endpoints, one request goes through as a trial, so that recovery need not wait for a timer.
Invariant: while a pool has room, no request that it may serve is waiting. `changed` restores it after every event
that can make room, and a timer covers the room that time alone makes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Set
from typing import Protocol

from gateway.errors import GatewayError, NothingAvailable
from gateway.types import Result
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.fair import FairQueue, Work
from gateway.upstream.lease import Lease
from gateway.upstream.places import Places
from gateway.upstream.pool import NOTHING, Pool
from gateway.upstream.refusals import down_text, full_error
from gateway.upstream.waiter import Lane, Waiter


class WaitObserver(Protocol):
    def __call__(self, pool: str, seconds: float) -> None: ...


def _nobody_listens(pool: str, seconds: float) -> None: ...


class Admission:
    """Lets requests in. `pools` is the live mapping, which reloads change in place."""

    def __init__(self, pools: Mapping[str, Pool], clock: Callable[[], float]) -> None:
        self._pools = pools
        self._clock = clock
        self._queue: FairQueue[Waiter] = FairQueue()
        self._urgent: dict[Waiter, None] = {}
        self._places = Places[Waiter]()
        self._lanes: dict[str, Lane] = {}
        """Parts of pools that requests in the queue wait for."""
        self._serving = False
        self._timer: asyncio.TimerHandle | None = None
        self.on_wait: WaitObserver = _nobody_listens
        """Called with the pool and the seconds of every wait that ended with a slot."""

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._urgent)

    def take(self, order: tuple[str, ...], exclude: Set[str] = NOTHING, prefer: str | None = None) -> Lease | None:
        """A slot now, unless there is none or others wait for it. `prefer` is a URL in the first pool."""
        pools = self._pools
        for name in order:
            pool = pools.get(name)
            if pool is not None and not pool.eligible and (lease := pool.lease(exclude, prefer)) is not None:
                return lease
            prefer = None
        return None

    async def wait(
        self,
        order: tuple[str, ...],
        work: Work,
        priority: int,
        key: str | None,
        *,
        exclude: Set[str] = NOTHING,
        urgent: bool = False,
    ) -> Lease:
        """A slot once there is one, in fair order: for a request that `take` has found nothing for.

        Raises NothingAvailable or TooManyRequests, both with `retry_after`.
        """
        live = [self._pools[name] for name in order if name in self._pools]
        if not any(pool.could_take(exclude) for pool in live):
            return self.try_shut(order, exclude) or self._refuse(live, order)
        waiter = Waiter(order, work, priority, key, exclude, self._clock(), urgent=urgent)
        self._enter(waiter, live, past_limit=urgent)
        self.freed()
        return await self._stand(waiter)

    def worth_waiting(self, order: tuple[str, ...], exclude: Set[str]) -> bool:
        """Whether one of these pools has an endpoint that can take the request now or soon."""
        return any(pool.could_take(exclude) for name in order if (pool := self._pools.get(name)) is not None)

    def try_shut(self, order: tuple[str, ...], exclude: Set[str]) -> Lease | None:
        """A trial at an endpoint that only its breaker keeps shut, unless one is running in these pools."""
        now = self._clock()
        live = [self._pools[name] for name in order if name in self._pools]
        if any(e.breaker.trial_since is not None for pool in live for e in pool.endpoints):
            return None
        for pool in live:
            if (endpoint := pool.trial(now, exclude)) is not None:
                return Lease(pool, endpoint, now)
        return None

    def freed(self) -> None:
        """Call when a slot may have become free: gives it to a request that waits."""
        if not (self._urgent or len(self._queue)) or self._serving:
            return
        self._serving = True
        # One look at the clock for both: what opens between two looks would neither serve nor set the timer.
        now = self._clock()
        try:
            self._serve(now)
        finally:
            self._serving = False
        self._arm(now)

    def changed(self) -> None:
        """Call when endpoints came, went or became unusable: serves what it can, and refuses what none is left for."""
        if not self.waiting or self._serving:
            return
        self.freed()
        promising = {pool.name for pool in self._pools.values() if pool.promising()}
        for waiter in [*self._urgent, *self._queue]:
            hopes = [name for name in waiter.pools if name in promising]
            if not hopes or (waiter.exclude and not self.worth_waiting(tuple(hopes), waiter.exclude)):
                self._fail(
                    waiter, "down", NothingAvailable(down_text(waiter.pools), retry_after=self._retry_after(waiter))
                )

    def recount(self) -> None:
        """After a reload: counts again how many waiting requests each pool may serve."""
        for pool in self._pools.values():
            pool.eligible = 0
        for waiter in [*self._urgent, *self._queue]:
            for name in waiter.pools:
                if name in self._pools:
                    self._pools[name].eligible += 1

    def _serve(self, now: float) -> None:
        for waiter in list(self._urgent):
            if waiter.future.done():
                self._leave(waiter)
                continue
            for name in waiter.pools:
                pool = self._pools.get(name)
                if pool is not None and (endpoint := pool.pick(now, waiter.exclude)) is not None:
                    self._grant(waiter, pool, endpoint, now)
                    break
        while len(self._queue):
            free = self._free(now)
            first = self._queue.first(free) if free else None
            if first is None:
                return
            if first.future.done():
                # Its client has left, though its task has not run since.
                self._leave(first)
                continue
            at = next(at for at, name in enumerate(first.order) if name in free)
            self._grant(first, self._pools[first.pools[at]], free[first.order[at]], now)

    def _free(self, now: float) -> dict[str, Endpoint]:
        """The endpoint that each pool and each lane would pick now."""
        found = {pool.name: pool.pick(now) for pool in self._pools.values() if pool.eligible}
        for name, lane in self._lanes.items():
            if (pool := self._pools.get(lane.pool)) is not None:
                found[name] = pool.pick(now, lane.exclude)
        return {name: endpoint for name, endpoint in found.items() if endpoint is not None}

    def _grant(self, waiter: Waiter, pool: Pool, endpoint: Endpoint, now: float) -> None:
        if not waiter.urgent:
            self._queue.serve(waiter)
        self._leave(waiter, served=True)
        waiter.lease = Lease(pool, endpoint, now)
        waiter.future.set_result(waiter.lease)
        self.on_wait(pool.name, now - waiter.since)

    def _fail(self, waiter: Waiter, cause: str, error: GatewayError) -> None:
        if waiter.home is not None:
            waiter.home.rejected[cause] += 1
        self._leave(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(error)

    def _retry_after(self, waiter: Waiter) -> int:
        live = [self._pools[name] for name in waiter.pools if name in self._pools]
        return min((pool.retry_after() for pool in live), default=1)

    def _refuse(self, live: list[Pool], order: tuple[str, ...]) -> Lease:
        for pool in live[:1]:
            pool.rejected["down"] += 1
        raise NothingAvailable(down_text(order), retry_after=min((pool.retry_after() for pool in live), default=1))

    def _enter(self, waiter: Waiter, live: list[Pool], *, past_limit: bool) -> None:
        """Queues the waiter, displacing another if the queue is full. Raises if it may not enter.

        With `past_limit` it always may: it had a slot before.
        """
        waiting = [pool for pool in live if pool.policy.limits.queue_wait > 0 and pool.could_take(waiter.exclude)]
        if not waiting:
            live[0].rejected["queue_full"] += 1
            raise NothingAvailable("all slots are taken, and nothing waits here", retry_after=live[0].retry_after())
        home = next((p for p in waiting if not (limit := p.policy.limits.queue) or p.waiting < limit), None)
        if home is None and not past_limit:
            home = waiting[0]
            displaced = self._places.displaced_by(waiter, home.name)
            if displaced is None or displaced is waiter:
                cause = "queue_full" if displaced is None else "displaced"
                home.rejected[cause] += 1
                raise full_error(home, several=displaced is not None)
            self._fail(displaced, "displaced", full_error(home, several=True))
        waiter.home = home = home or waiting[0]
        home.waiting += 1
        home.queued += 1
        for pool in live:
            pool.eligible += 1
            waiter.places += pool.in_flight
        if waiter.urgent:
            self._urgent[waiter] = None
        else:
            self._queue.add(waiter)
            self._places.add(waiter, home.name)
            waiter.stand_in(self._lanes)

    def _leave(self, waiter: Waiter, *, served: bool = False) -> None:
        """Takes the waiter out of every count. Idempotent."""
        home, waiter.home = waiter.home, None
        if home is None:
            return
        home.waiting -= 1
        home.waited_seconds += self._clock() - waiter.since
        for name in waiter.pools:
            if (pool := self._pools.get(name)) is not None and pool.eligible:
                pool.eligible -= 1
        if waiter.urgent:
            del self._urgent[waiter]
            return
        self._places.remove(waiter, home.name)
        waiter.step_out(self._lanes)
        if not served:
            self._queue.remove(waiter)

    async def _stand(self, waiter: Waiter) -> Lease:
        home = waiter.home
        timer = None
        if home is not None:
            seconds = home.policy.limits.queue_wait
            timer = asyncio.get_running_loop().call_later(seconds, self._expire, waiter, seconds)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            # The slot may have come at the very moment at which the client left.
            if waiter.lease is not None:
                waiter.lease.release(Result.CLIENT_CLOSED)
            elif not waiter.future.cancelled():
                waiter.future.exception()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(waiter)

    def _expire(self, waiter: Waiter, seconds: float) -> None:
        if not waiter.future.done():
            text = f"no slot became free within {seconds:g} seconds (limits.queue_wait)"
            self._fail(waiter, "queue_wait", NothingAvailable(text, retry_after=self._retry_after(waiter)))

    def _arm(self, now: float) -> None:
        """Sets the timer for what time alone changes: an endpoint takes requests again, or a trial takes too long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.waiting:
            return
        pools = [pool for pool in self._pools.values() if pool.eligible and pool.ready < len(pool.endpoints)]
        at = min((pool.changes_at(now) for pool in pools), default=math.inf)
        if math.isfinite(at):
            self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.001), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.changed()
