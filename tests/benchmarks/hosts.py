"""The hosts run: everything is restarted under load, each part on a host of its own, and no request may fail.

    python -m tests.benchmarks.hosts [--clients 24] [--calm 5] [--scale 5] [--json] [--keep FOLDER]

Network namespaces of this machine stand for hosts (`hosts_network`): a client, nginx as in deploy/nginx, three gateways
that share a Redis, two plain and two MTP back ends (`gateway sim`), found by name. Needs root, `ip` and nginx. While
`--clients` clients ask one request after another, each on a new connection:

1. calm, for comparison;
2. each gateway in turn is told to stop (SIGTERM), waited for, started, and waited for until it is ready;
3. so is each plain back end;
4. a third plain back end joins by an edit of the names (no policy is touched), serves, and leaves again;
5. calm.

Every answer is compared with the one that a back end gives directly. Exits with 1 if one is missing, wrong or an error,
if a gateway does not stop with status 0, or if any count of running requests is not 0 in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.benchmarks.chaos_answers import Verdict
from tests.benchmarks.chaos_clients import Crowd, Record, Target, learn_answers
from tests.benchmarks.hosts_fleet import GATEWAYS, MODEL, MTP, PLAIN, SPARE, Fleet, Missing
from tests.benchmarks.hosts_network import NoNetwork
from tests.benchmarks.stats import percentile

PATIENCE = 60.0
FORGETTING = 3.0
"""Seconds after a name has lost a host until that host stops: several times the policy's `refresh`."""


