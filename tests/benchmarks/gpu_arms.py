"""The gateway's ways to route against each other, before real plain and MTP engines, under the same requests.

    python -m tests.benchmarks.gpu_arms --card http://127.0.0.1:9001,http://127.0.0.1:9002
        --card http://127.0.0.1:9003,http://127.0.0.1:9004 --model gemma-4-e4b --profile h200/e4b
        [--mix short=0.4,prose=0.3,code=0.3] [--rates 8,20,40] [--clients 8,48] [--rounds 2] [--json FILE]

Each `--card` names the plain and the MTP engine that share one GPU. An arm uses one engine of each card, so that every
arm has the same hardware: all-plain the plain ones, all-MTP the others, the arms that choose the plain ones of the
first half of the cards and the MTP ones of the second half. An engine without requests leaves the GPU to the other.

Every arm is a gateway process of its own, which starts from the profile and learns from its own traffic only. An
unrecorded warm-up comes first, then rounds over all loads and arms, one at a time; at one load and round every arm gets
the same requests, in an open loop at the same moments, and the order of the arms turns. Only `max_tokens` says how
long an answer may be: engines with random weights do not stop before. In an open loop latency counts from when a
request was due. An arm `NAME-measured` starts from the profile file of `--measured`. `--rows` keeps every request,
also for `gpu_halves`, where one of two cards is simulated. `--trace` plays stretches of real arrivals (`gpu_trace`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from gateway.bench.client import Endpoint, Target
from gateway.bench.drive import Ask, open_loop
from gateway.bench.rows import Row
from gateway.simulate.mixed import Arrival, in_order, poisson
from tests.benchmarks import gpu_trace
from tests.benchmarks.gpu_figures import figures, line, pooled, tell
from tests.benchmarks.gpu_fleet import TOLD, Card, Fleet, Running, gateways
from tests.benchmarks.gpu_traffic import HALVES, asks, parse_shares, told
from tests.benchmarks.process import StartFailed, cpu_seconds, family
from tests.benchmarks.prompts_trace import read, stretch

ARMS = ("all-plain", "all-MTP", "static", "expected_time", "fleet")
ROUNDS_OF_CLIENTS = 6
"""Requests of a closed loop for each of its clients."""
PAUSE = 0.5
"""Seconds between two arms, for the back ends' counters to be read once more."""


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come: so many a second, or from so many clients that wait for each answer."""

    rate: float = 0.0
    clients: int = 0

    def draw(self, options: argparse.Namespace, seed: int) -> list[Arrival]:
        if self.clients:
            return in_order(self.clients * ROUNDS_OF_CLIENTS, seed, options.mix)
        return poisson(self.rate, options.seconds, seed, options.mix)

    def asks(self, options: argparse.Namespace, seed: int, arm: str) -> list[Ask]:
        """The requests of one round, the same for every arm that is told as much."""
        if options.trace:
            rows = stretch(read(options.trace), seed, self.rate, options.seconds, gpu_trace.LONGEST)
            return gpu_trace.asks(rows, seed, options.wishes, told=arm.endswith(TOLD))
        return asks(self.draw(options, seed), seed)

    def as_dict(self) -> dict[str, float]:
        return {"clients": self.clients} if self.clients else {"rate": self.rate}

    def __str__(self) -> str:
        return f"{self.clients} clients" if self.clients else f"{self.rate:g}/s"


async def drive(running: Running, model: str, requests: Sequence[Ask], clients: int = 0) -> list[Row]:
    """The rows in order of their start."""
    rows: list[Row] = []
    target = Target(label=running.arm, url=f"http://127.0.0.1:{running.port}", model=model)
    endpoint = await Endpoint(target, monotonic).open()
    try:
        if clients:
            bodies = iter(requests)

            async def client() -> None:
                for ask in bodies:
                    rows.append(await endpoint.ask(ask.body, tag=ask.tag))

            await asyncio.gather(*(client() for _ in range(clients)))
        else:
            await open_loop(endpoint, requests, monotonic, rows.append)
    finally:
        await endpoint.aclose()
    return sorted(rows, key=lambda row: row.sent)


def cell(running: Running, model: str, load: Load, options: argparse.Namespace, number: int) -> dict[str, Any]:
    """One arm under one load; the first `dropped` share of the requests is not counted."""
    requests = load.asks(options, number, running.arm)
    before, busy, start = running.regret(), cpu_seconds(family(running.pid)), monotonic()
    rows = asyncio.run(drive(running, model, requests, load.clients))
    wall = monotonic() - start
    used = cpu_seconds(family(running.pid)) - busy
    asyncio.run(asyncio.sleep(PAUSE))
    regret = {name: round(value - before[name], 3) for name, value in running.regret().items()}
    first = round(options.dropped * len(rows))
    if options.rows:
        about = {"arm": running.arm, **load.as_dict(), "round": number}
        with options.rows.open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps({**about, **line(row, at >= first)})}\n" for at, row in enumerate(rows))
    counted = rows[first:]
    served = sum(row.tokens for row in rows if not row.error)
    cost = {"wall_s": round(wall, 2), "tokens_per_s": round(served / wall, 1), "gateway_cpu": round(used / wall, 3)}
    return {**cost, "regret_s": regret, "classes": figures(counted), "rows": counted}


def measure(fleet: Fleet, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All rounds. Raises StartFailed."""
    kept: dict[tuple[Load, str], list[dict[str, Any]]] = {}
    arms: list[str] = options.arms
    loads = [*(Load(rate=rate) for rate in options.rates), *(Load(clients=number) for number in options.clients)]
    with gateways(fleet, arms, folder) as running:
        for one in running:
            rows = asyncio.run(drive(one, fleet.model, _warm_up(options, one.arm)))
            _say(f"warm-up {one.arm}: {len(rows)} requests, {sum(bool(row.error) for row in rows)} errors")
        turn = 0
        for number in range(options.first, options.first + options.rounds):
            for load in loads:
                for one in running[turn:] + running[:turn]:
                    made = cell(one, fleet.model, load, options, number)
                    kept.setdefault((load, one.arm), []).append(made)
                    _say(f"round {number + 1}, {load}, {one.arm}: {_line(made)}")
                turn = (turn + 1) % len(running)
                if options.json:
                    # What there is survives an end at any moment.
                    tell(_result(fleet, options, kept, running), options.json)
        return _result(fleet, options, kept, running)


