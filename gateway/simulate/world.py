"""The event loop: arrivals, decisions, slots and queue, engines, and learning from outcomes. No sockets.

Router, estimator, pools, pickers, leases and fair queue are the gateway's own, on the virtual clock. A request goes to
the first pool in its order with a free slot, else it queues until one of them has one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from random import Random
from typing import Protocol

from gateway.policy.schema import Policy
from gateway.routing.cost import prompt_of, work_of
from gateway.simulate.engine import SimEngine
from gateway.simulate.job import Job
from gateway.types import Decision, LoadView, Outcome, Usage
from gateway.upstream.client import Connector, ConnectorStatistics, Extra, Headers, Response, Timeouts
from gateway.upstream.fair import UNIT, FairQueue, Work
from gateway.upstream.lease import Lease
from gateway.upstream.pools import Pools
from gateway.words import OK

TELEMETRY = 2.0
"""Seconds between scrapes of the engines' acceptance counters."""
LEAST_STEPS = 200.0
"""Least sequence steps between scrapes for the acceptance to count."""


class Arm(Protocol):
    """Decides where a request goes. A `Decision` carries expected times that order the queue; requests with only an
    order of pools are served FIFO."""

    def decide(self, job: Job, view: LoadView) -> Decision | tuple[str, ...]: ...

    def observe(self, job: Job, endpoint: str) -> None:
        """Learns from a request that succeeded at `endpoint`."""

    def accept(self, pool: str, length: float) -> None: ...


