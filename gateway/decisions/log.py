"""The log of decisions: the last ones in memory and, if the policy asks for it, in a file and in the shared store.

A request costs a copy of some attributes. Rows are made and written once a second, off the event loop. If that is too
slow, rows are lost, the next flush that succeeds logs how many, and no request waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.decisions.file import append_lines
from gateway.decisions.row import Kept, as_row, keep
from gateway.policy.schema import Logging
from gateway.state.store import Store
from gateway.types import Outcome, Result

log = logging.getLogger("gateway.decisions")

RING = 1000
"""Decisions in memory."""
RING_RATE = 100.0
"""Decisions per second that memory keeps in the long run: above it an even sample, and all failures. At 2,000 requests
per second it would otherwise cover half a second, and keeping each would cost a request 6 % more CPU."""
MOST_PENDING = 20_000
"""Rows that may wait to be written."""
FLUSH_SECONDS = 1.0


class DecisionLog:
    """`observe` every outcome; `run` until cancelled."""

    def __init__(
        self,
        policy: Callable[[], Logging],
        store: Store,
        *,
        ring: int = RING,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`policy` is the live policy's `logging` section."""
        self._policy = policy
        self._store = store
        self._wall = wall
        self._ring: deque[Kept] = deque(maxlen=ring)
        self._room = float(RING)
        self._then = 0.0
        self._pending: list[Kept] = []
        self._failing = False
        self._lost = 0
        """Rows that were not written and not yet reported."""

    def observe(self, outcome: Outcome, regret: float | None) -> None:
        """Takes a finished request and its regret in seconds."""
        written = self._store.shared or self._policy().decisions
        shown = self._shows(outcome)
        if not (shown or written):
            return
        kept = keep(outcome, regret, self._wall())
        if shown:
            self._ring.append(kept)
        if written:
            if len(self._pending) < MOST_PENDING:
                self._pending.append(kept)
            else:
                self._lost += 1

    def _shows(self, outcome: Outcome) -> bool:
        """Whether memory keeps this one: a token bucket of `RING`, filled at `RING_RATE`."""
        room = min(self._room + (outcome.ended - self._then) * RING_RATE, RING)
        self._then = outcome.ended
        if room < 1.0 and outcome.result is Result.OK:
            self._room = room
            return False
        self._room = max(room - 1.0, 0.0)
        return True

    def kept(self) -> Sequence[Kept]:
        """The last decisions of this process, oldest first."""
        return tuple(self._ring)

    async def recent(self, limit: int) -> list[dict[str, Any]]:
        """The newest rows, newest first; see `newest`."""
        return (await self.newest(limit))[0]

    async def newest(self, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """The newest rows, newest first, and whether they are those of all replicas: they are if a shared store is
        connected, else they are this process's."""
        store = self._store
        if store.shared and store.status().connected and (shared := await store.recent(limit)):
            return [orjson.loads(line) for line in shared], True
        newest = list(self._ring)[-limit:] if limit > 0 else []
        return [as_row(kept) for kept in reversed(newest)], False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Writes pending rows. A file that cannot be written is reported once, and its rows are lost."""
        batch, self._pending = self._pending, []
        if not batch:
            return
        section = self._policy()
        lines, problem = await asyncio.to_thread(_write, batch, section.decisions, section.decisions_bytes)
        if self._store.shared:
            for line in lines:
                self._store.append(line)
        if problem:
            self._lost += len(lines)
            if not self._failing:
                log.error("decisions cannot be written", extra={"fields": {"path": section.decisions, "why": problem}})
        elif self._lost:
            log.warning("decisions were lost", extra={"fields": {"rows": self._lost}})
            self._lost = 0
        self._failing = problem is not None


def _write(batch: Iterable[Kept], path: str | None, most_bytes: int) -> tuple[list[bytes], str | None]:
    """The lines, and why they could not be written to the file, or None. Runs in a thread."""
    # Copied, as the encoder's result keeps a buffer of several times the row, and rows may wait for the store.
    lines = [bytes(memoryview(orjson.dumps(as_row(kept)))) for kept in batch]
    if path:
        try:
            append_lines(Path(path), lines, most_bytes)
        except OSError as error:
            return lines, error.strerror or str(error)
    return lines, None
