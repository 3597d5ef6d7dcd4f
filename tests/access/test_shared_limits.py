"""Limits over several replicas that share a real Redis, healthy and lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.access.limits import Limits
from gateway.access.ticket import Limit, Ticket
from gateway.errors import TooManyRequests
from gateway.policy.schema import AccessKey
from gateway.state.link import THRESHOLD
from gateway.state.redis import RedisStore
from gateway.state.store import WINDOW_SLOTS, View
from gateway.types import Usage
from tests.access.fakes import make_key
from tests.redis_server import RedisServer, redis_server
from tests.state.stores import LONG, eventually, hurry, make_store, replicas


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@asynccontextmanager
async def gateways(
    url: str, count: int, window: float = 60.0, **options: Any
) -> AsyncIterator[list[tuple[RedisStore, Limits]]]:
    async with replicas(url, count, **options) as stores:
        yield [(store, Limits(store, clock=time.monotonic, window=window)) for store in stores]


async def admitted(limits: Limits, key: AccessKey, *tokens: int) -> bool:
    try:
        await limits.admit(key, *tokens)
    except TooManyRequests:
        return False
    return True


@pytest.mark.parametrize("limit", [1, 7, 30])
async def test_exactly_a_small_limit_passes_over_three_replicas(server: RedisServer, limit: int) -> None:
    """OPS-04: a burst over three replicas lets exactly the limit through, and a second burst nothing."""
    key = make_key(requests_per_minute=limit)
    async with gateways(server.url, 3) as all_three:
        burst = [limits for _, limits in all_three] * 20
        first = await asyncio.gather(*(admitted(limits, key) for limits in burst))
        second = await asyncio.gather(*(admitted(limits, key) for limits in burst))

    assert sum(first) == limit
    assert sum(second) == 0


async def test_a_large_limit_is_never_exceeded_and_used_to_the_end(server: RedisServer) -> None:
    """Chunks in three replicas together stay within 1,000; what one holds in vain, another gets a second later."""
    key = make_key(requests_per_minute=1000)
    async with gateways(server.url, 3) as all_three:
        passed = 0
        for _ in range(10):
            burst = [limits for _, limits in all_three] * 50
            passed += sum(await asyncio.gather(*(admitted(limits, key) for limits in burst)))
        assert 900 <= passed <= 1000

        async def rest() -> int:
            for store, limits in all_three:
                limits.tick()
                await store.sync()
            return sum([await admitted(limits, key) for _, limits in all_three])

        until = time.monotonic() + 45
        while passed < 1000 and time.monotonic() < until:
            passed += await rest()
            await asyncio.sleep(0.02)
        assert passed == 1000
        assert await rest() == 0


async def test_no_window_holds_more_than_the_limit(server: RedisServer) -> None:
    """With leases and a window of 1.2 s: in any 1.2 s, at most the limit passes over two replicas."""
    key, window, taken = make_key(requests_per_minute=100), 1.2, list[tuple[float, float]]()
    async with gateways(server.url, 2, window=window) as both:
        until = time.monotonic() + 3 * window
        while time.monotonic() < until or len(taken) <= 150:
            for _, limits in both:
                before = time.monotonic()
                if await admitted(limits, key):
                    taken.append((before, time.monotonic()))
            await asyncio.sleep(0.002)

    for at, _ in taken:
        # It was admitted between two clocks read here, and those that lie within a window with both are within one.
        # Redis' clock is another one: give the difference a slot's room.
        assert sum(at <= before and after < at + window - window / 60 for before, after in taken) <= 100


async def test_the_usual_request_asks_nobody(server: RedisServer) -> None:
    """Under steady load most requests spend from leases, synchronously."""
    key = make_key(requests_per_minute=100_000, tokens_per_minute=10_000_000)
    async with gateways(server.url, 1) as ((_, limits),):
        without_waiting = 0
        for _ in range(500):
            ticket = limits.try_admit(key, 100, 50)
            without_waiting += ticket is not None
            ticket = ticket or await limits.admit(key, 100, 50)
            ticket.settle(Usage(prompt_tokens=100, completion_tokens=40))
            await asyncio.sleep(0)
        commands = int(server.command("INFO", "commandstats").split("cmdstat_evalsha:calls=")[1].split(",")[0])

    assert without_waiting > 450
    assert commands < 200


async def test_a_refused_flood_does_not_ask_each_time(server: RedisServer) -> None:
    """RETRY-06: a client that hammers at its limit is refused from memory."""
    key = make_key(requests_per_minute=1)
    async with gateways(server.url, 1) as ((_, limits),):
        assert await admitted(limits, key)
        assert not await admitted(limits, key)
        for _ in range(50):
            with pytest.raises(TooManyRequests) as caught:
                await limits.admit(key)
        commands = int(server.command("INFO", "commandstats").split("cmdstat_evalsha:calls=")[1].split(",")[0])

    assert caught.value.retry_after
    assert 55 <= caught.value.retry_after <= 62
    assert commands < 30


async def test_what_remains_is_the_share_while_the_store_is_lost(server: RedisServer) -> None:
    """REDIS-01: a replica that refuses by its share does not tell its client that the others' part remains."""
    key = make_key(requests_per_minute=10)
    async with gateways(server.url, 2, deadline=0.1, patience=0.005) as ((store, limits), _):
        server.freeze()
        for _ in range(THRESHOLD):
            await store.sync()
        passed = [await admitted(limits, key) for _ in range(7)]

        assert sum(passed) == 5
        assert limits.standing(key)[Limit.REQUESTS].remaining == 0
        server.thaw()


