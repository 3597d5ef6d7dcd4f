"""The chaos run: does the gateway lose, double or silently cut anything while everything around it fails?

    python -m tests.benchmarks.chaos [--seconds 300] [--streams 1000] [--seed 1] [--quick] [--json] [--keep FOLDER]

`gateway serve --workers 3` on one port, six simulated back ends (three plain, three MTP) as processes, and a
redis-server. Three parts:

1. One hung: a few clients ask for short answers, first in calm, then while one back end accepts requests and never
   answers, then in calm again. The figure is the 99th percentile of those requests that did not go to the hung back
   end, against the calm of before and after. What became of those that did is told besides.
2. Chaos (`chaos_schedule`): `--streams` clients, of which 30 % of requests leave at random points (`chaos_clients`).
   Each request has an ID that the back ends write down, so the accounting (`chaos_account`) is exact.
3. Peace: everything is healed, the clients have left, and the counts must be back at 0.

Exits with 1 if anything was lost, doubled or cut without a word, if a count stays, or if the gateway failed inside.
Memory and time are judged too, but not with `--quick` (20 s, 60 clients), which runs where others share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.benchmarks.chaos_account import Account, account
from tests.benchmarks.chaos_answers import Verdict
from tests.benchmarks.chaos_backend import MODEL, read_journals, scale_for
from tests.benchmarks.chaos_clients import KINDS, Crowd, Record, Target, learn_answers
from tests.benchmarks.chaos_fleet import BACKENDS, KEY, MTP, PLAIN, Fleet, settings_text
from tests.benchmarks.chaos_schedule import Chaos, Timeline, draw
from tests.benchmarks.process import ending_in_order, family, rss_bytes
from tests.benchmarks.stats import middle, percentile, slope

LEAVING = 0.3
PATIENCE = 120.0
PEACE_SECONDS = 30.0
MOST_ADDED_MS = 50.0
MOST_GROWTH_MB = 30.0
"""Of three workers together. Allocators keep what a peak needed; a leak of one request's state per request would be
hundreds."""


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    streams: int
    seed: int
    workers: int
    scale: float
    calm: float
    """Seconds of each phase of the hung part."""
    first_byte: float
    """The policy's limit, seconds."""
    timed: bool
    """Whether times and memory are judged."""