def _warm_up(options: argparse.Namespace, arm: str) -> list[Ask]:
    load = Load(rate=max(options.rates, default=8.0))
    return load.asks(argparse.Namespace(**{**vars(options), "seconds": options.warm_up}), -1, arm)


def _result(
    fleet: Fleet,
    options: argparse.Namespace,
    kept: dict[tuple[Load, str], list[dict[str, Any]]],
    running: Sequence[Running],
) -> dict[str, Any]:
    return {
        "about": {
            "note": options.note,
            "model": fleet.model,
            "profile": fleet.profile,
            "k": fleet.tokens,
            "cards": len(fleet.cards),
            "rounds": options.rounds,
            "first_round": options.first,
            "seconds": options.seconds,
            "not_counted": f"the first {options.dropped:.0%} of the requests",
            "warm_up": options.warm_up,
            **(
                {"mix": f"stretches of {options.trace.stem}, lengths as there", "wishes": options.wishes}
                if options.trace
                else {"mix": told(options.mix), "shares": dict(options.mix)}
            ),
        },
        "cells": [{**load.as_dict(), "arm": arm, **pooled(made)} for (load, arm), made in kept.items()],
        "drafting": {one.arm: one.drafting() for one in running},
    }


def _line(made: dict[str, Any]) -> str:
    parts = [
        f"{name} {row['e2e_ms']['mean']:.0f}/{row['e2e_ms']['p95']:.0f} ms ({row['requests']}, {row['errors']} errors)"
        for name, row in made["classes"].items()
        if row["e2e_ms"]
    ]
    return f"{', '.join(parts)}; {made['tokens_per_s']:.0f} tok/s, gateway {made['gateway_cpu']:.0%} of a core"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def _clients(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--card", type=Card.parse, action="append", required=True, metavar="PLAIN,MTP")
    found.add_argument("--model", required=True)
    found.add_argument("--profile", help="where the curves start, as h200/e4b (default: the gateway's own)")
    found.add_argument("--k", type=int, default=2, help="tokens that the MTP engines draft (%(default)s)")
    found.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS), metavar="ARM,...")
    found.add_argument("--rates", type=_rates, default=[8.0, 20.0, 40.0], metavar="R,...", help="requests a second")
    found.add_argument("--clients", type=_clients, default=[], metavar="N,...", help="of closed loops (none)")
    found.add_argument("--mix", type=parse_shares, default=HALVES, metavar="KIND=SHARE,...", help="short, prose, code")
    found.add_argument("--trace", type=Path, metavar="FILE", help="of real arrivals, in place of a mix")
    found.add_argument("--wishes", choices=("prose", "code"), default="code", help="of the trace (%(default)s)")
    found.add_argument("--measured", metavar="FILE", help="profile file of the arms NAME-measured")
    found.add_argument("--rounds", type=int, default=2)
    found.add_argument("--first", type=int, default=0, metavar="N", help="number of the first round (%(default)s)")
    found.add_argument("--seconds", type=float, default=12.0, help="of arrivals, for each arm, rate and round")
    found.add_argument("--dropped", type=float, default=0.2, help="share of the requests, the first ones, not counted")
    found.add_argument("--warm-up", type=float, default=6.0, metavar="S", help="of arrivals before the first round")
    found.add_argument("--note", default="", help="hardware and engines, kept with the figures")
    found.add_argument("--folder", type=Path, help="keeps the policies and logs (default: a temporary one)")
    found.add_argument("--rows", type=Path, metavar="FILE", help="adds each request as a line of JSON")
    found.add_argument("--json", type=Path, metavar="FILE", help="the figures (default: to stdout)")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    fleet = Fleet(tuple(options.card), options.model, options.profile, options.k, options.measured)
    if len(fleet.cards) < 2:
        print("gpu_arms: an arm that chooses needs two cards (--card)", file=sys.stderr)
        return 2
    if options.trace and options.clients:
        print("gpu_arms: a trace has arrivals of its own (--clients)", file=sys.stderr)
        return 2
    try:
        with TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            result = measure(fleet, options, folder)
    except StartFailed as failure:
        print(f"gpu_arms: a gateway {failure}", file=sys.stderr)
        return 1
    tell(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
