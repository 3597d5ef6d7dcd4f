"""One request that stands in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Set

from gateway.upstream.lease import Lease
from gateway.upstream.pool import Pool


class Waiter:
    """See `admission`. Its future is done when it has a place or is refused."""

    __slots__ = ("exclude", "future", "home", "key", "lease", "order", "priority", "since", "urgent", "work")

    def __init__(
        self, order: tuple[str, ...], work: float, priority: int, key: str | None, exclude: Set[str], since: float
    ) -> None:
        self.order = order
        self.work = work
        self.priority = priority
        self.key = key
        self.exclude = exclude
        self.since = since
        self.urgent = False
        self.home: Pool | None = None
        """The pool whose queue it counts in."""
        self.future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self.lease: Lease | None = None