class Clock:
    """The virtual time. Its `read` is the clock of the gateway's parts; calling a method is cheaper than an object."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now


class _NoConnector:
    """A connector that is never used: engines are called directly."""

    async def send(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
        extra: Extra | None = None,
    ) -> Response:
        raise NotImplementedError

    def statistics(self) -> ConnectorStatistics:
        return ConnectorStatistics(0, 0, 0)

    async def aclose(self) -> None:
        """Nothing to close."""


class _Waiting:
    """An entry of the queue."""

    __slots__ = ("job", "key", "order", "places", "priority", "work", "works")

    def __init__(self, job: Job, order: tuple[str, ...], work: Work, places: int) -> None:
        self.job = job
        self.order = order
        self.places = places
        self.priority = 0
        self.key: str | None = None
        self.work = work.mean
        self.works = work.in_each(order)


class World:
    """One run. `engines` are keyed by their endpoint's URL in the policy; `by_arrival` makes the queue FIFO."""

    def __init__(
        self, policy: Policy, engines: Mapping[str, SimEngine], clock: Clock, rng: Random, *, by_arrival: bool = False
    ) -> None:
        self.clock = clock
        self._by_arrival = by_arrival
        self._engines = engines
        self.pools = Pools(lambda _row, _pool: no_connector(), rng, clock.read)
        self.pools.apply(policy)
        self._pool_of = {id(engines[row.url]): pool.name for pool in policy.pools.values() for row in pool.endpoints}
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._queued = 0
        self._events: list[tuple[float, int, SimEngine]] = []
        """A heap; those whose engine has another time now are void."""
        self._number = 0
        self._counted = {name: (0.0, 0.0) for name in policy.pools}
        self.taken: dict[str, int] = dict.fromkeys(policy.pools, 0)
        self._upcoming = deque[tuple[float, Callable[[], None]]]()
        self._look_at = self._wakes_at = 0.0

    def run(self, jobs: Sequence[Job], arm: Arm, at: Sequence[tuple[float, Callable[[], None]]] = ()) -> None:
        """Plays all jobs to their end; `at` are (time, action) pairs in order of time."""
        self._upcoming = deque(at)
        self._look_at, self._wakes_at, clock = TELEMETRY, 0.0, self.clock
        for job in jobs:
            now = job.at
            self._play_until(now, arm)
            if now >= self._wakes_at:
                self._wake(now, arm)
            clock.now = now
            self._arrive(job, arm)
        self._play_until(math.inf, arm)

    def _play_until(self, end: float, arm: Arm) -> None:
        """Plays the engines' events before `end`."""
        events, clock = self._events, self.clock
        while events:
            now, _, engine = events[0]
            if engine.next_at != now:
                heappop(events)
            elif end <= now:
                return
            else:
                if now >= self._wakes_at:
                    self._wake(now, arm)
                clock.now = now
                self._advance(engine, arm)

    def _wake(self, now: float, arm: Arm) -> None:
        """Does what is due by `now` besides requests: actions, and a look at the engines' counters."""
        upcoming = self._upcoming
        while upcoming and upcoming[0][0] <= now:
            upcoming.popleft()[1]()
        if now >= self._look_at:
            self._look(arm)
            self._look_at = now + TELEMETRY
        self._wakes_at = min(self._look_at, upcoming[0][0]) if upcoming else self._look_at

    def _arrive(self, job: Job, arm: Arm) -> None:
        found = arm.decide(job, self.pools)
        decision, order = (None, found) if isinstance(found, tuple) else (found, found.order)
        job.decision = decision
        lease = self._wished(decision) if decision is not None and decision.endpoint else None
        lease = lease or self.pools.admission.take(order)
        if lease is not None:
            self._send(job, lease)
            return
        if decision is None or self._by_arrival:
            # Equal work for all, so that the queue is FIFO.
            entry = _Waiting(job, order, UNIT, 0)
        else:
            entry = _Waiting(job, order, work_of(decision), sum(self.pools[name].in_flight for name in order))
        self._queue.add(entry)
        self._count(order, 1)

    def _wished(self, decision: Decision) -> Lease | None:
        """A lease on the endpoint with the conversation's prefix, if it has a free slot."""
        pool = self.pools[decision.pool]
        limit = pool.policy.limits.in_flight
        endpoint = next((e for e in pool.endpoints if e.url == decision.endpoint), None)
        if endpoint is None or pool.eligible or (limit and pool.in_flight >= limit):
            return None
        return Lease(pool, endpoint, self.clock.now)

    def _send(self, job: Job, lease: Lease) -> None:
        job.sent = self.clock.now
        job.lease = lease
        self.taken[lease.pool] += 1
        prefill, tokens = lease.endpoint.prefill, job.prompt.features.input_tokens
        # Every answer is taken for a stream here.
        prompt = prompt_of(job.decision, tokens, lease.pool, lease.endpoint.url, stream=True)
        if prefill.take(lease, prompt):
            self._submit(job, lease)
        else:
            prefill.add(lease, prompt, lambda: self._submit(job, lease))

    def _submit(self, job: Job, lease: Lease) -> None:
        engine = self._engines[lease.endpoint.url]
        before = engine.next_at
        engine.submit(job, self.clock.now)
        if engine.next_at != before:
            self._push(engine)

    def _advance(self, engine: SimEngine, arm: Arm) -> None:
        """Handles the event of the engine with the earliest one."""
        for job in engine.advance():
            lease, decision = job.lease, job.decision
            assert lease is not None
            lease.release(OK)
            if decision is not None and decision.pool == lease.pool:
                arm.observe(job, lease.endpoint.url)
            job.lease = job.decision = None
        if (then := engine.next_at) < math.inf:
            self._number = number = self._number + 1
            heapreplace(self._events, (then, number, engine))
        else:
            heappop(self._events)
        for job in engine.computed:
            # A stream's first token tells that its prompt is computed.
            if (lease := job.lease) is not None:
                lease.endpoint.prefill.left(lease)
        if self._queued:
            self._serve(self._pool_of[id(engine)])

    def _serve(self, name: str) -> None:
        """Gives a pool's free slots to queued requests."""
        pool = self.pools[name]
        while self._queued and (endpoint := pool.pick(self.clock.now)) is not None:
            entry = self._queue.first((name,))
            if entry is None:
                return
            self._queue.serve(entry)
            self._count(entry.order, -1)
            self._send(entry.job, Lease(pool, endpoint, self.clock.now))

    def _count(self, order: tuple[str, ...], change: int) -> None:
        """Updates the pools' counts of queued requests, which routing reads."""
        self._queued += change
        for name in order:
            self.pools[name].eligible += change
        self.pools[order[0]].waiting += change

    def _push(self, engine: SimEngine) -> None:
        self._number += 1
        heappush(self._events, (engine.next_at, self._number, engine))

    def _look(self, arm: Arm) -> None:
        """Reports the drafting engines' mean acceptance length since the last scrape."""
        for pool in self.pools:
            engines = [self._engines[e.url] for e in pool.endpoints]
            if not engines[0].speeds.k:
                continue
            before = self._counted[pool.name]
            drafts = sum(engine.drafts for engine in engines) - before[0]
            accepted = sum(engine.accepted for engine in engines) - before[1]
            if drafts >= LEAST_STEPS:
                arm.accept(pool.name, accepted / drafts)
                self._counted[pool.name] = (before[0] + drafts, before[1] + accepted)


def no_connector() -> Connector:
    return _NoConnector()


def outcome_of(job: Job, decision: Decision, endpoint: str) -> Outcome:
    """The outcome of a successful request as the gateway records it."""
    features, estimate = job.features or job.prompt.features, job.estimate or job.prompt.estimate
    usage = Usage(prompt_tokens=features.input_tokens, completion_tokens=job.tokens, cached_tokens=job.cached)
    return Outcome(
        request_id="",
        result=OK,
        status=200,
        started=job.at,
        ended=job.ended,
        features=features,
        estimate=estimate,
        decision=decision,
        endpoint=endpoint,
        usage=usage,
        finish_reason="stop",
        sent_upstream=job.sent,
        first_byte=job.first,
        attempts=1,
    )
