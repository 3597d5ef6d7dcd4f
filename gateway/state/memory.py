"""The default store: this process's memory. Only learned state is shared, through snapshot files if there are any.

Limits hold per process. For several processes behind one address without Redis, set `replicas`, so that each process
takes its part of every limit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

from gateway.state.snapshot import Snapshots
from gateway.state.store import Ask, Grant, Others, Status, View


class MemoryStore:
    """A `Store` without I/O, apart from the snapshots."""

    shared = False
    prompt = False
    patience = 0.0
    others = Others()

    def __init__(
        self,
        *,
        replicas: int = 1,
        snapshots: Snapshots | None = None,
        log_length: int = 10_000,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.replicas = max(replicas, 1)
        self._snapshots = snapshots
        self._log: deque[bytes] = deque(maxlen=log_length)
        self._since = wall()

    async def start(self, view: Callable[[], View]) -> None:
        """There is nobody to tell."""

    async def aclose(self) -> None:
        """There is nothing to close."""

    def status(self) -> Status:
        return Status(home="memory", connected=True, since=self._since, replicas=self.replicas)

    def reserve(self, ask: Ask) -> asyncio.Future[Grant | None] | None:
        return None

    def give_back(self, bucket: str, units: int, slot: int) -> None:
        """Nothing was granted."""

    async def share(self, name: str, blob: bytes | None) -> Mapping[str, bytes]:
        if self._snapshots is None:
            return {}
        return await asyncio.to_thread(self._snapshots.exchange, name, blob)

    def append(self, entry: bytes) -> None:
        self._log.append(entry)

    async def recent(self, limit: int) -> list[bytes]:
        newest = list(self._log)[-limit:] if limit > 0 else []
        return newest[::-1]
