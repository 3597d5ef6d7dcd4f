"""Keeps what each source of the live policy has found, and fills the policy's pools with it.

A source's last answer holds until the next one: a source that fails or finds nothing removes nothing. If a new policy
replaces listed endpoints by a source, they stay until the source has answered once. Every change makes a policy with
different endpoints, which the pools take like a reload: endpoints that have gone drain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from gateway.discovery.found import LONGEST_WAIT, Address, Follow
from gateway.policy.schema import Endpoint, FoundEndpoint, Policy, Pool, Source, Where

log = logging.getLogger("gateway.discovery")

NOTHING_FOUND = "nothing found"


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source of the live policy, as it is now."""

    pool: str
    source: str
    endpoints: int
    problem: str | None
    """Why the last query failed; the endpoints are then those of the last good answer. None if all is well."""


class _Known:
    """What one source has found: the listener of what follows it."""

    def __init__(self, where: Where, changed: Callable[[], None]) -> None:
        self.where = where
        self.addresses: tuple[Address, ...] | None = None
        """None before the first good answer."""
        self.problem: str | None = None
        self._changed = changed

    def found(self, addresses: tuple[Address, ...]) -> None:
        if not addresses:
            self.failed(NOTHING_FOUND)
            return
        if self.problem is not None:
            self.problem = None
            log.info("discovery answers again", extra={"fields": {"source": str(self.where)}})
        before = self.addresses or ()
        if addresses != self.addresses:
            self.addresses = addresses
            came, left = len({*addresses} - {*before}), len({*before} - {*addresses})
            fields = {"source": str(self.where), "endpoints": len(addresses), "came": came, "left": left}
            log.info("endpoints found", extra={"fields": fields})
            self._changed()

    def failed(self, why: str) -> None:
        if why != self.problem:
            self.problem = why
            fields = {"source": str(self.where), "why": why, "endpoints": len(self.addresses or ())}
            log.warning("discovery fails; the endpoints found last stay in use", extra={"fields": fields})


class Discovery:
    """`fill` every policy that becomes the live one; `run` until cancelled."""

    def __init__(self, follow: Follow) -> None:
        self.on_change: Callable[[], None] = _nothing
        """Called when the live policy should be filled and applied again."""
        self._follow = follow
        self._policy: Policy | None = None
        self._known: dict[Where, _Known] = {}
        self._tasks: dict[Where, asyncio.Task[None]] = {}
        self._rows: dict[str, list[tuple[Endpoint, Where | None]]] = {}
        """Each pool's endpoints as filled last, with the source that found each."""
        self._hosts: dict[str, str | None] = {}
        """The name behind each endpoint that was found, by URL."""
        self._kept: dict[str, list[tuple[Endpoint, Where | None]]] = {}
        """Endpoints that the live policy no longer has, but whose successors have not been found yet."""
        self._running = False

    def fill(self, policy: Policy) -> Policy:
        """The policy with what its sources have found filled in. From now on it is the live one."""
        if policy is not self._policy:
            self._adopt(policy)
        self._rows = {name: list(self._endpoints(pool)) for name, pool in policy.pools.items()}
        found = (row for rows in self._rows.values() for row, _ in rows)
        self._hosts = {row.url: row.host for row in found if isinstance(row, FoundEndpoint)}
        if not self._known:
            return policy
        filled = {
            name: replace(pool, endpoints=tuple(row for row, _ in self._rows[name])) if pool.sources else pool
            for name, pool in policy.pools.items()
        }
        return replace(policy, pools=MappingProxyType(filled))

    def host_of(self, url: str) -> str | None:
        """The name behind an endpoint that was found by name."""
        return self._hosts.get(url)

    def states(self) -> list[SourceState]:
        """Every source of the live policy."""
        found: list[SourceState] = []
        for pool in self._policy.pools.values() if self._policy else ():
            for source in pool.sources:
                known = self._known[source.where]
                count = len(known.addresses or ())
                found.append(SourceState(pool.name, str(source.where), count, known.problem))
        return found

    def problems(self) -> list[SourceState]:
        """The sources whose last query failed."""
        return [state for state in self.states() if state.problem is not None]

    async def run(self) -> None:
        self._running = True
        self._match()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._running = False
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _adopt(self, policy: Policy) -> None:
        self._policy = policy
        wanted = dict.fromkeys(source.where for pool in policy.pools.values() for source in pool.sources)
        self._known = {where: self._known.get(where) or _Known(where, self._changed) for where in wanted}
        self._kept = {name: list(self._left_over(pool)) for name, pool in policy.pools.items()}
        self._match()

    def _left_over(self, pool: Pool) -> Iterator[tuple[Endpoint, Where | None]]:
        """The pool's endpoints from sources, or lines of the policy, that the new policy no longer has."""
        places = {source.where for source in pool.sources}
        listed = {row.url for row in pool.endpoints}
        for row, where in self._rows.get(pool.name, ()):
            if where not in places and row.url not in listed:
                yield row, where

    def _endpoints(self, pool: Pool) -> Iterator[tuple[Endpoint, Where | None]]:
        seen: set[str] = set()
        rows: list[tuple[Endpoint, Where | None]] = [(row, None) for row in pool.endpoints]
        pending = False
        for source in pool.sources:
            addresses = self._known[source.where].addresses
            pending = pending or addresses is None
            rows += [(endpoint_at(address, source), source.where) for address in addresses or ()]
        for row, where in [*rows, *(self._kept.get(pool.name, ()) if pending else ())]:
            if row.url not in seen:
                seen.add(row.url)
                yield row, where

    def _match(self) -> None:
        """Keeps one task for each source of the live policy, and none for others."""
        for where in [where for where in self._tasks if where not in self._known]:
            self._tasks.pop(where).cancel()
        for where, known in self._known.items():
            if self._running and where not in self._tasks:
                self._tasks[where] = asyncio.get_running_loop().create_task(self._keep_following(where, known))

    async def _keep_following(self, where: Where, known: _Known) -> None:
        while True:
            try:
                await self._follow(where, known)
            except Exception as fault:
                # A fault of ours must not end discovery for good: the pool would silently become stale.
                log.error("discovery task failed", exc_info=fault, extra={"fields": {"source": str(where)}})
                known.failed(type(fault).__name__)
            await asyncio.sleep(LONGEST_WAIT)

    def _changed(self) -> None:
        self.on_change()


def endpoint_at(address: Address, source: Source) -> FoundEndpoint:
    """A found endpoint, with its source's treatment."""
    return FoundEndpoint(
        url=address.url, host=address.host, weight=source.weight, api_key=source.api_key, slice=source.slice
    )


def counts(states: list[SourceState]) -> Mapping[str, tuple[int, int]]:
    """For each pool with sources: endpoints found, and sources whose last query failed."""
    found: dict[str, tuple[int, int]] = {}
    for state in states:
        endpoints, failing = found.get(state.pool, (0, 0))
        found[state.pool] = endpoints + state.endpoints, failing + (state.problem is not None)
    return found


def _nothing() -> None: ...
