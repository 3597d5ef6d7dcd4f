"""The door: limits, bounded waiting, who is refused and how, and that nobody holds a place who has left."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import NothingAvailable, TooManyRequests
from gateway.types import Result
from gateway.upstream.lease import Lease
from gateway.upstream.pools import Pools
from tests.upstream.live import Clock, only, policy_of, still

ONE = {"p": ["http://a:1"]}
TWO = {"p": ["http://a:1"], "q": ["http://b:1"]}


def limited(in_flight: int, *, queue: int = 10, wait: str = "10s") -> str:
    return f", limits: {{in_flight: {in_flight}, queue: {queue}, queue_wait: {wait}}}"


def one(in_flight: int = 1, **more: object) -> Pools:
    return still(policy_of(ONE, own={"p": limited(in_flight, **more)}))  # type: ignore[arg-type]


async def stand(pools: Pools, *order: str, **how: object) -> asyncio.Task[Lease]:
    """A request that waits, once it stands in the queue."""
    task = asyncio.create_task(pools.admit(order or ("p",), **how))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return task


class TestRoom:
    async def test_a_request_with_room_does_not_wait(self) -> None:
        """No task, no future: the place is there at once."""
        pools = one(2)

        assert pools.admission.take(("p",)) is not None
        assert pools.admission.waiting == 0

    async def test_a_pool_never_runs_more_than_its_limit(self) -> None:
        """POOL-01: the limit is set on purpose, and what is above it waits in sight."""
        pools = one(2)
        leases = [await pools.admit(("p",)) for _ in range(2)]
        third = await stand(pools)

        assert (pools.load("p").in_flight, pools.load("p").waiting, pools.load("p").full) == (2, 1, True)
        leases[0].release(Result.OK)
        assert (await third).endpoint is only(pools)
        assert (pools.load("p").in_flight, pools.load("p").waiting) == (2, 0)

    async def test_a_request_takes_whichever_of_its_pools_is_free_first(self) -> None:
        """Spill-over while waiting."""
        pools = still(policy_of(TWO, own={"p": limited(1), "q": limited(1)}))
        held = [await pools.admit(("p",)), await pools.admit(("q",))]
        waiter = await stand(pools, "p", "q")
        held[1].release(Result.OK)

        assert (await waiter).pool == "q"

    async def test_two_pools_on_one_slice_share_its_limit(self) -> None:
        """A GPU slice is one resource, however many pools have an engine there."""
        policy = policy_of(
            {"p": ['{url: "http://a:1", slice: gpu0/1}'], "q": ['{url: "http://b:1", slice: gpu0/1}']},
            "slices: {gpu0/1: {in_flight: 2}}",
        )
        pools = still(policy)
        held = [await pools.admit(("p",)), await pools.admit(("q",))]
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
        held = [await pools.admit(("p",)) for _ in range(2)]

        assert {lease.endpoint.url for lease in held} == {"http://a:1", "http://b:1"}
        waiter = await stand(pools)
        held[0].release(Result.OK)
        assert (await waiter).endpoint is held[0].endpoint

    async def test_nobody_overtakes_those_who_wait(self) -> None:
        """A newcomer does not slip into the place that was just freed."""
        pools = one(1)
        held = await pools.admit(("p",))
        first = await stand(pools)
        held.release(Result.OK)

        assert pools.admission.take(("p",)) is None
        assert (await first).pool == "p"

    async def test_recovers_after_overload(self) -> None:
        """POOL-03: a burst far above the limits leaves a pool that serves as before."""
        pools = one(2, queue=5, wait="20ms")
        held = [await pools.admit(("p",)) for _ in range(2)]
        burst = await asyncio.gather(*(pools.admit(("p",)) for _ in range(50)), return_exceptions=True)
        for lease in held:
            lease.release(Result.OK)

        assert all(isinstance(refused, NothingAvailable) for refused in burst)
        assert [(await pools.admit(("p",))).pool for _ in range(2)] == ["p", "p"]
        assert pools["p"].rejected == {"queue_full": 45, "queue_wait": 5}


class TestRefusal:
    async def test_the_wait_is_bounded(self) -> None:
        """503 with Retry-After in whole seconds once `queue_wait` is over."""
        pools = one(1, wait="10ms")
        await pools.admit(("p",))

        with pytest.raises(NothingAvailable, match="queue_wait") as caught:
            await pools.admit(("p",))
        assert isinstance(caught.value.retry_after, int)
        assert caught.value.retry_after >= 1
        assert pools.load("p").waiting == 0

    async def test_a_full_queue_refuses_at_once(self) -> None:
        """A quick 503, not a hidden wait."""
        pools = one(1, queue=1)
        await pools.admit(("p",))
        waiter = await stand(pools)

        with pytest.raises(NothingAvailable, match="is full"):
            await pools.admit(("p",))
        waiter.cancel()

    async def test_nothing_waits_where_no_wait_is_allowed(self) -> None:
        """`queue_wait: 0s` makes a full pool refuse."""
        pools = one(1, wait="0s")
        await pools.admit(("p",))

        with pytest.raises(NothingAvailable, match="nothing waits"):
            await pools.admit(("p",))

    async def test_the_key_that_fills_the_queue_gets_429(self) -> None:
        """RETRY-06: its newest request is told at once; the other key's gets its place."""
        pools = one(1, queue=2)
        held = await pools.admit(("p",))
        hog = [await stand(pools, key="hog") for _ in range(2)]
        small = await stand(pools, key="small")

        with pytest.raises(TooManyRequests) as caught:
            await hog[1]
        assert caught.value.retry_after == 1
        with pytest.raises(TooManyRequests):
            await pools.admit(("p",), key="hog")
        held.release(Result.OK)
        (await hog[0]).release(Result.OK)
        assert (await small).pool == "p"

    async def test_retry_after_follows_the_rate_of_the_queue(self) -> None:
        """Twenty waiting at two starts a second are ten seconds."""
        clock = Clock()
        pools = still(policy_of(ONE, own={"p": limited(1, queue=20)}), clock)
        for _ in range(20):
            pools["p"].budget.deposit(clock.now)
        await pools.admit(("p",))
        waiters = [await stand(pools) for _ in range(20)]

        with pytest.raises(NothingAvailable) as caught:
            await pools.admit(("p",))
        assert caught.value.retry_after == 11
        for waiter in waiters:
            waiter.cancel()

    async def test_everything_down_is_told_at_once(self) -> None:
        """HEALTH-04, ERROR-02: no endpoint that a wait could help, so 503 with Retry-After, and no queue."""
        pools = one(1)
        only(pools).probed(False)

        with pytest.raises(NothingAvailable, match="no endpoint of p") as caught:
            await pools.admit(("p",))
        assert caught.value.retry_after == 1
        assert pools["p"].rejected == {"down": 1}

    async def test_those_who_wait_are_told_when_the_last_endpoint_goes_down(self) -> None:
        """Nobody waits for what cannot come."""
        pools = one(1)
        await pools.admit(("p",))
        waiter = await stand(pools)
        only(pools).probed(False)

        with pytest.raises(NothingAvailable, match="no endpoint"):
            await waiter

    async def test_an_unknown_pool_is_like_one_that_is_down(self) -> None:
        """A reload may have removed every pool of a decision that was just made."""
        with pytest.raises(NothingAvailable):
            await one().admit(("gone",))


