"""What other replicas found out about an endpoint: preferred less, tried carefully, never shut by hearsay."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from random import Random

from gateway.state.store import EndpointSum, EndpointView, Others, View
from gateway.state.views import pack, unpack_all
from gateway.types import Result
from gateway.upstream.doubt import heed, voice
from gateway.upstream.health import Prober
from gateway.upstream.lease import Lease
from gateway.upstream.pools import Pools
from gateway.upstream.stall import is_stalled
from tests.answers import close, reply
from tests.redis_server import redis_server
from tests.state.stores import make_store
from tests.stub import Stub
from tests.upstream.exchange import until
from tests.upstream.live import Clock, ask, only, policy_of, still, wired
from tests.upstream.test_health import WHOLE, probed, probing

A, B = "http://a:1", "http://b:1"


def said(shut: int, works: int = 0, hung: int = 0, url: str = A) -> Others:
    return Others(shut + works, {f"p {url}": EndpointSum(0, shut, works, hung)})


def taken(pools: Pools, count: int) -> list[Lease]:
    leases = [pools["p"].lease() for _ in range(count)]
    assert all(leases)
    return [lease for lease in leases if lease]


def where(leases: list[Lease]) -> Mapping[str, int]:
    return Counter(lease.endpoint.url for lease in leases)


class TestWeighing:
    def test_what_most_replicas_found_broken_gets_one_request_at_a_time(self) -> None:
        """One that has nothing to say itself believes them: others first, and a single request finds out."""
        pools = still(policy_of({"p": [A, B]}))
        a, _ = pools["p"].endpoints
        assert heed(pools, said(1), 1000.0) == [a]
        assert heed(pools, said(1), 1001.0) == []

        assert a.available()
        assert where(taken(pools, 40)) == {A: 1, B: 39}

    def test_an_endpoint_without_a_better_one_serves_as_ever(self) -> None:
        """One replica with a fault of its own cannot take an endpoint away from all."""
        pools = still(policy_of({"p": [A]}))
        heed(pools, said(2), 1000.0)

        assert only(pools).doubted
        assert len(taken(pools, 10)) == 10

    def test_half_of_the_voices_only_lower_the_preference(self) -> None:
        """This replica had an answer a moment ago, another one found it broken: half of the traffic."""
        pools = still(policy_of({"p": [A, B]}), clock := Clock())
        a, _ = pools["p"].endpoints
        a.answered_at = clock()
        heed(pools, said(1), clock())

        assert not a.doubted
        assert where(taken(pools, 30)) == {A: 10, B: 20}

    def test_an_answer_here_is_a_vote_and_silence_ends_it(self) -> None:
        """The single request that was answered lifts the doubt at the next look; hours later it says nothing."""
        pools = still(policy_of({"p": [A, B]}), clock := Clock())
        a, _ = pools["p"].endpoints
        heed(pools, said(1), clock())
        lease = Lease(pools["p"], a, clock())
        lease.first_byte(clock())
        heed(pools, said(1), clock())
        assert not a.doubted

        lease.release(Result.OK)
        clock.pass_(3600.0)
        heed(pools, said(1), clock())
        assert a.doubted

    def test_the_votes_of_others_for_whom_it_works_count(self) -> None:
        """One of three says broken, two are served: no doubt, two thirds of the weight."""
        pools = still(policy_of({"p": [A, B]}))
        heed(pools, said(1, works=2), 1000.0)

        assert not pools["p"].endpoints[0].doubted
        assert where(taken(pools, 50)) == {A: 20, B: 30}

    def test_voices_that_end_leave_nothing(self) -> None:
        """A lost Redis, or a view that has expired, is the local view only."""
        pools = still(policy_of({"p": [A, B]}), clock := Clock())
        heed(pools, said(3), clock())
        heed(pools, Others(), clock())

        assert where(taken(pools, 20)) == {A: 10, B: 10}
        assert all(endpoint.breaker.ramp_from is None for endpoint in pools["p"].endpoints)

    def test_a_pool_with_nothing_but_doubted_endpoints_counts_as_full_during_the_trial(self) -> None:
        """Routing makes another pool its first choice meanwhile, and is ready as before."""
        pools = still(policy_of({"p": [A], "q": [B]}))
        heed(pools, said(1), 1000.0)
        assert not pools.load("p").full
        (lease,) = taken(pools, 1)
        assert pools.load("p").full
        assert pools.load("p").up == 1

        lease.release(Result.CLIENT_CLOSED)
        assert not pools.load("p").full

    def test_a_cached_prefix_is_not_worth_a_doubted_endpoint(self) -> None:
        """The preferred endpoint of a conversation yields."""
        pools = still(policy_of({"p": [A, B]}))
        heed(pools, said(1), 1000.0)
        lease = pools["p"].lease(prefer=A)

        assert lease is not None
        assert lease.endpoint.url == B

    def test_what_hangs_for_others_is_found_hung_sooner(self) -> None:
        """HEALTH-01: `breaker.stall` instead of the first byte's limit."""
        pools = still(policy_of({"p": [A]}))
        heed(pools, said(1, hung=1), 1000.0)
        taken(pools, 1)

        assert any([is_stalled(only(pools), 30.0, 1.0) for _ in range(30)])

    def test_hearsay_is_not_passed_on(self) -> None:
        """A replica tells what it met itself: otherwise a doubt would feed itself for ever."""
        pools = still(policy_of({"p": [A]}))
        heed(pools, said(3), 1000.0)
        assert voice(only(pools), 1000.0) == EndpointView(0)

        only(pools).stalled()
        assert voice(only(pools), 1000.0) == EndpointView(0, shut=True, hung=True)

    def test_what_rests_at_its_own_wish_is_not_broken(self) -> None:
        """A `Retry-After` is about this replica's load."""
        pools = still(policy_of({"p": [A]}))
        only(pools).rest(30.0)

        assert not voice(only(pools), 1000.0).shut


