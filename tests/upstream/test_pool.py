"""Pools as a reload changes them, the choice of an endpoint, and what routing sees."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from random import Random

import pytest

from gateway.types import Result
from gateway.upstream.breaker import Gate, Trip
from gateway.upstream.pickers import least_loaded
from gateway.upstream.pools import Pools
from tests.upstream.door import admit
from tests.upstream.live import Clock, Nowhere, only, policy_of, still


def urls(count: int) -> list[str]:
    return [f"http://h{number}:1" for number in range(count)]


class TestReload:
    def test_what_stays_keeps_all_that_is_known(self) -> None:
        """Issue of every reload: breaker, counts, connections and health of an endpoint survive, in either order."""
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}))
        a, b = pools["p"].endpoints
        a.stalled()
        b.probed(False)
        pools.apply(policy_of({"p": ["http://b:1", "http://c:1", "http://a:1"]}, own={"p": ", breaker: {failures: 9}"}))

        assert pools["p"].endpoints[0] is b
        assert pools["p"].endpoints[2] is a
        assert a.breaker.gate is Gate.SHUT
        assert not b.probed_up
        assert pools["p"].ready == 1

    async def test_what_goes_takes_no_more_requests_and_ends_those_it_has(self) -> None:
        """Removed endpoints drain, then close."""
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}))
        a = pools["p"].endpoints[0]
        lease = next(lease for _ in range(50) if (lease := pools["p"].lease()) and lease.endpoint is a)
        pools.apply(policy_of({"p": ["http://b:1"]}))
        await pools.close_drained()

        assert isinstance(a.connector, Nowhere)
        assert (a.draining, a.available(), a.connector.closed) == (True, False, False)
        assert {pools["p"].lease().endpoint.url for _ in range(20)} == {"http://b:1"}  # type: ignore[union-attr]
        for held in list(a.leases):
            held.release(Result.OK)
        assert lease.released
        await pools.close_drained()
        assert a.connector.closed

    def test_a_pool_that_goes_counts_down_without_harm(self) -> None:
        """Its requests end after it has left the policy."""
        pools = still(policy_of({"p": ["http://a:1"], "q": ["http://b:1"]}))
        lease = pools["p"].lease()
        assert lease is not None
        pools.apply(policy_of({"q": ["http://b:1"]}))
        lease.release(Result.BACKEND_ERROR)

        assert [pool.name for pool in pools] == ["q"]
        assert pools.load("p").up == 0

    def test_an_endpoint_that_moves_to_another_pool_is_the_same(self) -> None:
        """Its state goes along; a request that began in the old pool is counted down there."""
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"], "q": ["http://c:1"]}))
        a = pools["p"].endpoints[0]
        leases = [lease for _ in range(4) if (lease := pools["p"].lease())]
        a.breaker.trip(0.0, Trip.STALL)
        a.refresh()
        pools.apply(policy_of({"p": ["http://b:1"], "q": ["http://c:1", "http://a:1"]}))

        assert pools["q"].endpoints[1] is a
        assert (a.draining, a.breaker.gate, a.ready) == (False, Gate.SHUT, False)
        for lease in leases:
            lease.release(Result.OK)
        assert (pools["p"].in_flight, pools["q"].in_flight, a.in_flight) == (0, 0, 0)
        a.probed(False)
        a.probed(True)
        assert pools["q"].ready == 1

    def test_another_limit_on_connections_is_another_connector_with_the_same_knowledge(self) -> None:
        """The old connector drains; what is known of the server is not lost."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        old = only(pools)
        old.stalled()
        pools.apply(policy_of({"p": ["http://a:1"]}, own={"p": ", limits: {connections: 5}"}))

        assert only(pools) is not old
        assert (old.draining, only(pools).breaker.gate, only(pools).limit) == (True, Gate.SHUT, 5)

    def test_weights_and_limits_change_live(self) -> None:
        """Re-weighting needs no restart, and weight 0 takes an endpoint out."""
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}))
        pools.apply(
            policy_of({"p": ['{url: "http://a:1", weight: 0}', "http://b:1"]}, own={"p": ", retry: {budget: 0}"})
        )

        assert pools["p"].ready == 1
        assert {pools["p"].lease().endpoint.url for _ in range(20)} == {"http://b:1"}  # type: ignore[union-attr]
        assert pools["p"].budget.share == 0

    def test_a_slice_that_is_renamed_in_flight_leaks_nothing(self) -> None:
        """A lease gives back what it took, not what its endpoint shares now."""
        pools = still(policy_of({"p": ['{url: "http://a:1", slice: s}']}, "slices: {s: {in_flight: 3}}"))
        lease = pools["p"].lease()
        pools.apply(policy_of({"p": ['{url: "http://a:1", slice: t}']}, "slices: {t: {in_flight: 3}}"))
        assert lease is not None
        lease.release(Result.OK)

        assert {name: shared.in_flight for name, shared in pools._slices.items()} == {"s": 0, "t": 0}