class TestLeaving:
    async def test_a_client_that_leaves_the_queue_is_never_served(self) -> None:
        """CANCEL-06: A runs, B waits, B's client closes, A ends; the place goes to C."""
        pools = one(1)
        a = await pools.admit(("p",))
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
        a = await pools.admit(("p",))
        b = await stand(pools)
        c = await stand(pools)
        a.release(Result.OK)
        b.cancel()

        assert (await asyncio.wait_for(c, 5)).pool == "p"
        assert pools["p"].in_flight == 1
        assert b.cancelled()

    async def test_cancelled_before_its_task_could_say_so(self) -> None:
        """CANCEL-06: a place freed between the cancel and its delivery does not go to the one that leaves."""
        pools = one(1)
        a = await pools.admit(("p",))
        b = await stand(pools)
        c = await stand(pools)
        b.cancel()
        a.release(Result.OK)

        assert (await asyncio.wait_for(c, 5)).pool == "p"
        assert pools["p"].in_flight == 1

    async def test_a_refusal_that_meets_a_cancel_is_not_reported_as_lost(self) -> None:
        """An exception that nobody awaits any more is not logged as never retrieved (warnings are errors)."""
        pools = one(1)
        await pools.admit(("p",))
        waiter = await stand(pools)
        only(pools).probed(False)
        waiter.cancel()
        await asyncio.wait([waiter])

        assert waiter.cancelled()


class TestReload:
    async def test_a_higher_limit_serves_those_who_wait(self) -> None:
        """A reload takes effect on the queue at once."""
        pools = one(1)
        await pools.admit(("p",))
        waiter = await stand(pools)
        pools.apply(policy_of(ONE, own={"p": limited(2)}))

        assert (await waiter).pool == "p"

    async def test_a_pool_that_goes_takes_its_queue_along(self) -> None:
        """Those who could go nowhere else are told; those who can, wait on."""
        pools = still(policy_of(TWO, own={"p": limited(1), "q": limited(1)}))
        held = [await pools.admit(("p",)), await pools.admit(("q",))]
        alone, both = await stand(pools, "p"), await stand(pools, "p", "q")
        pools.apply(policy_of({"q": TWO["q"]}, own={"q": limited(1)}))

        with pytest.raises(NothingAvailable):
            await alone
        held[0].release(Result.OK)
        held[1].release(Result.OK)
        assert (await both).pool == "q"
        assert pools["q"].eligible == 0

    async def test_a_pool_that_comes_serves_those_who_named_it(self) -> None:
        """Counts stay right when a pool appears while its future requests already wait."""
        pools = still(policy_of({"q": TWO["q"]}, own={"q": limited(1)}))
        await pools.admit(("q",))
        waiter = await stand(pools, "p", "q")
        pools.apply(policy_of(TWO, own={"p": limited(1), "q": limited(1)}))

        assert (await waiter).pool == "p"
        assert (pools["p"].eligible, pools["q"].eligible) == (0, 0)


