"""State in memory, and which home the settings mean."""

from __future__ import annotations

from pathlib import Path
from random import Random

from gateway.state.home import open_store
from gateway.state.memory import MemoryStore
from gateway.state.redis import RedisStore
from gateway.state.snapshot import Snapshots
from gateway.state.store import Ask, View


async def test_memory_shares_nothing_and_says_so() -> None:
    """Every verb works without a home elsewhere: limits are local, the log is bounded, learned state needs files."""
    store = MemoryStore(replicas=3, log_length=2, wall=lambda: 5.0)
    await store.start(View)
    store.give_back("k", 1, 0)
    for entry in (b"1", b"2", b"3"):
        store.append(entry)

    assert store.reserve(Ask(bucket="k", capacity=1, window=60.0)) is None
    assert await store.recent(10) == [b"3", b"2"]
    assert await store.recent(1) == [b"3"]
    assert await store.recent(0) == []
    assert await store.share("lengths", b"x") == {}
    assert store.others.replicas == 0
    assert store.status().object() == {"home": "memory", "connected": True, "since": 5.0, "replicas": 3}
    await store.aclose()


async def test_workers_share_learned_state_through_files(tmp_path: Path) -> None:
    """Each worker's blob is in its own file, and all find all."""
    a, b = (MemoryStore(snapshots=Snapshots(tmp_path, f"worker-{i}")) for i in range(2))

    assert await a.share("lengths", b"A") == {"worker-0": b"A"}
    assert await b.share("lengths", b"B") == {"worker-0": b"A", "worker-1": b"B"}
    assert await a.share("lengths", None) == {"worker-0": b"A", "worker-1": b"B"}


def test_the_url_decides_on_the_home() -> None:
    """No URL is memory, divided by the processes; with one it is Redis, and nothing connects yet."""
    memory = open_store("", replica="a", rng=Random(1), processes=4)
    redis = open_store("redis://127.0.0.1:1", replica="a", rng=Random(1))

    assert isinstance(memory, MemoryStore)
    assert memory.replicas == 4
    assert isinstance(redis, RedisStore)
    assert redis.status().object()["connected"] is False
