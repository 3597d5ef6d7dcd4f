"""Redis URLs, and the real thing behind each form: one server, a socket, Sentinel, a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline

from gateway.settings import InvalidSetting
from gateway.state.redis_connect import read_url
from tests.redis_server import RedisServer, redis_server
from tests.state.stores import LONG, eventually, hurry, replicas, reserve


@pytest.fixture
def cluster() -> Iterator[RedisServer]:
    with redis_server("--cluster-enabled", "yes") as server:
        server.own_all_slots()
        yield server


async def test_a_socket_and_a_prefix() -> None:
    """unix:// works, and `prefix` keeps two gateways on one server apart."""
    with redis_server() as server:
        url = f"unix://{server.socket}?prefix="
        async with replicas(url + "one") as (a,), replicas(url + "two") as (b,):
            grants = [await reserve(a, need=10), await reserve(b, need=10)]
            assert [grant.units for grant in grants if grant] == [10, 10]
            assert a.replicas == b.replicas == 1


async def test_a_password() -> None:
    """The URL's password is used, and a wrong one is a loss like any other."""
    with redis_server() as server:
        server.command("CONFIG", "SET", "requirepass", "s3cret")
        at = f"127.0.0.1:{server.port}/0"
        async with replicas(f"redis://:s3cret@{at}") as (store,):
            assert store.status().connected
        async with replicas(f"redis://:wrong@{at}") as (store,):
            assert not store.status().connected
            assert store.status().error


async def test_a_cluster_serves_every_verb(cluster: RedisServer) -> None:
    """Keys of different slots go in one batch; scripts, views, log and learned state work as on one server."""
    async with replicas(f"redis+cluster://127.0.0.1:{cluster.port}", 2) as (a, b):
        for i in range(20):
            grant = await reserve(a, bucket=f"k{i}")
            assert grant
            assert grant.units == 1
        cluster.script_flush()
        grant = await reserve(b, bucket="k0", need=10)
        assert grant
        assert grant.units == 9
        a.append(b"entry")
        await a.sync()
        assert await b.recent(5) == [b"entry"]
        assert await b.share("lengths", b"B") == {"b": b"B"}
        assert a.replicas == b.replicas == 2


async def test_a_cluster_node_down_is_a_loss(cluster: RedisServer) -> None:
    """REDIS-04: errors of the cluster client count, and a node that is back is found."""
    url = f"redis+cluster://127.0.0.1:{cluster.port}"
    async with replicas(url, interval=0.02) as (store,):
        assert store.status().connected
        hurry(store, 1.0)
        cluster.kill()
        await eventually(lambda: not store.status().connected)
        assert await reserve(store) is None

        hurry(store, 5.0)
        cluster.start()
        await eventually(lambda: store.status().connected)


def told(server: RedisServer, *words: str) -> str:
    """The reply; nothing where Sentinel cuts the connection, as it does with all of a server whose role ends."""
    try:
        return server.command(*words)
    except ConnectionResetError:
        return ""


async def test_sentinel_finds_the_master_and_its_successor() -> None:
    """REDIS-02: a fail-over is a short loss; afterwards the new master is used."""
    with redis_server() as first, redis_server() as second:
        second.command("REPLICAOF", "127.0.0.1", str(first.port))
        with RedisServer(sentinel_of=first.port) as sentinel:
            url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
            async with replicas(url, interval=0.05) as (store,):
                assert store.status().connected
                hurry(store, 1.0)
                await eventually(lambda: sentinel.command("SENTINEL", "FAILOVER", "main").startswith("+OK"))
                await eventually(lambda: "role:master" in told(second, "INFO", "replication"))
                await eventually(lambda: "role:slave" in told(first, "INFO", "replication"))
                await eventually(lambda: store.status().connected and ":1" in told(second, "EXISTS", "gateway:views"))

                hurry(store, LONG)
                grant = await reserve(store)
                assert grant
                assert grant.units == 1
                assert ":1" in second.command("EXISTS", "gateway:limit:k:requests")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "begins with http://"),
        ("redis+ring://host", "begins with redis+ring://"),
        ("redis+sentinel://user:s3cret@host", "names no master"),
        ("redis+cluster://host,,other", "empty host"),
        ("redis://user:s3cret@host:port", "cannot be read"),
        ("redis://user:s3cret@host?socket_timeout=soon", "cannot be read"),
        ("host:6379", "begins with"),
    ],
)
def test_a_url_that_cannot_be_used_says_why(url: str, words: str) -> None:
    """The message names the fault and the forms, and never quotes a password."""
    with pytest.raises(InvalidSetting) as caught:
        read_url(url)

    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "pipeline"),
    [
        ("rediss://user:s3cret@host:6380/2?ssl_cert_reqs=none", Pipeline),
        ("rediss+sentinel://:s3cret@a,b:1/main/3?sentinel_password=s3cret", Pipeline),
        ("rediss+cluster://user:s3cret@a,b", ClusterPipeline),
        ("unix:///run/redis.sock?db=2", Pipeline),
    ],
)
async def test_a_client_is_made_of_every_form(url: str, pipeline: type) -> None:
    """Making a client connects nowhere; a cluster's sends its commands to the nodes that have the keys."""
    client = read_url(url).connect(0.1)
    made = client.pipeline()
    await client.aclose()

    assert type(made) is pipeline
