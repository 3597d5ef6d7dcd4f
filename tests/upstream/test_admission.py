"""The door: limits, bounded waiting, who is refused and how, and that nobody holds a place who has left."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import NothingAvailable, TooManyRequests
from gateway.types import Result
from gateway.upstream.fair import Work
from tests.upstream.door import ONE, TWO, admit, limited, one, stand
from tests.upstream.live import Clock, only, policy_of, still


class TestRoom:
    async def test_a_request_with_room_does_not_wait(self) -> None:
        """No task, no future: the place is there at once."""
        pools = one(2)

        assert pools.admission.take(("p",)) is not None
        assert pools.admission.waiting == 0

    async def test_a_pool_never_runs_more_than_its_limit(self) -> None:
        """POOL-01: the limit is set on purpose, and what is above it waits in sight."""
        pools = one(2)
        leases = [await admit(pools, ("p",)) for _ in range(2)]
        third = await stand(pools)

        assert (pools.load("p").in_flight, pools.load("p").waiting, pools.load("p").full) == (2, 1, True)
        leases[0].release(Result.OK)
        assert (await third).endpoint is only(pools)
        assert (pools.load("p").in_flight, pools.load("p").waiting) == (2, 0)

    async def test_requests_for_one_endpoint_wait_within_the_queues_limit(self) -> None:
        """Who asks for one endpoint makes the line no longer than the policy lets it be."""
        own = {"p": ", limits: {connections: 1, queue: 2, queue_wait: 10s}"}
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}, own=own))
        held = [await admit(pools, ("p",)) for _ in range(2)]
        waiting = [asyncio.create_task(admit(pools, ("p",), exclude={"http://a:1"}, key="one")) for _ in range(2)]
        await asyncio.sleep(0)

        with pytest.raises(NothingAvailable, match="queue of p is full"):
            await admit(pools, ("p",), exclude={"http://a:1"}, key="one")
        assert pools["p"].waiting == 2
        for lease in held:
            lease.release(Result.OK)
        (await waiting[0]).release(Result.OK)
        (await waiting[1]).release(Result.OK)

    async def test_a_request_for_one_endpoint_waits_for_that_one(self) -> None:
        """POOL-01: the continuation of a stored response never goes to an endpoint that lacks it."""
        own = {"p": ", limits: {connections: 1, queue: 10, queue_wait: 10s}"}
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}, own=own))
        held = {(lease := await admit(pools, ("p",))).endpoint.url: lease for _ in range(2)}
        waiter = asyncio.create_task(admit(pools, ("p",), exclude={"http://a:1"}))
        await asyncio.sleep(0)

        held["http://a:1"].release(Result.OK)
        await asyncio.sleep(0)
        assert not waiter.done()
        held["http://b:1"].release(Result.OK)
        assert (await waiter).endpoint.url == "http://b:1"

    async def test_a_request_for_one_endpoint_takes_its_turn(self) -> None:
        """Continuations stand in the fair queue: who came first, or has a key that had less, is served first."""
        own = {"p": ", limits: {connections: 1, queue: 10, queue_wait: 10s}"}
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}, own=own))
        held = {(lease := await admit(pools, ("p",))).endpoint.url: lease for _ in range(2)}
        first = await stand(pools, key="one")
        only_b = asyncio.create_task(admit(pools, ("p",), key="one", exclude={"http://a:1"}))
        await asyncio.sleep(0)
        last = await stand(pools, key="one")

        held["http://b:1"].release(Result.OK)
        assert (await first).endpoint.url == "http://b:1"
        assert not only_b.done()
        held["http://a:1"].release(Result.OK)
        # What only the other endpoint can take holds nobody up.
        assert (await last).endpoint.url == "http://a:1"
        first.result().release(Result.OK)
        assert (await only_b).endpoint.url == "http://b:1"
        assert pools.admission.waiting == 0

    async def test_a_request_takes_whichever_of_its_pools_is_free_first(self) -> None:
        """Spill-over while waiting."""
        pools = still(policy_of(TWO, own={"p": limited(1), "q": limited(1)}))
        held = [await admit(pools, ("p",)), await admit(pools, ("q",))]
        waiter = await stand(pools, "p", "q")
        held[1].release(Result.OK)

        assert (await waiter).pool == "q"

    async def test_a_place_goes_to_the_request_that_is_least_work_there(self) -> None:
        """Those who wait for both pools are not alike to both: a drafting pool takes code before prose."""
        pools = still(policy_of(TWO, own={"p": limited(1), "q": limited(1)}))
        held = {name: await admit(pools, (name,)) for name in ("p", "q")}
        prose = await stand(pools, "p", "q", work=Work(2.0, {"p": 1.5, "q": 2.5}))
        code = await stand(pools, "p", "q", work=Work(2.0, {"p": 2.5, "q": 1.5}))

        held["q"].release(Result.OK)
        assert (await code).pool == "q"
        assert not prose.done()
        held["p"].release(Result.OK)
        assert (await prose).pool == "p"

    async def test_two_pools_on_one_slice_share_its_limit(self) -> None:
        """A GPU slice is one resource, however many pools have an engine there."""
        policy = policy_of(
            {"p": ['{url: "http://a:1", slice: gpu0/1}'], "q": ['{url: "http://b:1", slice: gpu0/1}']},
            "slices: {gpu0/1: {in_flight: 2}}",
        )
        pools = still(policy)
        held = [await admit(pools, ("p",)), await admit(pools, ("q",))]
        waiters = [await stand(pools, "p"), await stand(pools, "q")]

        assert pools.load("p").full
        assert pools.load("q").full
        held[0].release(Result.OK)
        assert (await waiters[0]).pool == "p"
        held[1].release(Result.OK)
        assert (await waiters[1]).pool == "q"

    async def test_connections_of_an_endpoint_are_a_limit_that_is_waited_for(self) -> None:
        """POOL-01: with all connections in use a request goes to another endpoint, else it waits."""
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}, own={"p": ", limits: {connections: 1}"}))
        held = [await admit(pools, ("p",)) for _ in range(2)]

        assert {lease.endpoint.url for lease in held} == {"http://a:1", "http://b:1"}
        waiter = await stand(pools)
        held[0].release(Result.OK)
        assert (await waiter).endpoint is held[0].endpoint

    async def test_nobody_overtakes_those_who_wait(self) -> None:
        """A newcomer does not slip into the place that was just freed."""
        pools = one(1)
        held = await admit(pools, ("p",))
        first = await stand(pools)
        held.release(Result.OK)

        assert pools.admission.take(("p",)) is None
        assert (await first).pool == "p"

    async def test_recovers_after_overload(self) -> None:
        """POOL-03: a burst far above the limits leaves a pool that serves as before."""
        pools = one(2, queue=5, wait="20ms")
        held = [await admit(pools, ("p",)) for _ in range(2)]
        burst = await asyncio.gather(*(admit(pools, ("p",)) for _ in range(50)), return_exceptions=True)
        for lease in held:
            lease.release(Result.OK)

        assert all(isinstance(refused, NothingAvailable) for refused in burst)
        assert [(await admit(pools, ("p",))).pool for _ in range(2)] == ["p", "p"]
        assert pools["p"].rejected == {"queue_full": 45, "queue_wait": 5}


class TestRefusal:
    async def test_the_wait_is_bounded(self) -> None:
        """503 with Retry-After in whole seconds once `queue_wait` is over."""
        pools = one(1, wait="10ms")
        await admit(pools, ("p",))

        with pytest.raises(NothingAvailable, match="queue_wait") as caught:
            await admit(pools, ("p",))
        assert isinstance(caught.value.retry_after, int)
        assert caught.value.retry_after >= 1
        assert pools.load("p").waiting == 0

    async def test_a_full_queue_refuses_at_once(self) -> None:
        """A quick 503, not a hidden wait."""
        pools = one(1, queue=1)
        await admit(pools, ("p",))
        waiter = await stand(pools)

        with pytest.raises(NothingAvailable, match="is full"):
            await admit(pools, ("p",))
        waiter.cancel()

    async def test_nothing_waits_where_no_wait_is_allowed(self) -> None:
        """`queue_wait: 0s` makes a full pool refuse."""
        pools = one(1, wait="0s")
        await admit(pools, ("p",))

        with pytest.raises(NothingAvailable, match="nothing waits"):
            await admit(pools, ("p",))

    async def test_the_key_that_fills_the_queue_gets_429(self) -> None:
        """RETRY-06: its newest request is told at once; the other key's gets its place."""
        pools = one(1, queue=2)
        held = await admit(pools, ("p",))
        hog = [await stand(pools, key="hog") for _ in range(2)]
        small = await stand(pools, key="small")

        with pytest.raises(TooManyRequests) as caught:
            await hog[1]
        assert caught.value.retry_after == 1
        with pytest.raises(TooManyRequests):
            await admit(pools, ("p",), key="hog")
        held.release(Result.OK)
        (await hog[0]).release(Result.OK)
        assert (await small).pool == "p"

    @pytest.mark.parametrize(
        ("ended", "age", "wait", "seconds"),
        [([4.5] * 4, 0.0, "30s", 15), ([], 3.0, "30s", 10), ([], 0.0, "30s", 1), ([60.0], 0.0, "20s", 20)],
    )
    async def test_retry_after_follows_how_fast_places_become_free(
        self, ended: list[float], age: float, wait: str, seconds: int
    ) -> None:
        """Twelve waiting behind four that take 4.5 s each are 15 s; before any has ended their age so far tells, and
        nobody waits longer than `queue_wait`."""
        clock = Clock()
        pools = still(policy_of(ONE, own={"p": limited(4, queue=12, wait=wait)}), clock)
        for kept in ended:
            lease = await admit(pools, ("p",))
            clock.pass_(kept)
            lease.release(Result.OK)
        for _ in range(4):
            await admit(pools, ("p",))
        clock.pass_(age)
        waiters = [await stand(pools) for _ in range(12)]

        with pytest.raises(NothingAvailable) as caught:
            await admit(pools, ("p",))
        assert caught.value.retry_after == seconds
        for waiter in waiters:
            waiter.cancel()

    async def test_everything_down_is_told_at_once(self) -> None:
        """HEALTH-04, ERROR-02: no endpoint that a wait could help, so 503 with Retry-After, and no queue."""
        pools = one(1)
        only(pools).probed(False)

        with pytest.raises(NothingAvailable, match="no endpoint of p") as caught:
            await admit(pools, ("p",))
        assert caught.value.retry_after == 1
        assert pools["p"].rejected == {"down": 1}

    async def test_those_who_wait_are_told_when_the_last_endpoint_goes_down(self) -> None:
        """Nobody waits for what cannot come."""
        pools = one(1)
        await admit(pools, ("p",))
        waiter = await stand(pools)
        only(pools).probed(False)

        with pytest.raises(NothingAvailable, match="no endpoint"):
            await waiter

    async def test_who_waits_for_the_other_endpoint_is_told_when_that_goes_down(self) -> None:
        """RETRY-04: a request that failed at one endpoint does not wait for it when its only other one has died."""
        own = {"p": ", limits: {connections: 1, queue: 10, queue_wait: 60s}"}
        pools = still(policy_of({"p": ["http://a:1", "http://b:1"]}, own=own))
        held = [await admit(pools, ("p",)) for _ in range(2)]
        waiter = asyncio.create_task(admit(pools, ("p",), exclude={"http://a:1"}, urgent=True))
        await asyncio.sleep(0)
        next(e for e in pools["p"].endpoints if e.url == "http://b:1").probed(False)

        with pytest.raises(NothingAvailable, match="no endpoint"):
            await asyncio.wait_for(waiter, 20)
        assert len(held) == 2

    async def test_an_unknown_pool_is_like_one_that_is_down(self) -> None:
        """A reload may have removed every pool of a decision that was just made."""
        with pytest.raises(NothingAvailable):
            await admit(one(), ("gone",))


