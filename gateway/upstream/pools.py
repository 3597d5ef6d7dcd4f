"""Every live pool by name, reconciled with each new policy, and the admission of requests to them.

An endpoint that a new policy no longer names stops taking requests at once, keeps those it was sent, and is closed when
the last of them ends. One that stays, or moves to another pool, keeps its connections, counts and health.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from gateway.policy.schema import Endpoint as EndpointPolicy
from gateway.policy.schema import FoundEndpoint, Policy, Server
from gateway.policy.schema import Pool as PoolPolicy
from gateway.types import PoolLoad
from gateway.upstream.admission import Admission
from gateway.upstream.client import Connector, Timeouts
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.lease import SharedLimit
from gateway.upstream.pace import laggards
from gateway.upstream.pool import Pool
from gateway.upstream.shed import Shedder

MakeConnector = Callable[[EndpointPolicy, PoolPolicy], Connector]
NO_POOL = PoolLoad(up=0)


class Pools:
    """The live pools. `apply` makes them match a policy; `admission` lets requests in."""

    def __init__(self, make_connector: MakeConnector, rng: Random, clock: Callable[[], float]) -> None:
        self._make_connector = make_connector
        self._rng = rng
        self.clock = clock
        self._pools: dict[str, Pool] = {}
        self._slices: dict[str, SharedLimit] = {}
        self._draining: list[Endpoint] = []
        self.admission = Admission(self._pools, clock)
        self.shedder = Shedder(Server().max_requests)
        self.on_apply: Callable[[], None] = lambda: None
        """Called after each `apply`; the health probes use it."""

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def __len__(self) -> int:
        return len(self._pools)

    def load(self, pool: str) -> PoolLoad:
        """Routing's view of one pool; a pool that a reload has just removed is down."""
        found = self._pools.get(pool)
        return found.load() if found else NO_POOL

    def find(self, name: str) -> Pool | None:
        return self._pools.get(name)

    def laggards(self, order: Sequence[str]) -> set[str]:
        """URLs at which a stream that has waited in vain for its first token need not try. See `pace.laggards`."""
        return laggards(self._pools, order, self.clock())

    def apply(self, policy: Policy) -> None:
        """Reconciles pools with the policy; synchronous, so no request sees half of it."""
        self.shedder.cap = policy.server.max_requests
        self._share_slices(policy)
        spare = {(p.name, e.url): e for p in self._pools.values() for e in p.endpoints}
        every = list(spare.values())
        chosen: dict[str, list[Endpoint | None]] = {
            name: [spare.pop((name, row.url), None) for row in pool.endpoints] for name, pool in policy.pools.items()
        }
        # What is left has gone from its pool; another pool that now names the same URL takes it over.
        by_url = {endpoint.url: endpoint for endpoint in spare.values()}
        kept: set[int] = set()
        for name, pool_policy in policy.pools.items():
            found = [
                self._fit(old or by_url.pop(row.url, None), row, pool_policy)
                for old, row in zip(chosen[name], pool_policy.endpoints, strict=True)
            ]
            kept.update(map(id, found))
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = Pool(pool_policy, self._rng, self.clock, self.admission)
            pool.configure(pool_policy, tuple(found))
        for name in [name for name in self._pools if name not in policy.pools]:
            del self._pools[name]
        gone = [endpoint for endpoint in every if id(endpoint) not in kept]
        for endpoint in gone:
            endpoint.draining = True
            endpoint.on_change = lambda: None
            endpoint.refresh()
            self._draining.append(endpoint)
        self.on_apply()
        self.admission.recount()
        self.admission.changed()
        for endpoint in gone:
            endpoint.move_held()

    def _share_slices(self, policy: Policy) -> None:
        for pool in policy.pools.values():
            for row in pool.endpoints:
                if row.slice is not None:
                    shared = self._slices.setdefault(row.slice, SharedLimit(row.slice, 0))
                    limits = policy.slices.get(row.slice)
                    shared.limit = limits.in_flight if limits else 0

    def _fit(self, old: Endpoint | None, row: EndpointPolicy, pool: PoolPolicy) -> Endpoint:
        """The endpoint for one line of the policy: the old one if possible, else a new one with its health."""
        limits = Timeouts(pool.timeouts.connect, pool.timeouts.first_byte, pool.timeouts.idle)
        host = row.host if isinstance(row, FoundEndpoint) else None
        endpoint = old
        # A different name or limit on connections needs another connector; the old one drains with its requests.
        if endpoint is None or endpoint.limit != pool.limits.connections or endpoint.host != host:
            connector = self._make_connector(row, pool)
            endpoint = Endpoint(row.url, connector, limits, pool.breaker, self.clock, self._rng)
            endpoint.limit, endpoint.host = pool.limits.connections, host
            if old is not None:
                endpoint.breaker, endpoint.probed_up = old.breaker, old.probed_up
                endpoint.answered_at, endpoint.rests_until = old.answered_at, old.rests_until
        endpoint.timeouts = limits
        endpoint.prefill.limit = pool.limits.prefill
        endpoint.prefill.serve()
        endpoint.breaker.configure(pool.breaker)
        endpoint.api_key = row.api_key.get_secret_value().encode() if row.api_key else None
        endpoint.weight = row.weight
        endpoint.slice = row.slice
        endpoint.shared = self._slices[row.slice] if row.slice is not None else None
        return endpoint

    async def close_drained(self) -> None:
        """Closes the removed endpoints whose last request has ended; called by the health task."""
        done = [e for e in self._draining if not e.in_flight]
        self._draining = [e for e in self._draining if e.in_flight]
        for endpoint in done:
            await endpoint.connector.aclose()

    async def aclose(self) -> None:
        """Closes every connector, those of draining endpoints included."""
        for pool in self._pools.values():
            for endpoint in pool.endpoints:
                await endpoint.connector.aclose()
        for endpoint in self._draining:
            await endpoint.connector.aclose()
