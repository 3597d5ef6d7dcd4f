"""Measures the stall that a joining prompt causes in the answers that run beside it.

Several answers run. After `CALM` undisturbed chunks of each, a prompt with a one-token answer joins; after the same
calm the next one, and so on. An engine sends one chunk per answer and step, so the time between chunks is the step
time, however many tokens drafting put into it. Random acceptance, which changes an answer's total time far more than a
prompt does, therefore has no effect. With chunk times t of an answer, a the last chunk before the prompt was sent and b
the `AFTER`th chunk after its answer:

    stall = (t_b - t_a) - (b - a) (t_a - t_(a-CALM)) / CALM

All running answers wait for the same step, so the stall of a join is the median over them. The result is the
interquartile mean over the joins, which is robust to hiccups of client and host; the quartiles give the spread.
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
"""Running answers."""
JOINS = 8
"""Prompts that join each batch of running answers."""
JOINED_TOKENS = 256.0
RUNNING_TOKENS = 768
"""Maximum length; running answers are cancelled when all prompts have joined."""
CALM = 8
"""Chunks before a join that give the undisturbed step time."""
AFTER = 2
"""Chunks after a join's answer that still count: an engine that schedules ahead is late by one more step."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Seconds that a joining prompt adds to each running answer."""

    seconds: float
    """Never below zero."""
    low: float
    """`low` and `high` are the quartiles over the joins, as measured."""
    high: float
    joins: int
    running: int = RUNNING

    @classmethod
    def of(cls, values: Sequence[float]) -> Stall:
        """From the stall of each join, in seconds. Raises BenchError if there is none."""
        if not values:
            raise BenchError("no prompt could be measured beside running answers: they ended too early")
        ordered = sorted(values)
        cut = len(ordered) // 4
        low, _, high = quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
        return cls(max(fmean(ordered[cut : len(ordered) - cut]), 0.0), low, high, len(ordered))

    def as_dict(self) -> dict[str, float]:
        """In milliseconds."""
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
    """The stall of each join in seconds; `times` are the chunk times per running answer, a join is (sent, answered).

    A join is left out if no answer has enough chunks around it.
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
    """Collects the chunk times of the running answers."""

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
        """Waits for `chunks` more chunks of every answer; False if an answer ends first."""
        wanted = [len(times) + chunks for times in self.times]
        while not self._over and any(len(t) < n for t, n in zip(self.times, wanted, strict=True)):
            self._moved.clear()
            await self._moved.wait()
        return not self._over


async def measure(endpoint: Endpoint, running: Callable[[], Body], joining: Callable[[], Body], runs: int) -> Stall:
    """Measures over `runs` batches of `RUNNING` answers, each joined by `JOINS` prompts. Raises BenchError."""
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
        # The running answers' own prefills stall each other, so the first chunks are not calm.
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
