"""The measurements behind a speed profile: waves of forced length, lone prompts, joining prompts, acceptance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

from gateway.bench.client import Endpoint, accepted
from gateway.bench.drive import Body, closed, require, wave
from gateway.bench.fit import Point
from gateway.bench.rows import Row
from gateway.bench.sources import class_prompts, filler
from gateway.bench.stall import JOINED_TOKENS, RUNNING_TOKENS, Stall, measure
from gateway.telemetry.spec_decode import Acceptance

CLASS_TOKENS = 128
STEADY = 64
"""Least answer length, in tokens, that is used for the step time."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Plain and MTP rows of waves of `concurrency` requests with answers of `tokens` tokens."""

    concurrency: int
    tokens: int
    plain: tuple[Row, ...]
    mtp: tuple[Row, ...]
    acceptance: Acceptance | None

    @property
    def seconds(self) -> tuple[float, float]:
        """(plain, MTP) seconds of a whole answer: the mean of each wave, then the median over waves."""
        return self._typical(self.plain), self._typical(self.mtp)

    @property
    def speedup(self) -> float:
        plain, mtp = self.seconds
        return plain / mtp

    def _typical(self, rows: Sequence[Row]) -> float:
        waves = [rows[i : i + self.concurrency] for i in range(0, len(rows), self.concurrency)]
        return median(_mean([row.total for row in wave]) for wave in waves)

    def points(self, k: int) -> list[Point]:
        """The step time on each side. The MTP engine counts its steps; a plain step makes one token."""
        found = []
        drafts = self.acceptance.drafts / len(self.mtp) if self.acceptance else None
        for depth, rows, steps in ((0, self.plain, float(self.tokens - 1)), (k, self.mtp, drafts)):
            spans = [row.last - row.first for row in rows if row.last is not None and row.first is not None]
            if spans and steps:
                context = _mean([row.prompt_tokens + row.tokens / 2 for row in rows])
                found.append(Point(depth, float(self.concurrency), context, _mean(spans) / steps))
        return found


def forced(tokens: int, content: str, seed: int, temperature: float = 0.0) -> Body:
    """A request whose answer has exactly `tokens` tokens on vLLM."""
    return {
        "messages": [{"role": "user", "content": content}],
        "temperature": temperature,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "seed": seed,
    }


class Prober:
    """Sends the probes to a plain and an MTP endpoint."""

    def __init__(self, plain: Endpoint, mtp: Endpoint, prompt_tokens: int, seed: int, temperature: float = 0.0) -> None:
        self._plain = plain
        self._mtp = mtp
        self._prompt_tokens = prompt_tokens
        self._temperature = temperature
        self._rng = Random(seed)

    async def warm_up(self, concurrency: int) -> None:
        bodies = self._bodies(concurrency, 8)
        await asyncio.gather(*(wave(endpoint, bodies) for endpoint in (self._plain, self._mtp)))

    async def cell(self, concurrency: int, tokens: int, runs: int, *, counted: bool) -> Cell:
        """Alternating waves of the same prompts on both sides; `counted` also reads the drafting counters."""
        plain: list[Row] = []
        mtp: list[Row] = []
        before = await self._mtp.counters() if counted else {}
        for run in range(runs):
            bodies = self._bodies(concurrency, tokens)
            sides = [(self._plain, plain), (self._mtp, mtp)]
            for endpoint, rows in sides if run % 2 else reversed(sides):
                rows += await wave(endpoint, bodies, f"{concurrency} x {tokens}")
        what = f"{concurrency} at a time, {tokens} tokens"
        plain, mtp = require(plain, what), require(mtp, what)
        found = accepted(mtp, before, await self._mtp.counters() if counted else {})
        return Cell(concurrency, tokens, tuple(plain), tuple(mtp), found)

    async def prefill(self, lengths: Sequence[int], runs: int) -> list[tuple[bool, float, float]]:
        """(drafting, prompt tokens, TTFT in seconds) of lone prompts: medians, after a warm-up of each."""
        found = []
        for length in lengths:
            rows: dict[bool, list[Row]] = {False: [], True: []}
            for run in range(runs + 1):
                body = self._filled(1, length)
                for endpoint, drafting in ((self._plain, False), (self._mtp, True)):
                    row = require([await endpoint.ask(body, tag="prefill")], "a lone prompt")[0]
                    if run:
                        rows[drafting].append(row)
            for drafting, kept in rows.items():
                seconds = median(row.first or row.total for row in kept)
                found.append((drafting, _mean([row.prompt_tokens for row in kept]), seconds))
        return found

    async def stall(self, endpoint: Endpoint, runs: int) -> Stall:
        """The stall that a joining prompt causes in each of several running answers."""
        return await measure(
            endpoint, lambda: self._filled(RUNNING_TOKENS, 64), lambda: self._filled(1, JOINED_TOKENS), runs
        )

    def _filled(self, tokens: int, prompt: float) -> Body:
        return forced(tokens, filler(prompt, self._rng), self._rng.randrange(2**31), self._temperature)

    async def acceptance(self, name: str, requests: int, concurrency: int) -> Acceptance | None:
        """Acceptance of one class of prompts on the MTP side."""
        prompts = class_prompts(name)
        bodies: list[dict[str, Any]] = [
            {
                "messages": [{"role": "user", "content": prompts[i % len(prompts)]}],
                "temperature": self._temperature,
                "max_tokens": CLASS_TOKENS,
            }
            for i in range(requests)
        ]
        before = await self._mtp.counters()
        rows = require(await closed(self._mtp, bodies, concurrency, tag=name), f"{name} prompts")
        return accepted(rows, before, await self._mtp.counters())

    def _bodies(self, number: int, tokens: int) -> list[Body]:
        prompts = class_prompts("prose")
        return [
            forced(
                tokens,
                f"{filler(self._prompt_tokens, self._rng)}\n\n{prompts[i % len(prompts)]}",
                self._rng.randrange(2**31),
                self._temperature,
            )
            for i in range(number)
        ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