class TestLeaving:
    async def test_a_client_that_leaves_the_queue_is_never_served(self) -> None:
        """CANCEL-06: A runs, B waits, B's client closes, A ends; the place goes to C."""
        pools = one(1)
        a = await admit(pools, ("p",))
        b = await stand(pools)
        c = await stand(pools)
        b.cancel()
        await asyncio.wait([b])

        assert pools.load("p").waiting == 1
        a.release(Result.OK)
        assert (await c).endpoint.started == 2

    async def test_a_place_that_comes_in_the_moment_of_leaving_is_given_back(self) -> None:
        """CANCEL-06: granted and cancelled in one turn of the loop; the next in line gets it."""
        pools = one(1)
        a = await admit(pools, ("p",))
        b = await stand(pools)
        c = await stand(pools)
        a.release(Result.OK)
        b.cancel()

        assert (await asyncio.wait_for(c, 60)).pool == "p"
        assert pools["p"].in_flight == 1
        assert b.cancelled()

    async def test_cancelled_before_its_task_could_say_so(self) -> None:
        """CANCEL-06: a place freed between the cancel and its delivery does not go to the one that leaves."""
        pools = one(1)
        a = await admit(pools, ("p",))
        b = await stand(pools)
        c = await stand(pools)
        b.cancel()
        a.release(Result.OK)

        assert (await asyncio.wait_for(c, 60)).pool == "p"
        assert pools["p"].in_flight == 1

    async def test_a_refusal_that_meets_a_cancel_is_not_reported_as_lost(self) -> None:
        """An exception that nobody awaits any more is not logged as never retrieved (warnings are errors)."""
        pools = one(1)
        await admit(pools, ("p",))
        waiter = await stand(pools)
        only(pools).probed(False)
        waiter.cancel()
        await asyncio.wait([waiter])

        assert waiter.cancelled()


