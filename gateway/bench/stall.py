"""What a joining prompt costs the answers that run beside it.

Several answers run. Once all have come along undisturbed for some chunks, a prompt joins whose own answer is one token;
then the next, after the same calm. An engine sends every answer one chunk a step, so the time between two chunks is a
step's, however many tokens drafting has put into it: chance in acceptance, which moves an answer's whole time by far
more than a prompt does, has no part in it. Of an answer's chunk times t, where a is the last chunk before the prompt
was sent and b the `AFTER`th behind its answer:

    stall = (t_b - t_a) - (b - a) (t_a - t_(a-CALM)) / CALM

All running answers stop for the same step, so a join's stall is the median of theirs. A side's stall is the mean of the
middle half of its joins, which a hiccup of the client or of the host does not move; their quartiles are its spread.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median, quantiles

from gateway.bench.client import BenchError, Endpoint
from gateway.bench.drive import Body, require
from gateway.bench.rows import Row

RUNNING = 8
"""Answers that run."""
JOINS = 8
"""Prompts that join one batch of running answers."""
JOINED_TOKENS = 256.0
RUNNING_TOKENS = 768
"""At most; the running answers are dropped when all prompts have joined."""
CALM = 8
"""Chunks before a join, from which a step's undisturbed time is taken."""
AFTER = 2
"""Chunks behind a join's answer that still count to it: an engine that schedules ahead is late once more."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Seconds that a joining prompt adds to a running answer."""

    seconds: float
    """Never below zero."""
    low: float
    """The joins' quartiles, as measured."""
    high: float
    joins: int
    running: int = RUNNING

    @classmethod
    def of(cls, values: Sequence[float]) -> Stall:
        """From the stall of each join. Raises BenchError without any."""
        if not values:
            raise BenchError("no prompt could be measured beside running answers: they ended too early")
        ordered = sorted(values)
        cut = len(ordered) // 4
        low, _, high = quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
        return cls(max(fmean(ordered[cut : len(ordered) - cut]), 0.0), low, high, len(ordered))

    def as_dict(self) -> dict[str, float]:
        """Milliseconds."""
        return {
            "stall_ms": round(1000 * self.seconds, 3),
            "quartile_low_ms": round(1000 * self.low, 3),
            "quartile_high_ms": round(1000 * self.high, 3),
            "joins": self.joins,
            "running": self.running,
        }

    def __str__(self) -> str:
        spread = f"{1000 * self.low:.1f} to {1000 * self.high:.1f}"
        return f"{1000 * self.seconds:.1f} ms (half of {self.joins} joins {spread})"


def stalls(times: Sequence[Sequence[float]], joins: Sequence[tuple[float, float]]) -> list[float]:
    """The stall of each join, seconds: `times` are each running answer's chunks, a join is (sent, answered).

    Joins are left out that no answer has enough chunks around.
    """
    found = []
    for sent, answered in joins:
        seen = []
        for chunks in times:
            before = bisect_right(chunks, sent) - 1
            behind = bisect_left(chunks, answered) + AFTER
            if before >= CALM and behind < len(chunks):
                calm = (chunks[before] - chunks[before - CALM]) / CALM
                seen.append(chunks[behind] - chunks[before] - (behind - before) * calm)
        if seen:
            found.append(median(seen))
    return found


class _Batch:
    """Chunk times of the running answers, and a wait for more of them."""

    def __init__(self) -> None:
        self.times: list[list[float]] = [[] for _ in range(RUNNING)]
        self._over = False
        self._moved = asyncio.Event()

    def chunk(self, index: int, now: float) -> None:
        self.times[index].append(now)
        self._moved.set()

    def ended(self, _: object) -> None:
        self._over = True
        self._moved.set()

    async def further(self, chunks: int) -> bool:
        """Waits until every answer has so many chunks more; False where one has ended before."""
        wanted = [len(times) + chunks for times in self.times]
        while not self._over and any(len(t) < n for t, n in zip(self.times, wanted, strict=True)):
            self._moved.clear()
            await self._moved.wait()
        return not self._over


async def measure(endpoint: Endpoint, running: Callable[[], Body], joining: Callable[[], Body], runs: int) -> Stall:
    """Of so many batches of `RUNNING` answers, each joined by `JOINS` prompts. Raises BenchError."""
    return Stall.of([value for _ in range(runs) for value in await _batch(endpoint, running, joining)])


async def _batch(endpoint: Endpoint, running: Callable[[], Body], joining: Callable[[], Body]) -> list[float]:
    batch = _Batch()
    joins: list[tuple[float, float]] = []
    tasks: list[asyncio.Task[Row]] = []
    for index in range(RUNNING):
        asked = endpoint.ask(running(), tag="stall", seen=partial(batch.chunk, index))
        tasks.append(asyncio.create_task(asked))
        tasks[-1].add_done_callback(batch.ended)
    try:
        # The running answers' own prompts stop each other: the first chunks are not calm.
        calm = await batch.further(CALM)
        while calm and len(joins) < JOINS and await batch.further(CALM + AFTER):
            [row] = require([await endpoint.ask(joining(), tag="stall")], "a joining prompt")
            joins.append((row.sent, row.sent + (row.first or row.total)))
        await batch.further(CALM)
        require([task.result() for task in tasks if task.done()], "running answers")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return stalls(batch.times, joins)
