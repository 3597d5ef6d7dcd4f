"""What the gateway adds to a real engine's answers: each request once directly and once through a gateway before it.

    python -m tests.benchmarks.gpu_latency --engine http://127.0.0.1:9001 --model gemma-4-e4b
        [--clients 1,8] [--pairs 100] [--tokens 1,64] [--json FILE]

Every client sends its pairs one request at a time and in turns first directly, first through the gateway, so that both
sides meet the same engine under the same load. What is told is the median of the pairs' differences with quartiles:
until the first token, of the whole answer, per further token.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import yaml

from gateway.bench.client import Endpoint, Target
from gateway.bench.probes import forced
from gateway.bench.rows import Row
from gateway.bench.sources import filler
from tests.benchmarks.gpu_figures import tell
from tests.benchmarks.process import Child, free_ports, python_module

PROMPT = 200.0
WARM = 5
"""Pairs of each client that are not counted."""


async def pairs(
    direct: Endpoint, through: Endpoint, *, clients: int, number: int, tokens: int
) -> list[tuple[Row, Row]]:
    """Rows (direct, through) without errors."""
    found: list[tuple[Row, Row]] = []

    async def client(index: int) -> None:
        rng = Random(f"{clients} {tokens} {index}")
        for turn in range(-WARM, number):
            body = forced(tokens, filler(PROMPT, rng), rng.randrange(2**31))
            sides = (direct, through) if (turn + index) % 2 else (through, direct)
            rows = {side: await side.ask(body) for side in sides}
            if turn >= 0 and not any(row.error for row in rows.values()):
                found.append((rows[direct], rows[through]))

    await asyncio.gather(*(client(index) for index in range(clients)))
    return found


def differences(found: Sequence[tuple[Row, Row]]) -> dict[str, Any]:
    """Milliseconds: medians of each side, and of the differences with their quartiles."""
    made: dict[str, Any] = {"pairs": len(found)}
    firsts = [(1000 * a.first, 1000 * b.first) for a, b in found if a.first is not None and b.first is not None]
    totals = [(1000 * a.total, 1000 * b.total) for a, b in found]
    tpots = [(1000 * a.tpot, 1000 * b.tpot) for a, b in found if a.tpot is not None and b.tpot is not None]
    for name, rows in (("ttft_ms", firsts), ("total_ms", totals), ("tpot_ms", tpots)):
        if len(rows) > 1:
            low, middle, high = quantiles([through - direct for direct, through in rows], n=4)
            about = {"direct": median(a for a, _ in rows), "through": median(b for _, b in rows)}
            about |= {"added": middle, "added_low": low, "added_high": high}
            made[name] = {key: round(value, 3) for key, value in about.items()}
    return made


async def measure(options: argparse.Namespace, port: int) -> list[dict[str, Any]]:
    sides = (("direct", options.engine), ("gateway", f"http://127.0.0.1:{port}"))
    direct, through = [
        await Endpoint(Target(label=label, url=url, model=options.model), monotonic).open() for label, url in sides
    ]
    rows = []
    try:
        for clients, tokens in product(options.clients, options.tokens):
            number = max(options.pairs // clients, 2)
            found = await pairs(direct, through, clients=clients, number=number, tokens=tokens)
            rows.append({"clients": clients, "tokens": tokens, **differences(found)})
            print(rows[-1], file=sys.stderr, flush=True)
    finally:
        await direct.aclose()
        await through.aclose()
    return rows


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, metavar="URL")
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", type=_counts, default=[1, 8], metavar="N,...")
    parser.add_argument("--tokens", type=_counts, default=[1, 64], metavar="N,...")
    parser.add_argument("--pairs", type=int, default=100, help="of each number of clients, together")
    parser.add_argument("--note", default="", help="hardware and engine, kept with the figures")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    policy = {
        "version": 1,
        "pools": {"plain": {"endpoints": [options.engine]}},
        "models": {options.model: {"pools": ["plain"]}},
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(yaml.safe_dump(policy), "utf-8")
        [port] = free_ports(1)
        argv_ = python_module("gateway", "serve", "--policy", str(path), "--port", str(port), "--workers", "1")
        with Child(argv_, Path(folder) / "gateway.log") as child:
            child.wait_until(lambda: _ready(port), 60.0)
            rows = asyncio.run(measure(options, port))
    tell({"note": options.note, "rows": rows}, options.json)
    return 0


def _ready(port: int) -> bool:
    async def ask() -> bool:
        endpoint = Endpoint(Target(label="", url=f"http://127.0.0.1:{port}"), monotonic)
        try:
            return await endpoint.ready()
        finally:
            await endpoint.aclose()

    return asyncio.run(ask())


if __name__ == "__main__":
    sys.exit(main())