async def test_tokens_are_settled_across_replicas(server: RedisServer) -> None:
    """What one replica estimated too high, another can use; what was used beyond the estimate counts for all."""
    key = make_key(tokens_per_minute=1000)
    async with gateways(server.url, 2) as ((store_a, a), (store_b, b)):
        ticket = await a.admit(key, 500, 400)
        assert not await admitted(b, key, 200)
        ticket.settle(Usage(prompt_tokens=500, completion_tokens=100))
        a.tick()
        await store_a.sync()
        await asyncio.sleep(0.11)
        over = await b.admit(key, 390)
        over.settle(Usage(prompt_tokens=390, completion_tokens=300))
        await told(store_b, b, Limit.TOKENS)

        assert not await admitted(a, key, 1)
        assert a.standing(key)[Limit.TOKENS].remaining == 0


async def test_a_large_request_does_not_hold_what_small_ones_could_use(server: RedisServer) -> None:
    """A partial grant that did not suffice goes back at once."""
    key = make_key(tokens_per_minute=1000)
    async with gateways(server.url, 2) as ((store_a, a), (_, b)):
        assert await admitted(a, key, 700)
        assert not await admitted(a, key, 500)
        await store_a.sync()

        assert await admitted(b, key, 300)


async def test_requests_at_a_time_count_over_replicas(server: RedisServer) -> None:
    """The other replicas' requests count as of the last exchange."""
    key = make_key(in_flight=3)
    a, b = (make_store(server.url, name, interval=3600.0) for name in "ab")
    ours, theirs = (Limits(store, clock=time.monotonic) for store in (a, b))
    await a.start(lambda: View(keys=ours.in_flight()))
    await b.start(lambda: View(keys=theirs.in_flight()))
    tickets = [await theirs.admit(key) for _ in range(2)]
    await b.sync()
    await a.sync()

    assert await admitted(ours, key)
    assert not await admitted(ours, key)
    for ticket in tickets:
        ticket.settle()
    await b.sync()
    await a.sync()
    assert await admitted(ours, key)
    await a.aclose()
    await b.aclose()


