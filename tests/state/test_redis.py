"""State in a healthy Redis: quotas, views, learned state, the decision log."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gateway.state.store import Ask, EndpointView, View
from gateway.state.views import pack
from tests.redis_server import RedisServer, redis_server
from tests.state.stores import eventually, hurry, make_store, replicas, reserve


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


async def test_the_sum_over_replicas_is_the_limit(server: RedisServer) -> None:
    """Three replicas that ask 30 times for one of 10 units get 10 together, and the rest hear when to come again."""
    async with replicas(server.url, 3) as stores:
        grants = await asyncio.gather(*(reserve(store) for store in stores * 10))

    assert sum(grant.units for grant in grants if grant) == 10
    refused = [grant for grant in grants if grant and not grant.units]
    assert all(0 < grant.retry <= 62 for grant in refused)


async def test_a_chunk_shrinks_as_the_limit_nears(server: RedisServer) -> None:
    """What is wanted beyond the need is a part of what is free, so that one replica cannot take all that is left."""
    async with replicas(server.url, 2) as stores:
        sizes = []
        for _ in range(12):
            grant = await reserve(stores[0], capacity=100, want=50)
            assert grant
            sizes.append(grant.units)

    assert sizes[0] == 25
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


async def test_units_come_back_after_the_window(server: RedisServer) -> None:
    """A window of 1.5 s is empty again by itself, and not before."""
    async with replicas(server.url) as (store,):
        began = time.monotonic()
        first = await reserve(store, capacity=1, window=1.5)
        refused = await reserve(store, capacity=1, window=1.5)
        took = time.monotonic() - began
        assert first
        assert refused
        assert (first.units, refused.units) == (1, 0)
        assert 1.4 - took < refused.retry <= 1.6

        await asyncio.sleep(refused.retry)
        again = await reserve(store, capacity=1, window=1.5)

    assert again
    assert again.units == 1


async def test_units_given_back_can_be_had_by_others(server: RedisServer) -> None:
    """A replica's unused units go to another one; giving back too much frees nobody else's."""
    async with replicas(server.url, 2) as (a, b):
        grant = await reserve(a, need=10)
        assert grant
        a.give_back("k:requests", 4, grant.slot)
        await a.sync()
        other = await reserve(b, need=10)
        assert other
        assert other.units == 4

        a.give_back("k:requests", 1000, grant.slot)
        a.give_back("k:requests", 1000, grant.slot - 5)
        await a.sync()
        rest = await reserve(b, need=10)

    assert rest
    assert rest.units <= 10


async def test_a_debt_counts_beyond_the_limit(server: RedisServer) -> None:
    """Units used without asking are counted even where there are none left."""
    async with replicas(server.url) as (store,):
        grant = await reserve(store, need=0, debt=25)
        after = await reserve(store, need=1)

    assert grant
    assert after
    assert (grant.units, grant.free) == (0, -15)
    assert after.units == 0


async def test_views_are_merged_without_ones_own() -> None:
    """REDIS-07: two workers with 50 streams each see 50 others; 0 when the streams are over."""
    view = View({"plain http://x": EndpointView(50, shut=True)}, {"alpha": 50})
    with redis_server() as server:
        a, b, c = (make_store(server.url, name, interval=3600.0) for name in "abc")
        await a.start(lambda: view)
        await b.start(lambda: view)
        await c.start(View)
        await a.sync()

        assert c.others.endpoints["plain http://x"].in_flight == 100
        assert c.others.endpoints["plain http://x"].shut == 2
        assert c.others.keys == {"alpha": 100}
        assert a.others.keys == {"alpha": 50}
        assert (a.replicas, c.replicas) == (3, 3)

        view = View()
        for store in (a, b, c):
            await store.sync()
        assert c.others.keys == {}
        assert c.others.endpoints == {}
        for store in (a, b, c):
            await store.aclose()


async def test_a_dead_replicas_view_expires_and_a_live_ones_does_not(server: RedisServer) -> None:
    """What a crash leaves behind goes by itself; what is renewed stays."""
    alive = make_store(server.url, "alive", interval=0.05, view_ttl=1.5)
    dead = make_store(server.url, "dead", interval=3600.0, view_ttl=1.5)
    watcher = make_store(server.url, "watcher", interval=0.05, view_ttl=1.5)
    await alive.start(lambda: View(keys={"alpha": 1}))
    await dead.start(lambda: View(keys={"beta": 1}))
    await watcher.start(View)
    assert watcher.others.keys == {"alpha": 1, "beta": 1}

    await eventually(lambda: "beta" not in watcher.others.keys)
    for _ in range(5):
        await watcher.sync()
        assert watcher.others.keys == {"alpha": 1}
    for store in (alive, dead, watcher):
        await store.aclose()


async def test_a_clock_that_went_back_does_not_keep_the_dead(server: RedisServer) -> None:
    """REDIS-07: after a fail-over to a Redis whose clock is an hour behind, neither a dead replica's view nor units
    that were counted in what is now the future hold for that hour."""
    ahead = int((time.time() + 3600) * 1e6)
    async with replicas(server.url) as (store,):
        assert await reserve(store)
        server.command("HSET", "gateway:limit:k:requests", str(ahead // 1_000_000), "10")
        server.command("HSET", "gateway:views", "dead", f"{ahead:016d}" + pack(View(keys={"alpha": 5})).decode())
        await store.sync()
        grant = await reserve(store)

        assert grant
        assert grant.units == 1
        assert store.others.replicas == 0


async def test_a_replica_that_leaves_is_gone_at_once(server: RedisServer) -> None:
    """An orderly end withdraws the view, so that no one counts it until it expires."""
    async with replicas(server.url) as (stays,):
        leaves = make_store(server.url, "leaves", interval=3600.0)
        await leaves.start(lambda: View(keys={"alpha": 1}))
        await stays.sync()
        assert stays.replicas == 2

        await leaves.aclose()
        await stays.sync()

        assert stays.replicas == 1
        assert stays.others.keys == {}


async def test_bytes_of_another_version_are_no_view(server: RedisServer) -> None:
    """During a rolling update, views that cannot be read are passed over."""
    async with replicas(server.url, 2) as (a, b):
        server.command("HSET", "gateway:views", "b", "9999999999999999[]")
        await a.sync()

        assert a.others.replicas == 0
        await b.sync()
        await a.sync()
        assert a.others.replicas == 1


async def test_learned_state_outlives_its_replica(server: RedisServer) -> None:
    """Each replica finds every blob, its own from before a restart included; names do not mix."""
    async with replicas(server.url, 2) as (a, b):
        assert await a.share("lengths", b"\x00A") == {"a": b"\x00A"}
        assert await b.share("lengths", b"B") == {"a": b"\x00A", "b": b"B"}
        assert await b.share("other", None) == {}

    async with replicas(server.url) as (again,):
        assert await again.share("lengths", None) == {"a": b"\x00A", "b": b"B"}


async def test_learned_state_of_many_replicas_is_bounded(server: RedisServer) -> None:
    """Pods with ever new names cannot fill Redis: the newest 64 blobs stay."""
    async with replicas(server.url) as (store,):
        for i in range(70):
            store._replica = f"pod-{i}"
            blobs = await store.share("lengths", b"x")

    assert blobs is not None
    assert len(blobs) == 64
    assert "pod-69" in blobs
    assert "pod-0" not in blobs


async def test_the_decision_log_is_one_for_all_and_bounded(server: RedisServer) -> None:
    """Entries of all replicas come newest first; old ones go."""
    async with replicas(server.url, 2, log_length=100) as (a, b):
        a.append(b"1")
        await a.sync()
        b.append(b"2")
        assert await b.recent(10) == [b"2", b"1"]
        assert await a.recent(1) == [b"2"]
        assert await a.recent(0) == []

        for i in range(2000):
            a.append(b"%d" % i)
        await a.sync()
        length = int(server.command("XLEN", "gateway:decisions").strip(":\r\n"))

    assert 100 <= length < 300


async def test_a_burst_beyond_the_connections_is_no_outage(server: RedisServer) -> None:
    """REDIS-03: 300 questions at once over one connection are all answered, and nothing counts as lost."""
    async with replicas(server.url) as (store,):
        grants = await asyncio.gather(*(reserve(store, bucket=f"k{i}") for i in range(300)))

        assert all(grant and grant.units == 1 for grant in grants)
        assert store.status().connected
        clients = server.command("CLIENT", "LIST").count("name=") - 1
        assert clients == 2


async def test_a_cancelled_request_leaves_no_answer_behind() -> None:
    """REDIS-05: requests are cancelled while Redis is frozen; afterwards every question gets its own answer."""
    with redis_server() as server:
        async with replicas(server.url) as (store,):
            server.freeze()
            tasks = [asyncio.create_task(reserve(store, bucket=f"c{i}", capacity=5)) for i in range(50)]
            for _ in range(3):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            server.thaw()

            grants = [await reserve(store, bucket=f"d{i}", capacity=1000 + i) for i in range(50)]

    assert all(task.cancelled() for task in tasks)
    assert [grant.free for grant in grants if grant] == [999 + i for i in range(50)]


async def test_more_questions_than_can_wait_are_turned_away(server: RedisServer) -> None:
    """OPS-03: a frozen Redis cannot pile up questions without end."""
    async with replicas(server.url) as (store,):
        hurry(store, 0.25)
        server.freeze()
        futures = [store.reserve(Ask(bucket="k", capacity=1, window=60.0)) for _ in range(10_000)]
        taken = [future for future in futures if future is not None]

        assert len(taken) == 4096
        assert await asyncio.gather(*taken) == [None] * 4096
        server.thaw()


_OTHER_PROCESS = """
import asyncio, sys
from tests.state.stores import replicas, reserve

async def main():
    async with replicas(sys.argv[1]) as (store,):
        print("ready", flush=True)
        sys.stdin.readline()
        grants = await asyncio.gather(*(reserve(store, capacity=100) for _ in range(100)))
        print(sum(grant.units for grant in grants))

asyncio.run(main())
"""


async def test_two_processes_share_a_limit(server: RedisServer) -> None:
    """OPS-04: what two processes get at the same time is the limit, not twice the limit."""
    async with replicas(server.url) as (store,):
        program = (sys.executable, "-c", _OTHER_PROCESS, server.url)
        other = await asyncio.create_subprocess_exec(*program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout
        await other.stdout.readline()
        ours = [await reserve(store, capacity=100) for _ in range(20)]
        out, _ = await other.communicate(b"go\n")
        ours += [await reserve(store, capacity=100) for _ in range(100)]

    theirs = int(out)
    assert theirs == 80
    assert sum(grant.units for grant in ours if grant) + theirs == 100