@dataclass(slots=True)
class Result:
    options: Options
    chaos: Account = field(default_factory=Account)
    happened: dict[str, int] = field(default_factory=dict)
    hung: dict[str, float] = field(default_factory=dict)
    in_flight_at_end: int = -1
    redis_counters_at_end: int = -1
    backend_requests_at_end: int = -1
    internal_errors: int = -1
    rss_growth_mb: float = 0.0
    rss_mb: list[tuple[float, float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def object(self) -> dict[str, Any]:
        chaos = self.chaos
        return {
            "lost": chaos.lost,
            "duplicated": chaos.duplicated,
            "truncated_as_whole": chaos.truncated_as_whole,
            "in_flight_at_end": self.in_flight_at_end,
            "redis_counters_at_end": self.redis_counters_at_end,
            "backend_requests_at_end": self.backend_requests_at_end,
            "internal_errors": self.internal_errors,
            "p99_added_ms_one_hung": round(self.hung["p99_added_ms"], 1),
            "rss_growth_mb": round(self.rss_growth_mb, 1),
            "requests": chaos.requests,
            "verdicts": dict(chaos.verdicts),
            "excused": chaos.excused,
            "failed_over": chaos.failed_over,
            "one_hung": {name: round(value, 1) for name, value in self.hung.items()},
            "answer_seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "happened": self.happened,
            "rss_mb": self.rss_mb,
            "violations": self.violations(),
            "notes": chaos.notes,
            "streams": self.options.streams,
            "seconds": self.options.seconds,
            "seed": self.options.seed,
        }

    def violations(self) -> list[str]:
        """What must not have been."""
        chaos = self.chaos
        counts = {
            "requests lost": chaos.lost,
            "requests duplicated": chaos.duplicated,
            "answers truncated as whole": chaos.truncated_as_whole,
            "requests in flight at the end": self.in_flight_at_end,
            "requests in flight in Redis at the end": self.redis_counters_at_end,
            "requests at the back ends at the end": self.backend_requests_at_end,
            "failures inside the gateway": self.internal_errors,
        }
        found = [f"{count} {name}" for name, count in counts.items() if count]
        if self.options.timed and self.hung["p99_added_ms"] > MOST_ADDED_MS:
            found.append(f"p99 {self.hung['p99_added_ms']:.0f} ms later while one back end hangs")
        if self.options.timed and self.rss_growth_mb > MOST_GROWTH_MB:
            found.append(f"memory grew by {self.rss_growth_mb:.0f} MB")
        return found


async def run(options: Options, folder: Path, say: Callable[[str], None]) -> Result:
    """All three parts on a fleet of its own."""
    result = Result(options)
    settings = settings_text(options.first_byte)
    with Fleet(folder, workers=options.workers, scale=options.scale, settings=settings) as fleet:
        one, other = (learn_answers(fleet.backends[number].port, MODEL) for number in (0, PLAIN))
        expected, drafted = await asyncio.gather(one, other)
        if drafted != expected:
            raise RuntimeError("the plain and the MTP back end give different answers")
        target = Target(fleet.port, MODEL, KEY, PATIENCE)
        say("one of six back ends hangs")
        result.hung = await one_hung(fleet, target, expected, options)
        say(f"chaos for {options.seconds:g} s with {options.streams} clients")
        crowd, timeline, began = await chaos(fleet, target, expected, options, result)
        say("peace")
        await asyncio.to_thread(peace, fleet, result)
        executed = read_journals(backend.journal for backend in fleet.backends)
        result.chaos = account(crowd.records, executed, timeline, began)
        result.internal_errors = fleet.tracebacks()
        whole = sorted(r.seconds for r in crowd.records if r.judged.verdict is Verdict.OK)
        result.seconds = {"p50": percentile(whole, 0.5), "p99": percentile(whole, 0.99)}
    return result


async def one_hung(fleet: Fleet, target: Target, expected: dict[str, str], options: Options) -> dict[str, float]:
    """Times of short requests in calm, while a back end hangs, and in calm again."""
    hung = fleet.backends[0]
    phases: dict[str, list[Record]] = {}
    for number, phase in enumerate(("warm", "calm", "hung", "after")):
        if phase == "hung":
            hung.faults({"hang": True})
        crowd = Crowd(target, expected, Random(options.seed + number), leaving=0.0)
        clients = asyncio.create_task(crowd.run(12, f"{phase}", KINDS[:1]))
        await asyncio.sleep(options.calm)
        crowd.stop.set()
        if phase == "hung":
            # Those that wait there end with the gateway's own limits; no new ones come.
            hung.faults({})
        await clients
        phases[phase] = crowd.records
        if phase == "hung":
            await asyncio.sleep(options.calm / 2)
    seen = read_journals([hung.journal]).seen
    others = sorted(r.seconds for r in phases["hung"] if r.marker not in seen)
    caught = sorted(r.seconds for r in phases["hung"] if r.marker in seen)
    every = sorted(r.seconds for r in phases["hung"])
    calm = sorted(r.seconds for r in phases["calm"] + phases["after"])
    return {
        "p99_added_ms": 1000 * (percentile(others, 0.99) - percentile(calm, 0.99)),
        "p99_added_ms_with_caught": 1000 * (percentile(every, 0.99) - percentile(calm, 0.99)),
        "p99_calm_ms": 1000 * percentile(calm, 0.99),
        "requests_calm": len(calm),
        "requests_hung": len(every),
        "caught": len(caught),
        "caught_longest_s": max(caught, default=0.0),
        "failed": sum(r.judged.verdict is not Verdict.OK for rows in phases.values() for r in rows),
    }


async def chaos(
    fleet: Fleet, target: Target, expected: dict[str, str], options: Options, result: Result
) -> tuple[Crowd, Timeline, float]:
    """The schedule with all clients at work. Returns once every client has its last answer."""
    crowd = Crowd(target, expected, Random(options.seed), leaving=LEAVING)
    weather = Chaos(fleet, options.seed)
    began = time.monotonic()
    clients = asyncio.create_task(crowd.run(options.streams, "c"))
    sampler = asyncio.create_task(sample(fleet.gateway_pid, result.rss_mb))
    await weather.run(draw(options.seed, options.seconds))
    await asyncio.sleep(max(0.0, began + options.seconds - time.monotonic()))
    sampler.cancel()
    crowd.stop.set()
    await clients
    result.happened = weather.done
    result.rss_growth_mb = growth(result.rss_mb)
    return crowd, weather.timeline, began


async def sample(pid: int, points: list[tuple[float, float]]) -> None:
    """The resident memory of the gateway's processes in MB, once a second."""
    began, pids = time.monotonic(), family(pid)
    while True:
        points.append((round(time.monotonic() - began, 1), round(rss_bytes(pids) / 1e6, 1)))
        await asyncio.sleep(1.0)


def growth(points: Sequence[tuple[float, float]]) -> float:
    """What the last fifth of the run has above the second fifth; the first warms caches and the allocator."""
    fifth = len(points) // 5
    if not fifth:
        return 0.0
    return middle([mb for _, mb in points[-fifth:]]) - middle([mb for _, mb in points[fifth : 2 * fifth]])


def peace(fleet: Fleet, result: Result) -> None:
    """Waits for every count to come back to 0, and keeps what it is when the wait is over."""
    until = time.monotonic() + PEACE_SECONDS
    while True:
        result.in_flight_at_end = fleet.in_flight()
        result.redis_counters_at_end = fleet.redis_counters()
        result.backend_requests_at_end = sum(max(0, b.open_requests()) for b in fleet.backends)
        left = result.in_flight_at_end + result.redis_counters_at_end + result.backend_requests_at_end
        if not left or time.monotonic() > until:
            return
        time.sleep(0.5)


def text(result: Result) -> str:
    options, account = result.options, result.chaos
    hung, per_hour = result.hung, 3600 * slope(result.rss_mb)
    rows: list[tuple[str, object, str]] = [
        ("requests", account.requests, ", ".join(f"{n} {name}" for name, n in sorted(account.verdicts.items()))),
        ("lost", account.lost, f"{account.excused} failed while no back end was well all the time"),
        ("duplicated", account.duplicated, f"{account.failed_over} went on at another back end and came whole"),
        ("truncated as whole", account.truncated_as_whole, f"{account.verdicts['told']} were cut and said so"),
        ("in flight at the end", result.in_flight_at_end, "the sum of the gauges"),
        ("in Redis at the end", result.redis_counters_at_end, "the sum of all workers' views"),
        ("at back ends at the end", result.backend_requests_at_end, ""),
        ("failures inside", result.internal_errors, "tracebacks in the gateway's log"),
        ("p99 added, one hung", f"{hung['p99_added_ms']:.0f} ms", f"calm p99 {hung['p99_calm_ms']:.0f} ms"),
        ("  caught by the hung one", f"{hung['caught']:.0f}", f"the longest {hung['caught_longest_s']:.1f} s"),
        (
            "memory growth",
            f"{result.rss_growth_mb:.1f} MB",
            f"slope {per_hour:.0f} MB an hour, {options.workers} workers",
        ),
        ("answers", f"{result.seconds['p50']:.2f} s", f"p50 of whole ones; p99 {result.seconds['p99']:.2f} s"),
    ]
    head = [
        "# Chaos run (simulated back ends)",
        f"{options.streams} clients, {LEAVING:.0%} leaving, {options.seconds:g} s, seed {options.seed}; "
        f"{options.workers} workers, {PLAIN} plain and {MTP} MTP back ends at {options.scale:g} of real speed, 1 Redis",
        f"policy: {settings_text(options.first_byte)}; all else default",
        "happened: " + ", ".join(f"{name} {count}" for name, count in sorted(result.happened.items())),
        "",
    ]
    table = [f"{name:<26}{value!s:>10}   {note}" for name, value, note in rows]
    violations = result.violations()
    verdict = ["", *account.notes, "FAILED: " + "; ".join(violations) if violations else "passed"]
    return "\n".join(head + table + verdict)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Everything fails around the gateway; is anything lost?")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--scale", type=float, default=None, help="speed of the back ends against real ones")
    parser.add_argument("--quick", action="store_true", help="20 s, 60 clients, times and memory not judged")
    parser.add_argument("--keep", type=Path, help="folder for logs and journals, which is not deleted")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    seconds, streams = (20.0, 60) if given.quick else (given.seconds, given.streams)
    scale = given.scale or scale_for(streams, BACKENDS)
    calm, first_byte = (3.0, 10.0) if given.quick else (20.0, 30.0)
    options = Options(seconds, streams, given.seed, given.workers, scale, calm, first_byte, not given.quick)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="gateway-chaos-") as folder:
        place = given.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(run(options, place, say))
    print(json.dumps(result.object(), indent=1) if given.json else text(result))
    return 1 if result.violations() else 0


if __name__ == "__main__":
    sys.exit(ending_in_order(main))
