"""The gateway's ways to route against each other, before real plain and MTP engines, under the same arrivals.

    python -m tests.benchmarks.gpu_arms --card http://127.0.0.1:9001,http://127.0.0.1:9002
        --card http://127.0.0.1:9003,http://127.0.0.1:9004 --model gemma-4-e4b --profile h200/e4b
        [--rates 8,20,40] [--rounds 2] [--seconds 12] [--json FILE]

Each `--card` names the plain and the MTP engine that share one GPU. An arm uses one engine of each card, so that every
arm has the same hardware: all-plain the plain ones, all-MTP the others, the arms that choose the plain ones of the
first half of the cards and the MTP ones of the second half. An engine without requests leaves the GPU to the other.

Every arm is a gateway process of its own, which starts from the profile and learns from its own traffic only. An
unrecorded warm-up comes first, then rounds over all rates and arms, one at a time; at one rate and round every arm gets
the same requests at the same moments, and the order of the arms turns. Half of the requests ask for a label (8 tokens),
half for a text of 256, 384 or 512 tokens, after filler of about 200 tokens. Only `max_tokens` says how long an answer
may be: engines with random weights do not stop before. Latency counts from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import yaml

from gateway.bench.client import Endpoint, Target
from gateway.bench.drive import Ask, open_loop
from gateway.bench.rows import Row
from gateway.bench.sources import class_prompts, data, filler
from tests.benchmarks.gpu_figures import figures, pooled
from tests.benchmarks.process import Child, StartFailed, cpu_seconds, family, free_ports, python_module

ARMS = ("all-plain", "all-MTP", "static", "expected_time", "fleet")
SHORT_TOKENS, LONG_TOKENS = 8, (256, 384, 512)
CONTEXT_TOKENS = 200.0
PAUSE = 0.5
"""Seconds between two arms, for the back ends' counters to be read once more."""


@dataclass(frozen=True, slots=True)
class Card:
    """The two engines of one GPU."""

    plain: str
    mtp: str

    @classmethod
    def parse(cls, text: str) -> Card:
        """`PLAIN,MTP`. Raises argparse.ArgumentTypeError."""
        plain, comma, mtp = text.partition(",")
        if not comma:
            raise argparse.ArgumentTypeError("expected the plain and the MTP engine's address, with a comma between")
        return cls(plain, mtp)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the policies of all arms share."""

    cards: tuple[Card, ...]
    model: str
    profile: str | None
    tokens: int
    """k of the MTP engines."""

    def policy(self, arm: str) -> dict[str, Any]:
        """The smallest policy that routes as the arm says; all else stays at its default."""
        half = (len(self.cards) + 1) // 2
        plain, mtp = {"all-plain": (len(self.cards), 0), "all-MTP": (0, len(self.cards))}.get(
            arm, (half, len(self.cards) - half)
        )
        about = {"profile": self.profile} if self.profile else {}
        pools: dict[str, Any] = {}
        if plain:
            pools["plain"] = {"endpoints": [card.plain for card in self.cards[:plain]], **about}
        if mtp:
            drafting = {"speculative": {"method": "mtp", "tokens": self.tokens}}
            pools["mtp"] = {"endpoints": [card.mtp for card in self.cards[-mtp:]], **drafting, **about}
        routing = {} if arm.startswith("all-") else {"routing": {"objective": arm}}
        return {"version": 1, "pools": pools, "models": {self.model: {"pools": list(pools)}}, **routing}


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that answers."""

    arm: str
    port: int
    pid: int

    def get(self, path: str) -> bytes:
        """The body of a GET; empty where there is no good answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except OSError:
            return b""
        finally:
            connection.close()
        return body if answer.status == 200 else b""

    def regret(self) -> dict[str, float]:
        """Seconds saved and lost by its choices so far, by its own speed curves."""
        sums = {"saved": 0.0, "lost": 0.0}
        for line in self.get("/metrics").decode().splitlines():
            for name in sums:
                if line.startswith(f"gateway_routing_{name}_seconds_total"):
                    sums[name] += float(line.rpartition(" ")[2])
        return sums

    def drafting(self) -> list[Any]:
        """What it says of its MTP pools: acceptance, mean acceptance length, gain."""
        reports: list[Any] = json.loads(self.get("/gateway/pools") or b"{}").get("mtp", [])
        return reports


def arrivals(rate: float, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals; the same for the same arguments. A tag is `CLASS/TOKENS`."""
    rng, at, asks = Random(f"{rate} {seconds} {seed}"), 0.0, []
    labels: list[str] = data("prompts")["tasks"]["classification"]["asks"]
    while (at := at + rng.expovariate(rate)) < seconds:
        context = filler(CONTEXT_TOKENS, rng)
        if rng.random() < 0.5:
            tokens, kind, wish = SHORT_TOKENS, "short", rng.choice(labels)
        else:
            tokens, kind, wish = rng.choice(LONG_TOKENS), "long", rng.choice(class_prompts("prose"))
        body = {"messages": [{"role": "user", "content": f"{context}\n\n{wish}"}], "max_tokens": tokens}
        asks.append(Ask(at, body, f"{kind}/{tokens}"))
    return asks