@dataclass(slots=True)
class Result:
    clients: int
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Begin and end of each, by the monotonic clock."""
    records: list[Record] = field(default_factory=list)
    exits: dict[str, list[int]] = field(default_factory=dict)
    spare_served: int = 0
    left_over: dict[str, int] = field(default_factory=dict)
    tracebacks: int = 0

    def object(self) -> dict[str, Any]:
        rows = {name: self._row(*span) for name, span in self.phases.items()}
        failed = [record for record in self.records if record.judged.verdict is not Verdict.OK]
        return {
            "requests": len(self.records),
            "failed": len(failed),
            "verdicts": dict(Counter(record.judged.verdict.value for record in self.records)),
            "left_over": self.left_over,
            "exits": self.exits,
            "spare_served": self.spare_served,
            "tracebacks": self.tracebacks,
            "clients": self.clients,
            "phases": rows,
            "notes": [f"{record.marker} {record.kind}: {record.judged.note}" for record in failed[:20]],
            "violations": self.violations(),
        }

    def _row(self, began: float, ended: float) -> dict[str, float]:
        """The requests that were running at any time of the phase."""
        met = [record for record in self.records if record.started < ended and record.ended > began]
        first = sorted(record.first_byte - record.started for record in met if record.first_byte is not None)
        return {
            "seconds": round(ended - began, 1),
            "requests": len(met),
            "failed": sum(record.judged.verdict is not Verdict.OK for record in met),
            "first_byte_p50_ms": round(1000 * percentile(first, 0.5), 1),
            "first_byte_p99_ms": round(1000 * percentile(first, 0.99), 1),
            "first_byte_max_ms": round(1000 * max(first, default=0.0), 1),
        }

    def violations(self) -> list[str]:
        failed = sum(record.judged.verdict is not Verdict.OK for record in self.records)
        found = [f"{failed} of {len(self.records)} requests failed"] if failed or not self.records else []
        found += [f"{count} requests still counted by {who}" for who, count in self.left_over.items() if count]
        found += [f"{host} stopped with {status}" for host, all_ in self.exits.items() for status in all_ if status]
        if not self.spare_served:
            found.append(f"{SPARE} was never found")
        if self.tracebacks:
            found.append(f"{self.tracebacks} failures inside the gateways")
        return found


async def run(fleet: Fleet, clients: int, calm: float, say: Callable[[str], None]) -> Result:
    """All phases; the load goes on through all of them."""
    result = Result(clients)
    expected = await learn_answers(8000, MODEL, fleet.network.address(PLAIN[0]))
    target = Target(80, MODEL, "", PATIENCE, fleet.network.address("proxy"))
    crowd = Crowd(target, expected, Random(7), leaving=0.0)
    load = asyncio.create_task(crowd.run(clients, "hosts"))

    async def phase(name: str, work: Awaitable[None]) -> None:
        say(name)
        began = time.monotonic()
        await work
        result.phases[name] = (began, time.monotonic())

    try:
        await phase("calm before", asyncio.sleep(calm))
        for host in GATEWAYS:
            await phase(f"restart {host}", asyncio.to_thread(restart_gateway, fleet, host, result))
        for host in PLAIN:
            await phase(f"restart {host}", asyncio.to_thread(restart_back_end, fleet, host))
        await phase("a back end more", grow(fleet, calm, result))
        await phase("and less", shrink(fleet))
        await phase("calm after", asyncio.sleep(calm))
    finally:
        crowd.stop.set()
        await load
    result.records = crowd.records
    result.left_over = await asyncio.to_thread(settled, fleet)
    result.tracebacks = sum(fleet.programs[host].log().count("Traceback (most recent") for host in GATEWAYS)
    return result


def restart_gateway(fleet: Fleet, host: str, result: Result) -> None:
    program = fleet.programs[host]
    result.exits.setdefault(host, []).append(program.stop())
    program.start()
    fleet.wait(lambda: fleet.ready(host, len(PLAIN)), f"{host} is not ready again")


def restart_back_end(fleet: Fleet, host: str) -> None:
    program = fleet.programs[host]
    program.stop()
    program.start()
    for gateway in GATEWAYS:
        fleet.wait(partial(fleet.ready, gateway, len(PLAIN)), f"{gateway} misses {host}")


async def grow(fleet: Fleet, calm: float, result: Result) -> None:
    await asyncio.to_thread(fleet.start_spare)
    fleet.network.resolve({"plain.pools": (*PLAIN, SPARE), "mtp.pools": MTP})
    for gateway in GATEWAYS:
        found = partial(fleet.ready, gateway, len(PLAIN) + 1)
        await asyncio.to_thread(fleet.wait, found, f"{gateway} finds no {SPARE}")
    await asyncio.sleep(calm)
    result.spare_served = await asyncio.to_thread(fleet.served, SPARE)


async def shrink(fleet: Fleet) -> None:
    fleet.network.resolve({"plain.pools": PLAIN, "mtp.pools": MTP})
    await asyncio.sleep(FORGETTING)
    await asyncio.to_thread(fleet.programs[SPARE].stop)


def settled(fleet: Fleet) -> dict[str, int]:
    """What is still counted once everybody had time to say that their requests ended."""
    until = time.monotonic() + 15.0
    while any((found := fleet.left_over()).values()) and time.monotonic() < until:
        time.sleep(0.5)
    return found


def table(found: dict[str, Any]) -> str:
    lines = ["| phase | s | requests | failed | first byte p50 / p99 / max, ms |", "| --- | --- | --- | --- | --- |"]
    for name, row in found["phases"].items():
        times = " / ".join(f"{row[f'first_byte_{which}_ms']:.0f}" for which in ("p50", "p99", "max"))
        lines.append(f"| {name} | {row['seconds']} | {row['requests']} | {row['failed']} | {times} |")
    lines.append("")
    lines.append(
        f"{found['requests']} requests, {found['failed']} failed; {found['spare_served']} went to the new one."
    )
    lines.append("In flight at the end: " + ", ".join(f"{who} {count}" for who, count in found["left_over"].items()))
    return "\n".join([*lines, *found["notes"], *(f"NOT AS IT SHOULD BE: {line}" for line in found["violations"])])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.hosts", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--calm", type=float, default=5.0, metavar="SECONDS", help="length of the quiet phases")
    parser.add_argument("--scale", type=float, default=5.0, help="how much faster than an H200 the back ends play")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave logs there")
    args = parser.parse_args(argv)
    # A signal unwinds the contexts, which take hosts and programs away.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    say: Callable[[str], None] = (lambda text: None) if args.json else (lambda text: print(text, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="gateway-hosts-") as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with Fleet(folder.resolve(), args.scale) as fleet:
                result = asyncio.run(run(fleet, args.clients, args.calm, say))
        except (Missing, NoNetwork, RuntimeError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    found = result.object()
    print(json.dumps(found, indent=2) if args.json else table(found))
    return 1 if found["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
