"""The door under any order of events: limits hold, nobody waits beside a free place, nothing leaks."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.types import Result
from gateway.upstream.fair import UNIT
from gateway.upstream.lease import Lease
from gateway.upstream.pools import Pools
from tests.upstream.door import admit, limited
from tests.upstream.live import Clock, policy_of, still

STEPS = st.one_of(
    st.tuples(
        st.just("come"),
        st.sampled_from([("p",), ("q",), ("p", "q")]),
        st.sampled_from([None, "a", "b"]),
        st.integers(0, 1),
        st.sampled_from([frozenset(), frozenset(), frozenset({"http://a:1"})]),
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
            _, order, key, priority, exclude = step
            work = admit(pools, order, UNIT, priority, key, exclude=exclude)  # type: ignore[arg-type]
            tasks.append(asyncio.create_task(work))
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
    assert not pools.admission._lanes


def _check(pools: Pools) -> None:
    assert pools["p"].in_flight <= 3
    assert pools["q"].in_flight <= 2
    assert pools._slices["s"].in_flight <= 2
    for pool in pools:
        assert pool.waiting <= 4
        assert pool.in_flight == sum(endpoint.in_flight for endpoint in pool.endpoints)
        assert pool.ready == sum(endpoint.ready for endpoint in pool.endpoints)
    for waiter in [*pools.admission._urgent, *pools.admission._queue]:
        for pool in [pools[name] for name in waiter.pools]:
            # An endpoint that has just been found usable by the clock is noticed by a timer, not here.
            free = [e for e in pool.endpoints if e.ready and e.room() and pool.in_flight < pool._limit]
            assert not [e for e in free if e.url not in waiter.exclude]


def test_the_random_choice_is_reproducible() -> None:
    """Randomness is a parameter."""
    first, second = (still(policy_of({"p": [f"http://h{n}:1" for n in range(9)]})) for _ in range(2))
    assert isinstance(first["p"]._rng, Random)

    assert [first["p"].lease().endpoint.url for _ in range(50)] == [  # type: ignore[union-attr]
        second["p"].lease().endpoint.url  # type: ignore[union-attr]
        for _ in range(50)
    ]
