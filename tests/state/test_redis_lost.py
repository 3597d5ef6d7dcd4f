"""Redis refuses, freezes, is slow, read-only, flushed, restarted or failing over: nobody waits, all comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.state.lane import Command
from gateway.state.link import THRESHOLD
from gateway.state.store import Ask, View
from tests.redis_server import RedisServer, redis_server
from tests.state.stores import LONG, eventually, hurry, make_store, replicas, reserve

FAST: dict[str, Any] = {"interval": 0.02}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


async def test_a_frozen_redis_is_not_waited_for(server: RedisServer) -> None:
    """REDIS-01: while a question is under way for longer than the patience, no other request waits at all."""
    async with replicas(server.url, patience=0.005) as (store,):
        await eventually(lambda: store.prompt)
        hurry(store, 0.2)
        server.freeze()
        asked = store.reserve(Ask(bucket="k", capacity=1, window=60.0, need=1))
        assert asked

        done, _ = await asyncio.wait((asked,), timeout=store.patience)
        assert not done
        await eventually(lambda: not store.prompt, within=LONG)
        assert await asked is None

        for _ in range(THRESHOLD):
            assert not store.prompt
            await reserve(store)
        await store.sync()
        assert not store.status().connected
        assert store.status().error == "TimeoutError"
        server.thaw()


@pytest.mark.parametrize("fault", ["kill", "freeze", "make_read_only"])
async def test_loss_is_said_and_recovery_is_automatic(server: RedisServer, fault: str) -> None:
    """REDIS-01, REDIS-02: each way of being lost opens the breaker after a few failures and closes it on recovery."""
    async with replicas(server.url, **FAST) as (store,):
        assert store.status().object().keys() == {"home", "connected", "since", "replicas"}
        before = store.status().since
        hurry(store, 0.1)
        getattr(server, fault)()
        await eventually(lambda: not store.status().connected)
        lost = store.status()
        assert lost.since >= before
        assert lost.error
        assert lost.object()["home"] == "redis"
        assert not store.prompt

        {"kill": server.start, "freeze": server.thaw, "make_read_only": server.make_writable}[fault]()
        hurry(store, 1.0)
        await eventually(lambda: store.status().connected)
        hurry(store, LONG)
        grant = await reserve(store)

    assert grant
    assert grant.units == 1


async def test_one_failure_is_no_loss(server: RedisServer) -> None:
    """REDIS-02: a connection that was cut is made again without an alarm."""
    async with replicas(server.url) as (store,):
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await reserve(store)
        await store.sync()
        assert store.status().connected

        grant = await reserve(store)
        assert grant
        assert grant.units == 1


@pytest.mark.parametrize(("fault", "told"), [("make_read_only", "readonly"), ("refuse_for_memory", "oom")])
async def test_the_reason_of_a_refusal_is_named(server: RedisServer, fault: str, told: str) -> None:
    """REDIS-02: who reads `/ready` learns why Redis refuses, and not only that it does."""
    async with replicas(server.url, **FAST) as (store,):
        getattr(server, fault)()
        await eventually(lambda: not store.status().connected)
        error = store.status().error

        assert error
        assert told in error.lower().replace("outofmemory", "oom")


async def test_a_redis_that_is_not_there_at_the_start_is_found_later(caplog: pytest.LogCaptureFixture) -> None:
    """A gateway starts without its Redis, and says so, in its log once."""
    server = RedisServer()
    store = make_store(server.url, **FAST)
    await store.start(View)
    try:
        assert not store.status().connected
        assert store.status().error == "ConnectionError"
        await eventually(lambda: store._bulk.link._failures > 2)
        said = [row.getMessage() for row in caplog.records if row.levelname == "WARNING"]
        assert sum("redis cannot be reached (ConnectionError)" in text for text in said) == 1

        server.start()
        await eventually(lambda: store.status().connected)
    finally:
        await store.aclose()
        server.close()


async def test_a_slow_redis_is_asked_but_not_waited_for(server: RedisServer) -> None:
    """Three pipelines in a row above the patience: requests stop waiting until answers are quick again."""
    async with replicas(server.url, patience=0.02, deadline=5.0) as (store,):
        slow = Command(None, "", ("BLPOP", "nothing", "0.05"))
        for _ in range(3):
            reply = store._quota.submit(slow)
            assert reply
            await reply
        assert not store.prompt
        assert store.status().connected

        for _ in range(100):
            await reserve(store)
            if store.prompt:
                break
        else:
            pytest.fail("quick answers did not bring patience back")


async def test_forgotten_scripts_are_sent_again(server: RedisServer) -> None:
    """REDIS-06: SCRIPT FLUSH under load loses no question."""
    async with replicas(server.url, 2) as stores:
        grants = []
        for _ in range(20):
            server.script_flush()
            grants += await asyncio.gather(*(reserve(store, capacity=1000) for store in stores))

        assert [grant.units for grant in grants if grant] == [1] * 40
        assert all(store.status().connected for store in stores)


async def test_a_flushed_redis_counts_anew_and_says_so(server: RedisServer) -> None:
    """FLUSHALL shows as another epoch, and views and membership are back with the next exchange."""
    async with replicas(server.url, 2) as (a, b):
        first = await reserve(a)
        server.flush()
        second = await reserve(a)
        assert first
        assert second
        assert first.epoch != second.epoch

        await a.sync()
        await b.sync()
        await a.sync()
        assert (a.replicas, b.replicas) == (2, 2)


async def test_others_views_end_with_the_connection(server: RedisServer) -> None:
    """What cannot be renewed is not believed for longer than its time to live."""
    async with replicas(server.url, view_ttl=1.5) as (store,):
        other = make_store(server.url, "other", interval=3600.0)
        await other.start(lambda: View(keys={"alpha": 1}))
        await store.sync()
        assert store.others.keys == {"alpha": 1}

        server.kill()
        await eventually(lambda: store.others.keys == {})
        assert store.replicas == 2
        await other.aclose()


async def test_decisions_wait_for_recovery_within_bounds(server: RedisServer) -> None:
    """The log's buffer is bounded while Redis is lost, and what it holds is sent afterwards."""
    async with replicas(server.url) as (store,):
        server.kill()
        for _ in range(THRESHOLD):
            await store.sync()
        for i in range(5000):
            store.append(b"%d" % i)
        assert await store.recent(2) == [b"4999", b"4998"]
        assert store.status().object()["dropped"] == 5000 - 4096
        assert await store.share("lengths", b"x") is None

        server.start()
        await eventually(lambda: store._bulk.link.allows())
        await store.sync()
        assert await store.recent(1) == [b"4999"]
        assert int(server.command("XLEN", "gateway:decisions").strip(":\r\n")) == 4096


async def test_a_fault_in_the_view_does_not_end_the_exchange(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The background task outlives what it calls."""
    calls = 0

    def view() -> View:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("broken")
        return View()

    store = make_store(server.url, interval=0.01)
    await store.start(view)
    await eventually(lambda: calls > 3)
    await store.aclose()

    assert "an exchange of views failed" in caplog.text
