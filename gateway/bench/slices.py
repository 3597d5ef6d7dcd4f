"""`gateway bench slices`: throughput scaling and interference of one to four back ends that share one GPU.

Throughput: the same closed loop on 1, 2, ... back ends at once; isolated slices scale linearly. Interference: one
latency-critical client with short answers on the first slice, alone and then beside long requests that saturate every
other slice. With full isolation its latencies do not change.
"""

from __future__ import annotations

import argparse
import asyncio
from random import Random
from typing import Any

from gateway.bench.client import Endpoint, Target, UsageError
from gateway.bench.drive import Body, Tick, closed, endless, require
from gateway.bench.rows import Row
from gateway.bench.session import add_common, count, opened, target, through
from gateway.bench.sources import class_prompts, data, filler, published, published_dict
from gateway.bench.summary import change, latencies
from gateway.figures.report import Plot, Report, Series, Table

MOST = 4
CRITICAL_TOKENS = 16
NOISY_PROMPT = 1024.0
QUANTILES = (50, 95, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slice",
        action="append",
        required=True,
        metavar="URL",
        help="a back end on the GPU, or a pool's name with --url; repeat, up to four",
    )
    parser.add_argument("--url", metavar="URL", help="a gateway with one pool per slice")
    parser.add_argument("--concurrency", type=count, default=8, metavar="N", help="requests per slice (%(default)s)")
    parser.add_argument("--max-tokens", type=count, default=256, metavar="N", help="of a long answer (%(default)s)")
    parser.add_argument(
        "--critical", type=count, default=60, metavar="N", help="requests of the latency-critical client (%(default)s)"
    )
    add_common(parser, runs=3)


def make(args: argparse.Namespace) -> Slices:
    """Raises UsageError."""
    if len(args.slice) > MOST or len(set(args.slice)) < len(args.slice):
        raise UsageError(f"name up to {MOST} different back ends, each with --slice URL")
    named = through if args.url else target
    return Slices(args, [named(args, f"slice {i}", name) for i, name in enumerate(args.slice)])