class TestChoice:
    def test_a_burst_spreads_by_our_own_count(self) -> None:
        """HEALTH-05: eight at once over few or many endpoints go to as many as there are, or nearly."""
        for count, least in ((2, 2), (4, 4), (16, 6)):
            pools = still(policy_of({"p": urls(count)}))
            chosen = Counter(pools["p"].lease().endpoint.url for _ in range(8))  # type: ignore[union-attr]

            assert len(chosen) >= least
            assert max(chosen.values()) <= 8 // least + 1

    def test_weights_share_the_load(self) -> None:
        """Twice the weight, twice the requests in flight."""
        pools = still(policy_of({"p": ["http://a:1", '{url: "http://b:1", weight: 2}']}))
        chosen = Counter(pools["p"].lease().endpoint.url for _ in range(90))  # type: ignore[union-attr]

        assert chosen == {"http://a:1": 30, "http://b:1": 60}

    @pytest.mark.parametrize("count", [2, 3, 6])
    def test_weights_share_quiet_traffic(self, count: int) -> None:
        """One request after the other: three times the weight, about three times the requests, and nobody has none."""
        lighter = [f"http://h{number}:1" for number in range(1, count)]
        pools = still(policy_of({"p": ['{url: "http://h0:1", weight: 3}', *lighter]}))
        chosen: Counter[str] = Counter()
        for _ in range(900):
            lease = pools["p"].lease()
            assert lease
            chosen[lease.endpoint.url] += 1
            lease.release(Result.OK)

        usual = 900 / (count + 2)
        assert all(0.7 * usual < chosen[url] < 1.4 * usual for url in lighter)

    def test_among_many_only_usable_ones_are_chosen(self) -> None:
        """With most of 64 down, what is left takes all; with none left nobody is chosen."""
        pools = still(policy_of({"p": urls(64)}))
        for endpoint in pools["p"].endpoints[2:]:
            endpoint.probed(False)
        chosen = Counter(pools["p"].lease().endpoint.url for _ in range(40))  # type: ignore[union-attr]

        assert set(chosen) == {"http://h0:1", "http://h1:1"}
        assert pools["p"].lease({"http://h0:1", "http://h1:1"}) is None
        for endpoint in pools["p"].endpoints[:2]:
            endpoint.probed(False)
        assert pools["p"].lease() is None

    def test_the_less_loaded_of_two_drawn(self) -> None:
        """The most loaded of all is never chosen, whatever is drawn."""
        pools = still(policy_of({"p": urls(9)}))
        endpoints = pools["p"].endpoints
        endpoints[4].in_flight = 100

        assert all(least_loaded(endpoints, Random(seed), 0.0) is not endpoints[4] for seed in range(200))


class TestView:
    def test_routing_sees_what_can_take_traffic(self) -> None:
        """Down and shut endpoints are not up; one that rests a moment is."""
        pools = still(policy_of({"p": urls(3)}))
        first, second, third = pools["p"].endpoints
        first.probed(False)
        second.stalled()
        assert pools.load("p").up == 1
        third.rest(0.5)
        assert pools.load("p").up == 1
        third.rest(50.0)
        assert pools.load("p").up == 0

    def test_it_knows_when_the_only_endpoint_had_its_newest_request(self) -> None:
        """Prompts that follow each other closely share a pause; of several endpoints it is unknown who is next."""
        clock = Clock()
        pools = still(policy_of({"p": urls(1), "q": urls(2)}), clock)
        assert pools.load("p").since == math.inf
        for pool in pools:
            pool.lease()
        clock.now += 0.25

        assert (pools.load("p").since, pools.load("q").since) == (0.25, None)

    def test_a_reload_keeps_when_the_newest_request_came_and_a_full_pool_has_no_next_one(self) -> None:
        """The one endpoint that is left may have had it; where none fits, nobody can share its pause."""
        clock = Clock()
        pools = still(policy_of({"p": urls(1), "q": urls(2)}), clock)
        for pool in pools:
            pool.lease()
        clock.now += 0.25
        pools.apply(policy_of({"p": urls(1), "q": urls(1)}, own={"p": ", limits: {in_flight: 1}"}))

        assert (pools.load("p").since, pools.load("q").since) == (None, 0.25)

    async def test_statistics_say_what_happened(self) -> None:
        """For asserts, metrics and the page: the gate, why it shut, rests, streams, waits and refusals."""
        clock = Clock()
        pools: Pools = still(policy_of({"p": ["http://a:1"]}, own={"p": ", limits: {in_flight: 1}"}), clock)
        lease = await admit(pools, ("p",))
        lease.first_byte(clock.now)
        waiter = asyncio.create_task(admit(pools, ("p",)))
        await asyncio.sleep(0)
        only(pools).rest(30.0)
        seen = only(pools).statistics()

        assert (seen.in_flight, seen.started, seen.streaming, seen.rests, seen.up) == (1, 1, 1, 30.0, False)
        assert (seen.gate, seen.trip, seen.probed_up, seen.failures) == (Gate.OPEN, None, True, 0)
        assert (pools["p"].statistics().queued, pools["p"].statistics().in_flight) == (1, 1)
        waiter.cancel()
        await asyncio.wait([waiter])
        assert pools["p"].statistics().waiting == 0


class TestPreferredEndpoint:
    def test_it_is_taken_while_it_is_not_far_busier_than_the_rest(self) -> None:
        """A conversation goes back to where its prefix is cached, but not into a crowd."""
        pools = still(policy_of({"p": urls(4)}))
        pool = pools["p"]
        favourite = pool.endpoints[2]
        held = [pool.lease(prefer=favourite.url) for _ in range(5)]

        assert {lease.endpoint for lease in held if lease} == {favourite}
        for _ in range(40):
            pool.lease(prefer=favourite.url)
        assert favourite.in_flight < 30

    def test_one_that_is_down_or_excluded_is_not(self) -> None:
        """A preference yields to health and to what was tried already."""
        pools = still(policy_of({"p": urls(2)}))
        first, second = pools["p"].endpoints

        assert pools.admission.take(("p",), {first.url}, first.url).endpoint is second  # type: ignore[union-attr]
        first.probed(False)
        assert pools.admission.take(("p",), prefer=first.url).endpoint is second  # type: ignore[union-attr]
        assert pools["p"].lease(prefer="http://gone:1").endpoint is second  # type: ignore[union-attr]