class TestTimeAlone:
    async def test_a_rest_that_ends_is_noticed_without_any_event(self) -> None:
        """A waiter behind a resting endpoint is served when the rest is over."""
        loop = asyncio.get_running_loop()
        pools = still(policy_of(ONE), loop.time)
        only(pools).rest(0.02)

        assert (await asyncio.wait_for(admit(pools, ("p",)), 60)).pool == "p"

    async def test_nobody_waits_long_for_a_trial_that_hangs(self) -> None:
        """RETRY-03: if the trial has not ended in time, those behind it are refused at once, not after `queue_wait`."""
        loop = asyncio.get_running_loop()
        pools = still(policy_of(ONE, own={"p": limited(4, wait="60s")}), loop.time)
        endpoint = only(pools)
        endpoint.stalled()
        endpoint.breaker.permit()
        trial = await admit(pools, ("p",))
        waiter = await stand(pools)

        assert not waiter.done()
        with pytest.raises(NothingAvailable, match="no endpoint"):
            await asyncio.wait_for(waiter, 20)
        assert endpoint.breaker.trial_since == trial.since

    @pytest.mark.parametrize("steps", range(1, 25))
    async def test_a_rest_that_ends_between_two_looks_at_the_clock_is_noticed(self, steps: int) -> None:
        """RETRY-03: however the end of a rest meets the search for a place, who waits is served when it is over."""

        class Creeping(Clock):
            def __call__(self) -> float:
                self.now += 0.001
                return self.now

        pools = still(policy_of(ONE, own={"p": limited(1, wait="1s")}), Creeping())
        only(pools).rest(steps * 0.001 + 0.0005)

        assert (await admit(pools, ("p",))).pool == "p"

    async def test_the_wait_is_reported(self) -> None:
        """Metrics: the observer hears of each wait that ended with a place."""
        clock = Clock()
        pools = still(policy_of(ONE, own={"p": limited(1)}), clock)
        heard: list[tuple[str, float]] = []
        pools.admission.on_wait = lambda pool, seconds: heard.append((pool, seconds))
        held = await admit(pools, ("p",))
        waiter = await stand(pools)
        clock.pass_(2.5)
        held.release(Result.OK)
        await waiter

        assert heard == [("p", 2.5)]
        assert (pools["p"].statistics().queued, pools["p"].statistics().waited_seconds) == (1, 2.5)