class Slices:
    """See the module's docstring."""

    def __init__(self, args: argparse.Namespace, targets: list[Target]) -> None:
        self._targets = targets
        self._concurrency = args.concurrency
        self._runs = 1 if args.quick else args.runs
        self._critical = min(args.critical, 12) if args.quick else args.critical
        self._max_tokens = args.max_tokens
        self._rng = Random(args.seed)
        self._together: dict[int, tuple[list[Row], float]] = {}
        self._quiet: list[Row] = []
        self._beside: list[Row] = []
        self._neighbours: list[Row] = []
        self._simulated: list[str] = []
        self._model = ""
        self.steps = len(targets) + 2

    async def run(self, tick: Tick) -> None:
        async with opened(self._targets, self._simulated) as endpoints:
            self._model = endpoints[0].about.model
            await asyncio.gather(*(closed(e, self._long(self._concurrency), self._concurrency) for e in endpoints))
            for number in range(1, len(endpoints) + 1):
                await self._load(endpoints[:number])
                tick(f"{number} slices at once")
            await self._client(endpoints[0], self._quiet)
            tick("latency-critical client alone")
            if len(endpoints) > 1:
                await self._interfere(endpoints)
            tick("latency-critical client beside noisy neighbours")

    async def _load(self, endpoints: list[Endpoint]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        number = self._concurrency * self._runs
        rows = await asyncio.gather(*(closed(e, self._long(number), self._concurrency) for e in endpoints))
        for found in rows:
            require(found, f"{len(endpoints)} slices at once")
        self._together[len(endpoints)] = [row for found in rows for row in found], loop.time() - began

    async def _interfere(self, endpoints: list[Endpoint]) -> None:
        noise = [
            asyncio.create_task(endless(e, lambda: self._long(1)[0], self._concurrency, self._neighbours))
            for e in endpoints[1:]
        ]
        try:
            await self._client(endpoints[0], self._beside)
        finally:
            for task in noise:
                task.cancel()
            await asyncio.gather(*noise, return_exceptions=True)

    async def _client(self, endpoint: Endpoint, into: list[Row]) -> None:
        """One client with short answers; its first request is a warm-up."""
        asks = [ask for task in ("classification", "short_qa") for ask in data("prompts")["tasks"][task]["asks"]]
        for index in range(self._critical + 1):
            body = {
                "messages": [{"role": "user", "content": asks[index % len(asks)]}],
                "temperature": 0,
                "max_tokens": CRITICAL_TOKENS,
                "ignore_eos": True,
            }
            row = await endpoint.ask(body, tag="critical")
            if index:
                into.append(row)
        require(into, "latency-critical client")

    def _long(self, number: int) -> list[Body]:
        """Long prompts that are in no prefix cache, with long answers."""
        prompts = class_prompts("prose")
        return [
            {
                "messages": [{"role": "user", "content": filler(NOISY_PROMPT, self._rng) + "\n\n" + ask}],
                "temperature": 0,
                "max_tokens": self._max_tokens,
                "ignore_eos": True,
            }
            for ask in (prompts[i % len(prompts)] for i in range(number))
        ]

    def report(self) -> Report:
        scaling = [self._scale(number) for number in sorted(self._together)]
        interference = _interference(self._quiet, self._beside)
        return Report(
            name="slices",
            title=f"{len(self._targets)} slices: {self._model}",
            intro=f"{self._concurrency} requests per slice, prompts of about {NOISY_PROMPT:g} tokens, answers "
            f"of {self._max_tokens}; latency-critical client: answers of {CRITICAL_TOKENS} tokens.",
            findings=_findings(scaling, interference, len(self._targets)),
            tables=(_scaling_table(scaling), _interference_table(interference), published("slices")),
            plots=(_plot(scaling),),
            data={
                "model": self._model,
                "slices": len(self._targets),
                "concurrency": self._concurrency,
                "scaling": scaling,
                "interference": interference,
                "neighbour_requests": len(self._neighbours),
                "published": published_dict("slices"),
            },
            simulated=tuple(self._simulated),
        )

    def _scale(self, number: int) -> dict[str, Any]:
        rows, seconds = self._together[number]
        good = [row for row in rows if not row.error]
        rate = sum(row.tokens for row in good) / seconds
        one_rows, one_seconds = self._together[min(self._together)]
        one = sum(row.tokens for row in one_rows) / one_seconds
        times = latencies(good, (50, 99))
        return {
            "slices": number,
            "tok_s": round(rate, 2),
            "requests_s": round(len(good) / seconds, 4),
            **{name: times[name] for name in ("e2e_p50_ms", "e2e_p99_ms", "tpot_p50_ms", "tpot_p99_ms")},
            "efficiency": round(rate / (number * one), 4) if one else None,
            "errors": len(rows) - len(good),
        }


def _interference(quiet: list[Row], beside: list[Row]) -> dict[str, Any]:
    """Latencies of the latency-critical client, alone and beside neighbours, and their ratios."""
    found: dict[str, Any] = {
        "alone": latencies(quiet, QUANTILES),
        "beside": latencies(beside, QUANTILES) if beside else None,
        "ratio": None,
    }
    if quiet and beside:
        found["ratio"] = {
            name: round(found["beside"][name] / value, 4) for name, value in found["alone"].items() if value
        }
    return found


def _scaling_table(scaling: list[dict[str, Any]]) -> Table:
    names = ("slices", "tok_s", "requests_s", "e2e_p50_ms", "e2e_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
    rows = [
        (*(f"{row[name]:g}" if row[name] is not None else "-" for name in names), _share(row["efficiency"]),
         str(row["errors"]))
        for row in scaling
    ]  # fmt: skip
    columns = ("slices at once", "tok/s", "requests/s", "whole, p50 ms", "p99 ms", "TPOT, p50 ms", "p99 ms", "of ideal",
               "errors")  # fmt: skip
    return Table("Measured throughput", columns, tuple(rows))


def _interference_table(found: dict[str, Any]) -> Table:
    beside, grown = found["beside"] or {}, found["ratio"] or {}
    rows = [
        (
            name.removesuffix("_ms").replace("_", " "),
            "-" if value is None else f"{value:.2f}",
            f"{beside[name]:.2f}" if beside.get(name) is not None else "-",
            change(grown.get(name)),
        )
        for name, value in found["alone"].items()
    ]
    note = "" if found["beside"] else "Interference needs a second --slice."
    columns = ("latency-critical client", "alone, ms", "beside noisy neighbours, ms", "change")
    return Table("Measured interference", columns, tuple(rows), note)


def _findings(scaling: list[dict[str, Any]], interference: dict[str, Any], slices: int) -> tuple[str, ...]:
    found = []
    if len(scaling) == slices > 1:
        last = scaling[-1]
        found.append(
            f"{slices} slices give {last['tok_s']:g} tok/s, {_share(last['efficiency'])} of {slices} times one"
        )
    if grown := interference["ratio"]:
        found.append(f"a noisy neighbour changes the latency-critical p99 by {change(grown.get('e2e_p99_ms'))}")
    return tuple(found)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _plot(scaling: list[dict[str, Any]]) -> Plot:
    measured = tuple((float(row["slices"]), row["tok_s"]) for row in scaling)
    ideal = tuple((x, x * measured[0][1]) for x, _ in measured) if measured else ()
    series = (Series("measured", measured), Series("n times one slice", ideal, published=True))
    return Plot("Throughput by slices", "slices at once", "tokens per second", series)
