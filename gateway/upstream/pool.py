"""One pool: endpoints that serve a request alike, how many requests run there, and which endpoint gets the next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Set
from random import Random
from typing import Protocol

from gateway.policy.schema import Pool as PoolPolicy
from gateway.records import make
from gateway.types import PoolKind, PoolLoad
from gateway.upstream.breaker import TRIAL_SECONDS, Gate
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.lease import Lease
from gateway.upstream.pickers import FEW, least_loaded, two_of
from gateway.upstream.retry import RetryBudget
from gateway.upstream.statistics import PoolStatistics

NOTHING: frozenset[str] = frozenset()
BUSY_FACTOR, BUSY_MARGIN = 2.0, 4
"""A cached prefix justifies an endpoint with up to twice the mean number of requests, plus a few."""
DRAWS = 3
"""Pairs of endpoints drawn at random before all of a large pool are looked at."""
LONGEST_RETRY_AFTER = 60
"""Seconds."""
NEWEST_WEIGHT = 0.05
"""Weight of the newest request in the mean time that a request keeps its slot."""


class Door(Protocol):
    """Is told when a slot may have become free for a waiting request, or the last hope of one is gone."""

    def freed(self) -> None: ...

    def changed(self) -> None: ...


class Pool:
    """The live side of one pool of the policy. It outlives reloads; `policy` is replaced."""

    def __init__(self, policy: PoolPolicy, rng: Random, clock: Callable[[], float], door: Door) -> None:
        self.name = policy.name
        self.policy = policy
        self.endpoints: tuple[Endpoint, ...] = ()
        self.in_flight = 0
        self.newest = -math.inf
        """When the newest lease was taken."""
        self._single = False
        self.ready = 0
        """Endpoints that are `ready`; `changed` keeps it up to date, so that no request has to count them."""
        self.waiting = 0
        """Requests queued here."""
        self.eligible = 0
        """Requests queued anywhere that this pool may serve."""
        self.budget = RetryBudget(policy.retry.budget)
        self.queued = 0
        self.waited_seconds = 0.0
        self._mean_hold: float | None = None
        """Mean seconds for which recent requests kept their slots; None before the first one ended."""
        self.rejected: Counter[str] = Counter()
        self._rng = rng
        self._clock = clock
        self._door = door
        self._limit = policy.limits.in_flight
        self._bounded = False
        self.doubted = False
        """Whether one of its endpoints is doubted because of other replicas' findings."""

    @property
    def kind(self) -> PoolKind:
        return self.policy.kind

    def configure(self, policy: PoolPolicy, endpoints: tuple[Endpoint, ...]) -> None:
        """Takes a reload's policy and endpoints."""
        self.policy = policy
        self.endpoints = endpoints
        self.budget.share = policy.retry.budget
        self._limit = policy.limits.in_flight
        self._single = len(endpoints) == 1
        self._bounded = any(e.limit or (e.shared and e.shared.limit) for e in endpoints)
        for endpoint in endpoints:
            endpoint.on_change = self.changed
            endpoint.refresh()
        self.ready = sum(endpoint.ready for endpoint in endpoints)

    def changed(self) -> None:
        """Call when an endpoint became ready, stopped being so, or failed its trial."""
        self.ready = sum(endpoint.ready for endpoint in self.endpoints)
        self._door.changed()

    def freed(self, since: float) -> None:
        """Call when a lease taken at `since` was given back. Requests of other pools may wait for the same slice."""
        seconds = self._clock() - since
        self._mean_hold = (
            seconds if self._mean_hold is None else self._mean_hold + NEWEST_WEIGHT * (seconds - self._mean_hold)
        )
        self._door.freed()

    def load(self) -> PoolLoad:
        running = self.in_flight
        full = self.eligible > 0 or 0 < self._limit <= running or ((self._bounded or self.doubted) and self._crowded())
        since = self._clock() - self.newest if self._single and not full else None
        return make(PoolLoad, (self.ready or self._promising(), running, self.waiting, full, None, since))

    def _crowded(self) -> bool:
        """Whether no endpoint has room, except a doubted one that is already being tried."""
        ready = [endpoint for endpoint in self.endpoints if endpoint.ready and endpoint.room()]
        return all(endpoint.doubted and endpoint.in_flight for endpoint in ready)

    def _promising(self) -> int:
        now, patience = self._clock(), self.policy.limits.queue_wait
        return sum(endpoint.promising(now, patience) for endpoint in self.endpoints)

    def promising(self) -> bool:
        """Whether a request may wait for this pool: a slot can become free, or that is about to be known."""
        return self.ready > 0 or self._promising() > 0

    def lease(self, exclude: Set[str] = NOTHING, prefer: str | None = None) -> Lease | None:
        """Counts one request into the best available endpoint whose URL is not excluded, or returns None.

        `prefer` is the URL of an endpoint that is taken if possible, unless it is far busier than the others.
        """
        now = self._clock()
        endpoint = (self._preferred(prefer, now, exclude) if prefer else None) or self.pick(now, exclude)
        return None if endpoint is None else Lease(self, endpoint, now)

    def _preferred(self, url: str, now: float, exclude: Set[str]) -> Endpoint | None:
        if 0 < self._limit <= self.in_flight:
            return None
        busy = BUSY_FACTOR * self.in_flight / max(self.ready, 1) + BUSY_MARGIN
        found = (
            e
            for e in self.endpoints
            if e.url == url and e.in_flight <= busy and not e.doubted and _usable(e, now, exclude)
        )
        return next(found, None)

    def pick(self, now: float, exclude: Set[str] = NOTHING) -> Endpoint | None:
        """The endpoint that the next request would get, or None if there is no room. Counts nothing."""
        if 0 < self._limit <= self.in_flight:
            return None
        endpoints = self.endpoints
        count = len(endpoints)
        if self.ready == count and not self._bounded and not exclude:
            return least_loaded(endpoints, self._rng, now) if count else None
        if count > FEW:
            # Most are fine as a rule, so a few draws find two; only then are all looked at.
            for _ in range(DRAWS):
                pair = [e for e in two_of(endpoints, self._rng) if _usable(e, now, exclude)]
                if pair:
                    return least_loaded(pair, self._rng, now)
        found = [e for e in endpoints if _usable(e, now, exclude)]
        return least_loaded(found, self._rng, now) if found else None

    def could_take(self, exclude: Set[str]) -> bool:
        """Whether an endpoint that is not excluded is worth going to or waiting for."""
        now, patience = self._clock(), self.policy.limits.queue_wait
        return any(e.promising(now, patience) for e in self.endpoints if e.url not in exclude)

    def trial(self, now: float, exclude: Set[str] = NOTHING) -> Endpoint | None:
        """Of the endpoints that only their breakers keep shut, the one that would be tried first."""
        if 0 < self._limit <= self.in_flight:
            return None
        found = [
            e
            for e in self.endpoints
            if e.breaker.gate is Gate.SHUT and e.url not in exclude and e.room() and e.opens_at(trial=True) <= now
        ]
        return min(found, key=lambda e: e.breaker.shut_until) if found else None

    def opens_at(self, now: float) -> float:
        """When an endpoint that is not ready now will take a request, as far as known; infinite if none will."""
        return min((at for e in self.endpoints if not e.ready and (at := e.opens_at()) > now), default=math.inf)

    def changes_at(self, now: float) -> float:
        """When time alone will change what this pool can give: an endpoint opens, or a trial has taken too long."""
        patience = min(self.policy.limits.queue_wait, TRIAL_SECONDS)
        trials = (e.breaker.trial_since for e in self.endpoints if not e.ready)
        ends = (began + patience for began in trials if began is not None and began + patience > now)
        return min(self.opens_at(now), min(ends, default=math.inf))

    def retry_after(self) -> int:
        """Whole seconds after which a refused client may come back: when an endpoint is up again, or when the request
        would have had its turn.

        By Little's law, slots become free at a rate of `in_flight` over the mean time that one is kept. All requests
        that wait now have left the queue after `queue_wait`, served or not.
        """
        now = self._clock()
        if self.ready:
            hold = self._age(now) if self._mean_hold is None else self._mean_hold
            seconds = (self.waiting + 1) * hold / max(self.in_flight, 1)
            if self.waiting:
                seconds = min(seconds, self.policy.limits.queue_wait)
        else:
            opens = self.opens_at(now) - now
            seconds = opens if math.isfinite(opens) else self.policy.health.interval or 1.0
        return max(1, min(math.ceil(seconds), LONGEST_RETRY_AFTER))

    def _age(self, now: float) -> float:
        """Mean seconds since the running requests took their slots: all that is known before the first one ends."""
        ages = [now - lease.since for endpoint in self.endpoints for lease in endpoint.leases]
        return sum(ages) / len(ages) if ages else 0.0

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            name=self.name,
            in_flight=self.in_flight,
            waiting=self.waiting,
            ready=self.ready,
            queued=self.queued,
            waited_seconds=self.waited_seconds,
            rejected=dict(self.rejected),
        )

    def __repr__(self) -> str:
        return f"<Pool {self.name} {self.kind} {list(self.endpoints)!r}>"


def _usable(endpoint: Endpoint, now: float, exclude: Set[str]) -> bool:
    if endpoint.url in exclude:
        return False
    if not endpoint.ready:
        if endpoint.opens_at() > now:
            return False
        if endpoint.rests_until:
            endpoint.refresh()
    return endpoint.room()
