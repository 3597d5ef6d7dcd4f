"""An endpoint that keeps its streams waiting gets less to do; a stream that waited in vain may go elsewhere once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.errors import UpstreamTimeout
from gateway.types import Result
from gateway.upstream.lease import Lease
from gateway.upstream.pace import LEAST_PART, watch_pace
from gateway.upstream.pools import Pools
from gateway.upstream.retry import Late
from tests.answers import hang, stream
from tests.stub import Stub
from tests.upstream.exchange import closed
from tests.upstream.live import Client, Clock, policy_of, still, wired

A, B = "http://a:1", "http://b:1"
EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


def waiting(pools: Pools, url: str, count: int, *, stream: bool = True) -> list[Lease]:
    pool = pools["p"]
    endpoint = next(e for e in pool.endpoints if e.url == url)
    leases = [Lease(pool, endpoint, pools.clock()) for _ in range(count)]
    for lease in leases:
        lease.stream = stream
    return leases


def two() -> tuple[Pools, Clock]:
    clock = Clock()
    return still(policy_of({"p": [A, B]}), clock), clock


class TestPace:
    def test_what_keeps_its_streams_waiting_gets_a_part_of_its_weight(self) -> None:
        """As many requests at both, 20 s old here and 1 s there: three times as long would be nothing to speak of."""
        pools, clock = two()
        waiting(pools, A, 5)
        clock.pass_(19.0)
        waiting(pools, B, 5)
        clock.pass_(1.0)
        watch_pace(pools, clock())
        a, b = pools["p"].endpoints

        assert a.share(clock()) == pytest.approx(0.15)
        assert b.share(clock()) == 1.0
        taken = Counter(lease.endpoint.url for _ in range(20) if (lease := pools["p"].lease()))
        assert taken == {B: 20}

    def test_it_is_over_when_the_streams_have_begun(self) -> None:
        """The next look gives the whole weight back, and nothing is left of it."""
        pools, clock = two()
        leases = waiting(pools, A, 5)
        clock.pass_(20.0)
        watch_pace(pools, clock())
        a = pools["p"].endpoints[0]
        assert a.share(clock()) == LEAST_PART

        for lease in leases:
            lease.first_byte(clock())
        watch_pace(pools, clock())
        assert a.share(clock()) == 1.0
        assert a.breaker.ramp_from is None

    @pytest.mark.parametrize(("count", "stream"), [(2, True), (50, False)])
    def test_few_streams_and_whole_answers_say_nothing(self, count: int, stream: bool) -> None:
        """One long prompt is no slow engine, and the first byte of a whole answer is its last."""
        pools, clock = two()
        waiting(pools, A, count, stream=stream)
        clock.pass_(20.0)
        watch_pace(pools, clock())

        assert pools["p"].endpoints[0].share(clock()) == 1.0

    def test_where_all_wait_nobody_is_slow(self) -> None:
        """Overload is no fault of one endpoint."""
        pools, clock = two()
        waiting(pools, A, 50)
        waiting(pools, B, 40)
        clock.pass_(20.0)
        watch_pace(pools, clock())

        assert [endpoint.share(clock()) for endpoint in pools["p"].endpoints] == [1.0, 1.0]


class TestLate:
    async def open(self, live: Pools, *, stream: bool = True) -> tuple[object, Client]:
        client = Client(live)
        try:
            return await client.open(order=("slow", "quick"), stream=stream), client
        except UpstreamTimeout as late:
            return late, client

    @asynccontextmanager
    async def engines(self, *quickly: bytes, finish: bool = True) -> AsyncIterator[tuple[Stub, Stub, Pools]]:
        """One that hangs for its streams, and one that answers so; both at work for others."""
        own = {"slow": ", timeouts: {first_byte: 200ms}", "quick": ", timeouts: {first_byte: 5s}"}
        async with AsyncExitStack() as stack:
            slow = await stack.enter_async_context(Stub(hang))
            quick = await stack.enter_async_context(Stub(stream(*quickly, finish=finish)))
            policy = policy_of({"slow": [slow.url], "quick": [quick.url]}, own=own)
            live = await stack.enter_async_context(wired(policy))
            at_work(live, "slow")
            at_work(live, "quick")
            yield slow, quick, live

    @pytest.mark.parametrize(("streams", "again"), [(True, True), (False, False)])
    async def test_a_stream_goes_where_others_are_answered(self, streams: bool, again: bool) -> None:
        """TIMEOUT-02, RETRY-05: once, with the first attempt closed; a whole answer may well take as long anywhere."""
        async with self.engines(EVENT, finish=False) as (slow, quick, live):
            opened, client = await self.open(live, stream=streams)
            await closed(slow, 0)

            assert client.retries == ([("slow", "late")] if again else [])
            assert len(quick.requests) == int(again)
            assert isinstance(opened, UpstreamTimeout) is not again

    @pytest.mark.parametrize("how", ["idle", "crowded"])
    async def test_it_is_not_repeated_where_it_would_fare_no_better(self, how: str) -> None:
        """Nobody was answered there, or others wait there for long: the load would only be doubled."""
        async with self.engines(EVENT) as (_, quick, live):
            endpoint = live["quick"].endpoints[0]
            if how == "crowded":
                endpoint.longest_wait = 3.0
            else:
                next(iter(endpoint.leases)).release(Result.OK)
                endpoint.answered_at = -math.inf
            late, client = await self.open(live)

            assert isinstance(late, Late)
            assert (client.retries, quick.requests) == ([], [])

    async def test_the_budget_bounds_it(self) -> None:
        """RETRY-05: an overload is not multiplied."""
        async with self.engines(EVENT) as (_, quick, live):
            live["slow"].budget.share = 0.0
            late, _ = await self.open(live)

            assert isinstance(late, Late)
            assert quick.requests == []


def at_work(live: Pools, pool: str) -> None:
    """Others get their answers there, to the end of the test."""
    lease = live[pool].lease()
    assert lease is not None
    lease.first_byte(live.clock())
    lease.endpoint.answered_at = live.clock() + 60.0
