"""What a decode step takes on a real engine as traffic has it: sampling against greedy, prompts joining, streams.

    python -m tests.benchmarks.gpu_steps --engine plain=http://127.0.0.1:9001 --engine mtp=http://127.0.0.1:9002
        --model gemma-4-e4b [--streams 8,32] [--joins 0,10] [--temperatures 0,1] [--seconds 4] [--json FILE]

So many streams of long answers run while prompts of about 256 tokens, whose own answer is `--joined` tokens, join at
even intervals. An engine sends every answer one chunk a step, so the times between a stream's chunks are its steps: the
median is one that nothing joined, the mean has the joins in it, and

    a join costs (mean - median) x chunks of a stream / joins

The engines are measured at the same time, so give each a GPU of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import monotonic
from typing import Any

from gateway.bench.client import Endpoint, Target
from gateway.bench.probes import forced
from gateway.bench.sources import filler
from tests.benchmarks.gpu_figures import tell

LONG = 1024
PROMPT, JOINED_PROMPT = 64.0, 256.0
SETTLE = 1.0
"""Seconds at the start that are not counted: the streams' own prompts."""


class Streams:
    """Answers that run until they are stopped, one after another on each place; the times of their chunks."""

    def __init__(self, endpoint: Endpoint, temperature: float, rng: Random) -> None:
        self._endpoint = endpoint
        self._temperature = temperature
        self._rng = rng
        self.answers: list[list[float]] = []

    def body(self, tokens: int, prompt: float) -> dict[str, Any]:
        found = forced(tokens, filler(prompt, self._rng), self._rng.randrange(2**31))
        return {**found, "temperature": self._temperature}

    async def run(self) -> None:
        while True:
            times: list[float] = []
            self.answers.append(times)
            await self._endpoint.ask(self.body(LONG, PROMPT), seen=times.append)

    async def join(self, tokens: int) -> None:
        await self._endpoint.ask(self.body(tokens, JOINED_PROMPT))


async def condition(
    endpoint: Endpoint, *, streams: int, joins: float, temperature: float, joined: int, seconds: float
) -> dict[str, float]:
    """One engine under one condition."""
    made = Streams(endpoint, temperature, Random(f"{streams} {joins} {temperature}"))
    tasks = [asyncio.create_task(made.run()) for _ in range(streams)]
    begun = monotonic()
    count = 0
    try:
        while (now := monotonic()) < begun + SETTLE + seconds:
            if not joins:
                await asyncio.sleep(begun + SETTLE + seconds - now)
                continue
            tasks.append(asyncio.create_task(made.join(joined)))
            count += now >= begun + SETTLE
            await asyncio.sleep(1.0 / joins)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    gaps = [
        b - a
        for times in made.answers
        for a, b in pairwise(times)
        if begun + SETTLE <= a and b <= begun + SETTLE + seconds
    ]
    calm, mean = 1000 * median(gaps), 1000 * fmean(gaps)
    found = {"streams": streams, "joins_per_s": joins, "temperature": temperature, "step_ms": calm, "mean_ms": mean}
    if count:
        found["join_ms"] = (mean - calm) * len(gaps) / streams / count
    return {name: round(value, 3) for name, value in found.items()}


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    endpoints = [
        await Endpoint(Target(label=n, url=u, model=options.model), monotonic).open() for n, u in options.engine
    ]
    try:
        for temperature, streams, joins in product(options.temperatures, options.streams, options.joins):
            about = {"streams": int(streams), "joins": joins, "temperature": temperature}
            made = await asyncio.gather(
                *(condition(e, **about, joined=options.joined, seconds=options.seconds) for e in endpoints)
            )
            for endpoint, row in zip(endpoints, made, strict=True):
                rows.append({"engine": endpoint.target.label, **row})
                print(rows[-1], file=sys.stderr, flush=True)
            # Cancelled answers leave the engines within a step or two.
            await asyncio.sleep(0.2)
    finally:
        for endpoint in endpoints:
            await endpoint.aclose()
    return rows


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _engine(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("expected NAME=URL")
    return name, url


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=_engine, action="append", required=True, metavar="NAME=URL")
    parser.add_argument("--model", default="")
    parser.add_argument("--streams", type=_numbers, default=[8.0, 32.0], metavar="N,...")
    parser.add_argument("--joins", type=_numbers, default=[0.0, 10.0], metavar="R,...", help="prompts a second")
    parser.add_argument("--temperatures", type=_numbers, default=[0.0, 1.0], metavar="T,...")
    parser.add_argument("--joined", type=int, default=8, metavar="N", help="tokens of a joining prompt's answer")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--note", default="", help="hardware and engines, kept with the figures")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    rows = asyncio.run(measure(options))
    tell({"note": options.note, "joined_tokens": options.joined, "rows": rows}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