class TestTimeAlone:
    async def test_a_rest_that_ends_is_noticed_without_any_event(self) -> None:
        """A waiter behind a resting endpoint is served when the rest is over."""
        loop = asyncio.get_running_loop()
        pools = still(policy_of(ONE), loop.time)
        only(pools).rest(0.02)

        assert (await asyncio.wait_for(pools.admit(("p",)), 5)).pool == "p"

    async def test_the_wait_is_reported(self) -> None:
        """Metrics: the observer hears of each wait that ended with a place."""
        clock = Clock()
        pools = still(policy_of(ONE, own={"p": limited(1)}), clock)
        heard: list[tuple[str, float]] = []
        pools.admission.on_wait = lambda pool, seconds: heard.append((pool, seconds))
        held = await pools.admit(("p",))
        waiter = await stand(pools)
        clock.pass_(2.5)
        held.release(Result.OK)
        await waiter

        assert heard == [("p", 2.5)]
        assert (pools["p"].statistics().queued, pools["p"].statistics().waited_seconds) == (1, 2.5)


STEPS = st.one_of(
    st.tuples(
        st.just("come"),
        st.sampled_from([("p",), ("q",), ("p", "q")]),
        st.sampled_from([None, "a", "b"]),
        st.integers(0, 1),
    ),
    st.tuples(st.sampled_from(["end", "leave", "down", "up", "turn", "shut"]), st.integers(0, 1000)),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_no_limit_is_passed_and_nothing_leaks(steps: list[tuple[object, ...]]) -> None:
    """Any order of arrivals, ends, leavings and outages: in flight stays within pool and slice limits, no waiter is
    left while its pool has room, and all counts are zero in the end."""
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[object, ...]]) -> None:
    policy = policy_of(
        {"p": ['{url: "http://a:1", slice: s}', "http://b:1"], "q": ['{url: "http://c:1", slice: s}']},
        "slices: {s: {in_flight: 2}}",
        own={"p": limited(3, queue=4, wait="1h"), "q": limited(2, queue=4, wait="1h")},
    )
    clock = Clock()
    pools = still(policy, clock)
    endpoints = [endpoint for pool in pools for endpoint in pool.endpoints]
    tasks: list[asyncio.Task[Lease]] = []

    def granted() -> list[Lease]:
        done = [task for task in tasks if task.done() and not task.cancelled() and not task.exception()]
        return [lease for task in done if not (lease := task.result()).released]

    for step in steps:
        clock.pass_(0.3)
        if step[0] == "come":
            _, order, key, priority = step
            tasks.append(asyncio.create_task(pools.admit(order, 1.0, priority, key)))  # type: ignore[arg-type]
        else:
            kind, number = step
            assert isinstance(number, int)
            if kind == "end" and (held := granted()):
                held[number % len(held)].release([Result.OK, Result.BACKEND_ERROR][number % 2])
            elif kind == "leave" and tasks:
                tasks[number % len(tasks)].cancel()
            elif kind in ("down", "up"):
                endpoints[number % 3].probed(kind == "up")
            elif kind == "shut":
                endpoints[number % 3].stalled()
        if step[0] != "leave":
            for _ in range(3):
                await asyncio.sleep(0)
            _check(pools)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for lease in granted():
        lease.release(Result.OK)
    _check(pools)
    assert pools.admission.waiting == 0
    assert [(p.in_flight, p.waiting, p.eligible) for p in pools] == [(0, 0, 0)] * 2
    assert all((e.in_flight, e.streaming, len(e.leases)) == (0, 0, 0) for e in endpoints)
    assert pools._slices["s"].in_flight == 0
    assert not pools.admission._places._by_pool


def _check(pools: Pools) -> None:
    assert pools["p"].in_flight <= 3
    assert pools["q"].in_flight <= 2
    assert pools._slices["s"].in_flight <= 2
    for pool in pools:
        assert pool.waiting <= 4
        assert pool.in_flight == sum(endpoint.in_flight for endpoint in pool.endpoints)
        assert pool.ready == sum(endpoint.ready for endpoint in pool.endpoints)
        if pool.eligible:
            # An endpoint that has just been found usable by the clock is noticed by a timer, not here.
            assert not [e for e in pool.endpoints if e.ready and e.room() and pool.in_flight < pool._limit]


def test_the_random_choice_is_reproducible() -> None:
    """Randomness is a parameter."""
    first, second = (still(policy_of({"p": [f"http://h{n}:1" for n in range(9)]})) for _ in range(2))
    assert isinstance(first["p"]._rng, Random)

    assert [first.lease("p").endpoint.url for _ in range(50)] == [  # type: ignore[union-attr]
        second.lease("p").endpoint.url  # type: ignore[union-attr]
        for _ in range(50)
    ]
