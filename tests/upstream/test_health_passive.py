"""Passive health: what the ends of requests say about an endpoint, and how it comes back."""

from __future__ import annotations

import pytest

from gateway.errors import NothingAvailable
from gateway.policy.schema import Health
from gateway.types import Result
from gateway.upstream.breaker import Gate, Trip
from tests.answers import close, reply
from tests.stub import Stub
from tests.upstream.door import admit
from tests.upstream.live import Client, Clock, ask, only, policy_of, still, wired

WHOLE = reply({"choices": []})
EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
HEALTH = Health.model_validate({"interval": "1s"})


class TestPassive:
    async def test_a_back_end_that_always_fails_is_skipped_then_tried(self) -> None:
        """RETRY-03: 50 requests; the broken one is asked a few times, then only now and then, then serves again."""
        clock = Clock()
        async with Stub(close) as bad, Stub(WHOLE) as good, wired(policy_of({"p": [bad.url, good.url]}), clock) as live:
            assert [await ask(live) for _ in range(50)] == [200] * 50
            assert len(bad.requests) <= 6

            clock.pass_(5.0)
            assert [await ask(live) for _ in range(10)] == [200] * 10
            assert len(bad.requests) <= 7

            bad.answer = WHOLE
            clock.pass_(60.0)
            assert [await ask(live) for _ in range(10)] == [200] * 10
            assert live["p"].endpoints[0].breaker.gate is Gate.OPEN

    async def test_requests_at_fault_shut_nothing(self) -> None:
        """RETRY-02: ten requests that get 400, then a good one is served."""
        async with Stub(reply({"error": {"code": 400}}, 400)) as stub, wired(policy_of({"p": [stub.url]})) as live:
            for _ in range(10):
                opened = await Client(live).open()
                opened.lease.release(Result.CLIENT_ERROR)
            stub.answer = WHOLE

            assert await ask(live) == 200

    async def test_everything_down_recovers_with_the_first_request_that_can_be_served(self) -> None:
        """With every breaker shut one request goes through as a trial, so that nothing waits for a timer."""
        async with Stub(close) as a, Stub(close) as b, wired(policy_of({"p": [a.url], "q": [b.url]})) as live:
            for _ in range(12):
                await ask(live)
            assert {only(live, name).breaker.gate for name in "pq"} == {Gate.SHUT}

            a.answer = WHOLE
            assert await ask(live) == 200
            assert only(live, "p").breaker.gate is Gate.OPEN

    async def test_while_a_trial_runs_others_are_told_to_come_back(self) -> None:
        """One trial at a time, over all pools of the request; the others get 503 with Retry-After."""
        clock = Clock()
        extra = "defaults: {health: {interval: off}, breaker: {shut: 40s}}"
        pools = still(policy_of({"p": ["http://a:1"], "q": ["http://b:1"]}, extra), clock)
        for name in "pq":
            only(pools, name).breaker.trip(clock.now, Trip.FAILURES)
            only(pools, name).refresh()
        trial = await admit(pools, ("p", "q"))
        clock.pass_(3.0)

        with pytest.raises(NothingAvailable) as caught:
            await admit(pools, ("p", "q"))
        assert caught.value.retry_after == 1
        trial.first_byte(clock.now)
        assert (await admit(pools, ("p", "q"))).pool == "p"

    async def test_what_a_probe_has_taken_out_gets_no_trial(self) -> None:
        """A server that refuses connections is not asked by requests of users."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        only(pools).probed(False)
        only(pools).breaker.trip(0.0, Trip.FAILURES)

        with pytest.raises(NothingAvailable):
            await admit(pools, ("p",))

    async def test_a_server_that_was_restarted_is_used_when_the_probe_finds_it(self) -> None:
        """Requests had shut it, the probe found it down; back up, the next request goes there at once."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        endpoint = only(pools)
        endpoint.breaker.trip(0.0, Trip.FAILURES)
        endpoint.probed(False)
        endpoint.probed(True)

        lease = pools["p"].lease()
        assert lease is not None
        assert endpoint.breaker.gate is Gate.PROBATION
        assert pools["p"].lease() is None
        lease.first_byte(0.0)
        assert pools["p"].lease() is not None

    async def test_a_trial_that_its_client_leaves_is_followed_by_another(self) -> None:
        """An endpoint is not lost for want of a verdict."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        only(pools).breaker.trip(0.0, Trip.FAILURES)
        only(pools).breaker.permit()
        only(pools).refresh()
        first = pools["p"].lease()
        assert first is not None
        first.release(Result.CLIENT_CLOSED)

        assert pools["p"].lease() is not None

    def test_a_request_that_ran_out_of_its_own_time_blames_nobody(self) -> None:
        """`timeouts.total` is a limit of the request."""
        pools = still(policy_of({"p": ["http://a:1"]}))
        for _ in range(10):
            lease = pools["p"].lease()
            assert lease is not None
            lease.first_byte(0.0)
            lease.blameless = True
            lease.release(Result.TIMEOUT)

        assert only(pools).breaker.consecutive == 0

    def test_slow_start_sends_a_small_share_at_first(self) -> None:
        """After its trial an endpoint gets a tenth of its share, then more, then all."""
        clock = Clock()
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}, ""), clock)
        back, other = pools["p"].endpoints
        back.breaker.trip(clock.now, Trip.FAILURES)
        back.breaker.begin(clock.now)
        back.breaker.succeeded(clock.now, back.breaker.epoch)
        back.refresh()
        shares = []
        for seconds in (0.0, 5.0, 10.0):
            clock.pass_(seconds)
            leases = [lease for _ in range(110) if (lease := pools["p"].lease())]
            shares.append(sum(lease.endpoint is back for lease in leases))
            for lease in leases:
                lease.release(Result.CLIENT_CLOSED)

        assert shares[0] <= 12
        assert 25 <= shares[1] <= 45
        assert 50 <= shares[2] <= 60
        assert other.breaker.gate is Gate.OPEN
