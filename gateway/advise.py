"""`gateway advise`: reads the back ends' counters for a while and says per pool whether drafting pays, and which k.

It sends no requests. What it judges is the traffic that runs anyway, between its first and its last look; the counts
since each engine's start stand beside it, for a fleet that is idle just now. When drafting pays is told by the speed
profiles with the acceptance and the load that were measured; a running gateway's `/gateway/pools` tells the same by
what it has learned from its requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gateway.app import make_connector
from gateway.discovery.follow import follower
from gateway.discovery.keeper import Discovery
from gateway.logs import configure
from gateway.policy.load import load_argument
from gateway.policy.schema import Policy
from gateway.routing.router import Router
from gateway.routing.state import RoutingState
from gateway.settings import number
from gateway.telemetry.checklist import MtpReport
from gateway.telemetry.spec_decode import acceptance
from gateway.telemetry.tpot import DEVIATIONS
from gateway.upstream.connect import connect
from gateway.upstream.pools import Pools
from gateway.watch import Watch

PLAIN_WIDTH = 120
"""Columns where there is no terminal to tell."""
STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", required=True, metavar="FILE", help="the policy file; - reads standard input")
    parser.add_argument(
        "--seconds",
        type=_some_seconds,
        default=60.0,
        help="how long to look (default 60); a loss must last for a 20th of `mtp.window`, 30 s by default, to count",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _some_seconds(text: str) -> float:
    seconds = number(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def main(args: argparse.Namespace) -> int:
    configure("text", "warning")
    policy = load_argument(args.policy, os.environ, sys.stdin.buffer)
    console = Console()
    found = asyncio.run(look(policy, max(args.seconds, 2.0), quiet=args.json or not console.is_terminal))
    if args.json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
    elif found["reached"]:
        show(found, console if console.is_terminal else Console(width=PLAIN_WIDTH))
    if not found["reached"]:
        print(
            "gateway: no endpoint of the policy could be read, for the reasons above; are the back ends up?",
            file=sys.stderr,
        )
        return 1
    return 0


async def look(policy: Policy, seconds: float, *, quiet: bool = True) -> dict[str, Any]:
    """Scrapes every endpoint for `seconds`; what was seen, JSON-ready."""
    clock, rng = time.monotonic, Random()
    pools = Pools(make_connector, rng, clock)
    discovery = Discovery(follower(os.environ, rng))
    pools.apply(discovery.fill(policy))
    discovery.on_change = lambda: pools.apply(discovery.fill(policy))
    state = RoutingState(clock, rng, pools)
    router = Router(policy, state)
    watch = Watch(pools, policy.models.values, lambda: policy.mtp, state.curves, clock)
    finding = asyncio.create_task(discovery.run())
    scraping = asyncio.create_task(
        watch.run(lambda url: connect(url, host=discovery.host_of(url)), discovery.host_of, rng)
    )
    try:
        for _ in track(range(round(seconds)), "reading counters", disable=quiet, transient=True):
            await asyncio.sleep(seconds / round(seconds))
    finally:
        finding.cancel()
        scraping.cancel()
        await asyncio.gather(finding, scraping, return_exceptions=True)
        await pools.aclose()
    endpoints = watch.view.statistics()
    return {
        "seconds": seconds,
        "reached": sum(watch.view.snapshot(e.url) is not None for pool in pools for e in pool.endpoints),
        "pools": [_row(report, watch) for report in watch.checklist.reports()],
        "slices": [row.as_dict() for row in watch.slices()],
        "models": router.describe(watch),
        "disagreements": [
            f"{one.pool} {one.url}: the policy says k={one.policy_tokens}, the engine "
            + (f"drafts (k={one.tokens or '?'})" if one.drafting else "does not draft")
            for one in watch.view.disagreements()
        ],
        "endpoints": endpoints,
    }


def _row(report: MtpReport, watch: Watch) -> dict[str, Any]:
    names = {pool.name: pool.policy.model for pool in watch.view.pools()}
    served = names[report.pool] or report.model
    since_start = acceptance(watch.view.spec_totals().get(served, {}))
    return {**report.as_dict(), "since_start": since_start.as_dict() if since_start else None}


def show(found: dict[str, Any], console: Console) -> None:
    """The findings for people."""
    if not found["pools"]:
        console.print(
            "no pool drafts, neither by the policy nor by its engines' counters: there is nothing to advise; "
            "a pool that drafts has `speculative: {method: mtp, tokens: 2}`",
            highlight=False,
            markup=False,
        )
        return
    table = Table(title=f"drafting over {found['seconds']:g} s of traffic", title_justify="left", box=SIMPLE_HEAD)
    for column in ("pool", "model", "k", "state", "acceptance", "tokens/step", "by position", "TPOT gain"):
        table.add_column(
            column, justify="right" if column in ("k", "acceptance", "tokens/step", "TPOT gain") else "left"
        )
    for row in found["pools"]:
        table.add_row(*_cells(row))
    console.print(table)
    for row in found["pools"]:
        if len(by_load := row["gain_by_load"]) > 1:
            told = ", ".join(map(_at_load, by_load))
            console.print(f"{row['pool']}: TPOT gain by requests beside: {told}", highlight=False)
        for advice in row["advice"]:
            console.print(f"[{STYLES[advice['severity']]}]{row['pool']}[/]: {advice['message']}")
    for pair in found["slices"]:
        if advice := pair["advice"]:
            console.print(f"[{STYLES[advice['severity']]}]slices[/]: {advice['message']}")
    for line in found["disagreements"]:
        console.print(f"[bold red]policy and engine differ[/] {line}")
    slower = {row["pool"] for row in found["pools"] if _loses(row)}
    if any(model["crossovers"] for model in found["models"].values()):
        console.print("by the speed profiles, with the acceptance and the load that were seen:", highlight=False)
    for name, model in found["models"].items():
        for row in model["crossovers"]:
            note = "; but measured slower here, see above" if row["mtp"] in slower else ""
            console.print(f"[bold]{name}[/], {row['plain']} and {row['mtp']}, {row['summary']}{note}", highlight=False)


def _loses(row: dict[str, Any]) -> bool:
    """Whether drafting was measured to cost time, by more than the error."""
    gain = row["gain"]
    return bool(gain and gain["tpot_improvement_ratio"] + DEVIATIONS * gain["standard_error"] < 0.0)


def _at_load(found: dict[str, Any]) -> str:
    low, high = found["running"]
    return f"{low:.0f}-{high:.0f} {found['tpot_improvement_ratio']:+.0%} ({found['source']})"


def _cells(row: dict[str, Any]) -> Sequence[str]:
    seen = row["acceptance"] or row["since_start"]
    note = "" if row["acceptance"] or not seen else " (since start)"
    gain = row["gain"]
    return (
        row["pool"],
        row["model"],
        str(row["tokens"]),
        row["state"],
        f"{seen['acceptance_rate']:.0%}{note}" if seen else "-",
        f"{seen['mean_acceptance_length']:.2f}" if seen else "-",
        " ".join(f"{rate:.0%}" for rate in seen["position_acceptance_rates"]) if seen else "-",
        f"{gain['tpot_improvement_ratio']:+.0%}" if gain else "-",
    )
