"""Pools of endpoints that serve a request alike, and the registry that a policy reload reconciles.

An endpoint that a new policy no longer names stops taking requests at once, keeps those it has, and is closed when
the last of them ends. One that stays keeps its connections, counts and health.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from random import Random
from urllib.parse import urlsplit

from gateway.policy.schema import Endpoint as EndpointPolicy
from gateway.policy.schema import Policy
from gateway.policy.schema import Pool as PoolPolicy
from gateway.types import PoolKind, PoolLoad
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.endpoint import Endpoint, Lease
from gateway.upstream.pickers import least_loaded

MakeConnector = Callable[[EndpointPolicy, PoolPolicy], Connector]


class Pool:
    """The live side of one pool of the policy."""

    def __init__(self, policy: PoolPolicy, rng: Random) -> None:
        self.policy = policy
        self.endpoints: tuple[Endpoint, ...] = ()
        self._rng = rng

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def kind(self) -> PoolKind:
        return self.policy.kind

    @property
    def in_flight(self) -> int:
        return sum(endpoint.in_flight for endpoint in self.endpoints)

    def load(self) -> PoolLoad:
        up = in_flight = 0
        for endpoint in self.endpoints:
            in_flight += endpoint.in_flight
            up += endpoint.available()
        limit = self.policy.limits.in_flight
        return PoolLoad(up=up, in_flight=in_flight, full=bool(limit) and in_flight >= limit)

    def lease(self, exclude: Set[str] = frozenset()) -> Lease | None:
        """Counts one request into the best available endpoint whose URL is not excluded, or returns None."""
        candidates = [e for e in self.endpoints if e.available() and e.url not in exclude]
        return Lease(self.name, least_loaded(candidates, self._rng)) if candidates else None

    def __repr__(self) -> str:
        return f"<Pool {self.name} {self.kind} {list(self.endpoints)!r}>"


class Pools:
    """Every live pool by name. `apply` makes it match a policy."""

    def __init__(self, make_connector: MakeConnector, rng: Random) -> None:
        self._make_connector = make_connector
        self._rng = rng
        self._pools: dict[str, Pool] = {}
        self._draining: list[Endpoint] = []

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def __len__(self) -> int:
        return len(self._pools)

    def load(self, pool: str) -> PoolLoad:
        """Routing's view of one pool; a pool that a reload has just removed is down."""
        found = self._pools.get(pool)
        return found.load() if found else PoolLoad(up=0)

    def lease(self, pool: str, exclude: Set[str] = frozenset()) -> Lease | None:
        found = self._pools.get(pool)
        return found.lease(exclude) if found else None

    def apply(self, policy: Policy) -> None:
        """Reconciles endpoints with the policy; synchronous, so no request sees half of it."""
        pools: dict[str, Pool] = {}
        kept: set[int] = set()
        for pool_policy in policy.pools.values():
            old = self._pools.get(pool_policy.name)
            pool = Pool(pool_policy, self._rng)
            pool.endpoints = tuple(self._reuse_or_make(row, pool_policy, old) for row in pool_policy.endpoints)
            kept.update(id(endpoint) for endpoint in pool.endpoints)
            pools[pool.name] = pool
        for pool in self._pools.values():
            self._draining += [e for e in pool.endpoints if id(e) not in kept]
        for endpoint in self._draining:
            endpoint.draining = True
        self._pools = pools

    def _reuse_or_make(self, row: EndpointPolicy, pool: PoolPolicy, old: Pool | None) -> Endpoint:
        limits = Timeouts(pool.timeouts.connect, pool.timeouts.first_byte, pool.timeouts.idle)
        found = next((e for e in old.endpoints if e.url == row.url), None) if old else None
        # Another limit on connections is another connector; the old one drains with its requests.
        if old and found and old.policy.limits.connections != pool.limits.connections:
            found = None
        endpoint = found or Endpoint(row.url, self._make_connector(row, pool), limits)
        endpoint.timeouts = limits
        endpoint.prefix = urlsplit(row.url).path.rstrip("/").encode()
        endpoint.api_key = row.api_key.get_secret_value().encode() if row.api_key else None
        endpoint.weight = row.weight
        endpoint.slice = row.slice
        return endpoint

    async def close_drained(self) -> None:
        """Closes the removed endpoints whose last request has ended; called by the health task."""
        done = [e for e in self._draining if not e.in_flight]
        self._draining = [e for e in self._draining if e.in_flight]
        for endpoint in done:
            await endpoint.connector.aclose()

    async def aclose(self) -> None:
        for pool in self._pools.values():
            for endpoint in pool.endpoints:
                await endpoint.connector.aclose()
        for endpoint in self._draining:
            await endpoint.connector.aclose()