@contextmanager
def gateways(fleet: Fleet, arms: Sequence[str], folder: Path) -> Iterator[list[Running]]:
    """A gateway for each arm, with its policy and its log in the folder. Raises StartFailed."""
    with ExitStack() as stack:
        found = []
        for arm, port in zip(arms, free_ports(len(arms)), strict=True):
            path = folder / f"{arm}.yaml"
            path.write_text(yaml.safe_dump(fleet.policy(arm), sort_keys=False), "utf-8")
            argv = python_module("gateway", "serve", "--policy", str(path), "--port", str(port), "--workers", "1")
            child = stack.enter_context(Child(argv, folder / f"{arm}.log"))
            running = Running(arm, port, child.pid)
            child.wait_until(lambda running=running: bool(running.get("/ready")), 60.0)  # type: ignore[misc]
            found.append(running)
        yield found


async def drive(running: Running, model: str, asks: Sequence[Ask]) -> tuple[list[Row], float]:
    """(rows, the clock's time of the first arrival's start)."""
    rows: list[Row] = []
    target = Target(label=running.arm, url=f"http://127.0.0.1:{running.port}", model=model)
    endpoint = await Endpoint(target, monotonic).open()
    try:
        start = monotonic()
        await open_loop(endpoint, asks, monotonic, rows.append)
    finally:
        await endpoint.aclose()
    return rows, start


def cell(running: Running, model: str, asks: Sequence[Ask], seconds: float, dropped: float) -> dict[str, Any]:
    """One arm under one list of arrivals; those due in the first `dropped` share of the time are not counted."""
    before, busy = running.regret(), cpu_seconds(family(running.pid))
    rows, start = asyncio.run(drive(running, model, asks))
    wall = monotonic() - start
    used = cpu_seconds(family(running.pid)) - busy
    asyncio.run(asyncio.sleep(PAUSE))
    regret = {name: round(value - before[name], 3) for name, value in running.regret().items()}
    counted = [row for row in rows if row.sent >= start + dropped * seconds]
    served = sum(row.tokens for row in rows if not row.error)
    about = {"wall_s": round(wall, 2), "tokens_per_s": round(served / wall, 1), "gateway_cpu": round(used / wall, 3)}
    return {**about, "regret_s": regret, "classes": figures(counted), "rows": counted}


def measure(fleet: Fleet, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All rounds. Raises StartFailed."""
    kept: dict[tuple[float, str], list[dict[str, Any]]] = {}
    arms: list[str] = options.arms
    with gateways(fleet, arms, folder) as running:
        for one in running:
            asks = arrivals(max(options.rates), options.warm_up, -1)
            rows, _ = asyncio.run(drive(one, fleet.model, asks))
            _say(f"warm-up {one.arm}: {len(rows)} requests, {sum(bool(row.error) for row in rows)} errors")
        turn = 0
        for number in range(options.rounds):
            for rate in options.rates:
                asks = arrivals(rate, options.seconds, number)
                for one in running[turn:] + running[:turn]:
                    made = cell(one, fleet.model, asks, options.seconds, options.dropped)
                    kept.setdefault((rate, one.arm), []).append(made)
                    _say(f"round {number + 1}, {rate:g}/s, {one.arm}: {_line(made)}")
                turn = (turn + 1) % len(running)
                if options.json:
                    # What there is survives an end at any moment.
                    options.json.write_text(
                        json.dumps(_result(fleet, options, kept, running), indent=1) + "\n", "utf-8"
                    )
        return _result(fleet, options, kept, running)


def _result(
    fleet: Fleet,
    options: argparse.Namespace,
    kept: dict[tuple[float, str], list[dict[str, Any]]],
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
            "seconds": options.seconds,
            "not_counted": f"arrivals of the first {options.dropped:.0%} of the time",
            "mix": f"half {SHORT_TOKENS} tokens, half one of {', '.join(map(str, LONG_TOKENS))}",
        },
        "cells": [{"rate": rate, "arm": arm, **pooled(made)} for (rate, arm), made in kept.items()],
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
    return [float(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--card", type=Card.parse, action="append", required=True, metavar="PLAIN,MTP")
    found.add_argument("--model", required=True)
    found.add_argument("--profile", help="where the curves start, as h200/e4b (default: the gateway's own)")
    found.add_argument("--k", type=int, default=2, help="tokens that the MTP engines draft (%(default)s)")
    found.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS), metavar="ARM,...")
    found.add_argument("--rates", type=_rates, default=[8.0, 20.0, 40.0], metavar="R,...", help="requests a second")
    found.add_argument("--rounds", type=int, default=2)
    found.add_argument("--seconds", type=float, default=12.0, help="of arrivals, for each arm, rate and round")
    found.add_argument("--dropped", type=float, default=0.2, help="share of the time that is not counted")
    found.add_argument("--warm-up", type=float, default=6.0, metavar="S", help="of arrivals before the first round")
    found.add_argument("--note", default="", help="hardware and engines, kept with the figures")
    found.add_argument("--folder", type=Path, help="keeps the policies and logs (default: a temporary one)")
    found.add_argument("--json", type=Path, metavar="FILE", help="the figures (default: to stdout)")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    fleet = Fleet(tuple(options.card), options.model, options.profile, options.k)
    if len(fleet.cards) < 2:
        print("gpu_arms: an arm that chooses needs two cards (--card)", file=sys.stderr)
        return 2
    try:
        with TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            result = measure(fleet, options, folder)
    except StartFailed as failure:
        print(f"gpu_arms: a gateway {failure}", file=sys.stderr)
        return 1
    text = json.dumps(result, indent=1)
    if options.json:
        options.json.write_text(text + "\n", "utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
