"""Chooses the store from the settings: the one place that knows both."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from gateway.state.memory import MemoryStore
from gateway.state.snapshot import Snapshots
from gateway.state.store import Store


def open_store(
    redis_url: str,
    *,
    redis_wait: float | None = None,
    replica: str,
    rng: Random,
    processes: int = 1,
    snapshots: Snapshots | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Store:
    """Redis if there is a URL, else memory. Nothing connects before `start`.

    `replica` must differ between processes and should be the same after a restart (such as host name and worker
    number), so that a process finds its own learned state again. `processes` divides limits in memory. `redis_wait` is
    in seconds, see `Store.patience`.

    Raises InvalidSetting for a URL that cannot be read.
    """
    if not redis_url:
        return MemoryStore(replicas=processes, snapshots=snapshots, wall=wall)
    # The client's import is a good part of the start, and is for those who have a Redis.
    from gateway.state.redis import DEFAULTS, RedisStore
    from gateway.state.redis_connect import read_url

    settings = DEFAULTS if redis_wait is None else DEFAULTS.waiting(redis_wait)
    return RedisStore(read_url(redis_url), replica=replica, rng=rng, settings=settings, clock=clock, wall=wall)