def test_a_view_survives_the_way_and_older_views_are_read() -> None:
    """Replicas of two versions run side by side during an upgrade."""
    view = View({"p a": EndpointView(3, works=True), "p b": EndpointView(0, shut=True, hung=True)}, {"k": 1})
    quiet = View({"p c": EndpointView(0, works=True)})
    old = b'{"version":1,"endpoints":{"p a":[2,1]},"keys":{}}'
    read = unpack_all({"x": pack(view), "y": pack(quiet), "z": old})

    assert read == {"x": view, "y": quiet, "z": View({"p a": EndpointView(2, shut=True)})}


async def test_a_doubted_endpoint_is_probed_at_once() -> None:
    """The interval is an hour, and the probe finds in a moment that the process is gone."""
    async with Stub(WHOLE) as stub, wired(policy_of({"p": [stub.url]}, probed(interval="1h"))) as live:
        voices = Others()
        async with probing(live, lambda: voices):
            await until(lambda: len(stub.requests) > 0)
            stub.answer = close
            voices = said(1, url=stub.url)

            await until(lambda: not only(live).probed_up)
            assert await ask(live) == "NothingAvailable"


async def test_two_replicas_on_one_redis() -> None:
    """REDIS-02: what A found helps B until A's view expires, and a Redis that is gone leaves B alone with its own."""
    async with Stub(reply({"error": {}}, 503)) as bad, Stub(WHOLE) as good:
        policy = policy_of({"p": [bad.url, good.url]}, own={"p": ", breaker: {failures: 2, shut: 60s}"})
        with redis_server() as server:
            a, b = (make_store(server.url, name, interval=0.05, view_ttl=0.6) for name in "ab")
            async with wired(policy) as first, wired(policy) as second:
                await a.start(lambda: view_of(first))
                await b.start(lambda: view_of(second))
                prober = Prober(second, Random(1), lambda: b.others)
                while not first["p"].endpoints[0].found_broken:
                    assert await ask(first) == 200
                before = len(bad.requests)

                async def doubted(expected: bool) -> None:
                    async with asyncio.timeout(60):
                        while second["p"].endpoints[0].doubted is not expected:
                            prober.heed_others(second.clock())
                            await asyncio.sleep(0.01)

                await doubted(True)
                assert [await ask(second) for _ in range(30)] == [200] * 30
                assert len(bad.requests) == before

                server.kill()
                await doubted(False)
            await a.aclose()
            await b.aclose()


def view_of(pools: Pools) -> View:
    return View({f"{p.name} {e.url}": voice(e, pools.clock()) for p in pools for e in p.endpoints})
