"""One request that waits in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Set

from gateway.upstream.fair import Work
from gateway.upstream.lease import Lease
from gateway.upstream.pool import Pool


class Lane:
    """A pool without some of its endpoints, as long as some request waits for the remaining ones."""

    __slots__ = ("exclude", "pool", "waiting")

    def __init__(self, pool: str, exclude: Set[str]) -> None:
        self.pool = pool
        self.exclude = exclude
        self.waiting = 0


class Waiter:
    """See `admission`. Its future is done when it has a slot or is refused."""

    __slots__ = (
        "exclude", "future", "home", "key", "lease", "order", "places", "pools", "priority", "since", "urgent", "work",
        "works",
    )  # fmt: skip

    def __init__(
        self,
        order: tuple[str, ...],
        work: Work,
        priority: int,
        key: str | None,
        exclude: Set[str],
        since: float,
        *,
        urgent: bool,
    ) -> None:
        self.pools = order
        part = "|".join(sorted(exclude))
        self.order = tuple(f"{name} without {part}" for name in order) if exclude else order
        """The names under which the queue knows its pools: part of a pool has another name than all of it."""
        self.work = work.mean
        self.works = work.in_each(order)
        self.places = 0
        """Requests that its pools were running when it came."""
        self.priority = priority
        self.key = key
        self.exclude = exclude
        self.since = since
        self.urgent = urgent
        self.home: Pool | None = None
        """The pool whose queue it counts in."""
        self.future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self.lease: Lease | None = None

    def stand_in(self, lanes: dict[str, Lane]) -> None:
        """Counts the waiter in its lanes, if it has any."""
        for name, pool in zip(self.order, self.pools, strict=True) if self.exclude else ():
            lanes.setdefault(name, Lane(pool, self.exclude)).waiting += 1

    def step_out(self, lanes: dict[str, Lane]) -> None:
        """Takes it out of its lanes, and removes those that are empty."""
        for name in self.order if self.exclude else ():
            lanes[name].waiting -= 1
            if not lanes[name].waiting:
                del lanes[name]