@pytest.mark.parametrize("fault", ["kill", "freeze", "make_read_only"])
async def test_with_redis_lost_each_replica_has_its_fair_share(server: RedisServer, fault: str) -> None:
    """REDIS-01, REDIS-02: two replicas go on with half the limit each, at once; what they let through counts later."""
    key = make_key(requests_per_minute=20)
    async with gateways(server.url, 2, patience=0.005) as both:
        for store, _ in both:
            hurry(store, 0.1)
        getattr(server, fault)()
        passed = [sum([await admitted(limits, key) for _ in range(30)]) for _, limits in both]
        assert passed == [10, 10]
        # A question that is under way when Redis comes back would be answered before the others' debts are told.
        asked = [limits._states["alpha"].quotas[Limit.REQUESTS] for _, limits in both]
        await eventually(lambda: not any(quota._refilling for quota in asked))

        {"kill": server.start, "freeze": server.thaw, "make_read_only": server.make_writable}[fault]()
        for store, limits in both:
            store.patience = LONG
            hurry(store, LONG)
            await told(store, limits)
        assert [await admitted(limits, key) for _, limits in both] == [False, False]


async def test_a_late_answer_lets_nothing_through_that_others_have_used(server: RedisServer) -> None:
    """OPS-04: what Redis said a moment ago holds against the fair share; once that is old, the share counts."""
    key, window, ahead = make_key(tokens_per_minute=1000), 600.0, 0.0
    async with replicas(server.url, 2) as stores:
        ours, theirs = (Limits(store, clock=lambda: time.monotonic() + ahead, window=window) for store in stores)
        assert await admitted(theirs, key, 700)
        assert await admitted(ours, key, 200)
        for store in stores:
            store.patience = 0.2
        server.freeze()

        assert not await admitted(ours, key, 150)
        assert await admitted(ours, key, 50)
        assert not await admitted(ours, key, 60)
        ahead = window / WINDOW_SLOTS + 1
        assert await admitted(ours, key, 150)
        assert not await admitted(ours, key, 150)
        server.thaw()


async def told(store: RedisStore, limits: Limits, limit: Limit = Limit.REQUESTS) -> None:
    """Until Redis is there and knows what was used without asking it."""
    quota = limits._states["alpha"].quotas[limit]
    until = time.monotonic() + LONG
    while not store.status().connected or quota._debt or quota._refilling:
        assert time.monotonic() < until
        await store.sync()
        limits.tick()
        await asyncio.sleep(0.01)


async def test_a_frozen_redis_holds_up_only_those_who_asked_first(server: RedisServer) -> None:
    """REDIS-01: after the first answer is overdue, requests are decided without waiting."""
    key = make_key(requests_per_minute=1000)
    async with gateways(server.url, 1, patience=0.005) as ((store, limits),):
        await eventually(lambda: store.prompt)
        server.freeze()
        await limits.admit(key)
        await eventually(lambda: not store.prompt)

        for _ in range(100):
            assert isinstance(limits.try_admit(key), Ticket)
        server.thaw()


async def test_a_flush_does_not_open_the_limit_again(server: RedisServer) -> None:
    """Replicas tell an empty Redis what they have used, so that FLUSHALL doubles nothing for long."""
    key = make_key(requests_per_minute=20)
    async with gateways(server.url, 2) as both:
        for _, limits in both:
            assert sum([await admitted(limits, key) for _ in range(9)]) == 9
        server.flush()
        first = [await admitted(limits, key) for _, limits in both]
        for _, limits in both:
            limits.tick()
        await asyncio.sleep(0.11)
        more = [await admitted(limits, key) for _ in range(5) for _, limits in both]

    assert first == [True, True]
    assert sum(more) == 0


async def test_a_client_that_leaves_while_waiting_holds_nothing(server: RedisServer) -> None:
    """REDIS-05: cancelled waits neither keep units nor confuse the next answer."""
    key = make_key(requests_per_minute=10)
    async with gateways(server.url, 1) as ((store, limits),):
        server.freeze()
        tasks = [asyncio.create_task(limits.admit(key)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert limits.in_flight() == {}
        server.thaw()

        assert sum([await admitted(limits, key) for _ in range(12)]) == 10
        assert limits._states["alpha"].quotas[Limit.REQUESTS].waiting == 0
        await store.sync()
