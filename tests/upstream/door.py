"""What the tests of admission share: pools with few places, and requests that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Set

from gateway.upstream.fair import UNIT, Work
from gateway.upstream.lease import Lease
from gateway.upstream.pools import Pools
from tests.upstream.live import policy_of, still

ONE = {"p": ["http://a:1"]}
TWO = {"p": ["http://a:1"], "q": ["http://b:1"]}


def limited(in_flight: int, *, queue: int = 10, wait: str = "10s") -> str:
    """A pool's limits, as the `own` of `policy_of` takes them."""
    return f", limits: {{in_flight: {in_flight}, queue: {queue}, queue_wait: {wait}}}"


def one(in_flight: int = 1, **more: object) -> Pools:
    """Pool `p` with that many places, on one endpoint."""
    return still(policy_of(ONE, own={"p": limited(in_flight, **more)}))  # type: ignore[arg-type]


async def admit(
    pools: Pools,
    order: tuple[str, ...],
    work: Work = UNIT,
    priority: int = 0,
    key: str | None = None,
    *,
    exclude: Set[str] = frozenset(),
    urgent: bool = False,
) -> Lease:
    """What an attempt does for a place: takes one, or else waits."""
    admission = pools.admission
    taken = admission.take(order, exclude)
    return taken or await admission.wait(order, work, priority, key, exclude=exclude, urgent=urgent)


async def stand(pools: Pools, *order: str, **how: object) -> asyncio.Task[Lease]:
    """A request that waits, once it stands in the queue."""
    task = asyncio.create_task(admit(pools, order or ("p",), **how))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return task
