"""The malformed storm: does any nonsense make the gateway fail, hang, leak or die?

    python -m tests.benchmarks.malformed [--requests 100000] [--workers 2] [--seed 1] [--json]

Hypothesis makes the cases (`malformed_cases`): bodies of wrong types, sizes, encodings and depths, odd headers, paths
and methods, framing that lies, pipelines, bytes that are no HTTP. They go over raw sockets to `gateway serve`, in
front of a back end that accepts all that is well framed. What goes wrong is told as it does. Required: no 5xx, no
hang, no unreadable answer, no unreadable request to the back end, no traceback, the same worker processes at the end,
nothing in flight, memory flat.

The gateway's own OpenAPI by hand, with schemathesis, which brings too much along to be part of the `dev` extra:

    schemathesis run http://127.0.0.1:8080/openapi.json --phases coverage,fuzzing --checks not_a_server_error
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.benchmarks.malformed_cases import MODEL, Case, cases
from tests.benchmarks.malformed_client import AcceptsAll, Seen, send
from tests.benchmarks.process import Child, ending_in_order, family, free_ports, listens, python_module, rss_bytes
from tests.benchmarks.stats import middle

BATCH = 2000
TOGETHER = 32
SHOWN = 10
MOST_GROWTH_MB = 20.0
IDLE_SECONDS = 20.0


@dataclass(slots=True)
class Storm:
    """What came of all cases."""

    sent: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    unreadable_upstream: int = 0
    rss_mb: list[float] = field(default_factory=list)
    """After each batch."""
    in_flight_at_end: int = -1
    tracebacks: int = 0
    workers_replaced: int = 0
    seconds: float = 0.0

    def note(self, case: Case, seen: Seen) -> None:
        self.sent += 1
        self.forms[case.form] += 1
        self.statuses.update(seen.statuses)
        if seen.problem:
            self.problems[f"{case.form}: {seen.problem}"] += 1
            if len(self.examples) < SHOWN:
                self.examples.append(f"{case.form}: {seen.problem}: {case.wire[:600]!r}")
                print(self.examples[-1], file=sys.stderr, flush=True)

    @property
    def growth_mb(self) -> float:
        """The last fifth of the batches over the second fifth; the first warms caches and the allocator."""
        fifth = len(self.rss_mb) // 5
        return middle(self.rss_mb[-fifth:]) - middle(self.rss_mb[fifth : 2 * fifth]) if fifth else 0.0

    def violations(self) -> list[str]:
        found = [f"{count} x {name}" for name, count in self.problems.items()]
        counts = {
            "requests that the back end could not read": self.unreadable_upstream,
            "requests in flight at the end": self.in_flight_at_end,
            "failures inside the gateway": self.tracebacks,
            "worker processes died": self.workers_replaced,
        }
        found += [f"{count} {name}" for name, count in counts.items() if count]
        if self.growth_mb > MOST_GROWTH_MB:
            found.append(f"memory grew by {self.growth_mb:.0f} MB")
        return found

    def object(self) -> dict[str, Any]:
        return {
            "requests": self.sent,
            "forms": dict(self.forms),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "in_flight_at_end": self.in_flight_at_end,
            "rss_growth_mb": round(self.growth_mb, 1),
            "rss_mb": self.rss_mb,
            "seconds": round(self.seconds, 1),
            "violations": self.violations(),
            "examples": self.examples,
        }


def draw_cases(count: int, number: int) -> list[Case]:
    """`count` cases, the same for the same number."""
    drawn: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    return drawn


def policy_text(port: int) -> str:
    """The back end shares its process with the clients, so that a probe of it may be late: none is sent."""
    return f"""version: 1
defaults: {{health: {{interval: off}}, telemetry: {{interval: off}}, timeouts: {{connect: 20s}}}}
pools: {{plain: {{endpoints: ["http://127.0.0.1:{port}"]}}}}
models: {{{MODEL}: {{pools: [plain]}}}}
"""


async def storm(port: int, count: int, number: int, after_batch: Callable[[Storm], None], result: Storm) -> None:
    """Sends `count` cases, a few at a time."""
    gate = asyncio.Semaphore(TOGETHER)

    async def one(case: Case) -> None:
        async with gate:
            try:
                seen = await send(port, case)
            except OSError as error:
                seen = Seen((), f"no connection ({error.strerror})")
            result.note(case, seen)

    while result.sent < count:
        drawn = await asyncio.to_thread(draw_cases, min(BATCH, count - result.sent), number)
        number += 1
        await asyncio.gather(*(one(case) for case in drawn))
        after_batch(result)


async def run(requests: int, workers: int, number: int, folder: Path, say: Callable[[str], None]) -> Storm:
    result = Storm()

    def unreadable() -> None:
        result.unreadable_upstream += 1

    server = await asyncio.get_running_loop().create_server(lambda: AcceptsAll(unreadable), "127.0.0.1", 0)
    policy = folder / "policy.yaml"
    policy.write_text(policy_text(server.sockets[0].getsockname()[1]))
    (port,) = free_ports(1)
    options = ["--policy", policy, "--port", port, "--workers", workers, "--log-level", "error"]
    with Child(python_module("gateway", "serve", *map(str, options)), folder / "gateway.log") as gateway:
        await asyncio.to_thread(gateway.wait_until, lambda: listens(port), 60.0)
        while len(before := family(gateway.pid)) < workers:
            await asyncio.sleep(0.1)

        def after_batch(result: Storm) -> None:
            result.rss_mb.append(round(rss_bytes(family(gateway.pid)) / 1e6, 1))
            say(f"{result.sent} sent, {sum(result.problems.values())} problems, {result.rss_mb[-1]:.0f} MB")

        began = time.monotonic()
        await storm(port, requests, number, after_batch, result)
        result.seconds = time.monotonic() - began
        result.in_flight_at_end = await idle(port)
        result.workers_replaced = len(set(before) - set(family(gateway.pid)))
        log = (folder / "gateway.log").read_text(errors="replace")
        result.tracebacks = log.count("Traceback (most recent call")
        for line in sorted(set(re.findall(r"^Traceback.*\n(?:[ \t].*\n|\n)+(\S.*)", log, re.MULTILINE)))[:SHOWN]:
            say(f"in the gateway's log: {line[:300]}")
    server.close()
    return result


async def idle(port: int) -> int:
    """What is still in flight once that has come to rest, by the gauges of all workers."""
    until = time.monotonic() + IDLE_SECONDS
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        while True:
            page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            rows = [line for line in page.splitlines() if line.startswith("gateway_in_flight{")]
            left = round(sum(float(line.rpartition(" ")[2]) for line in rows))
            if not left or time.monotonic() > until:
                return left
            await asyncio.sleep(0.5)


def text(result: Storm) -> str:
    statuses = ", ".join(f"{count} x {status}" for status, count in sorted(result.statuses.items()))
    lines = [
        "# Malformed requests",
        f"{result.sent} in {result.seconds:.0f} s: " + ", ".join(f"{n} {form}" for form, n in result.forms.items()),
        f"answers: {statuses}",
        f"in flight at the end {result.in_flight_at_end}, memory growth {result.growth_mb:.1f} MB",
    ]
    violations = result.violations()
    return "\n".join([*lines, "FAILED: " + "; ".join(violations) if violations else "passed"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Malformed requests against a running gateway.")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given_options = parser.parse_args(arguments)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="gateway-malformed-") as folder:
        work = run(given_options.requests, given_options.workers, given_options.seed, Path(folder), say)
        result = asyncio.run(work)
    print(json.dumps(result.object(), indent=1) if given_options.json else text(result))
    return 1 if result.violations() else 0


if __name__ == "__main__":
    sys.exit(ending_in_order(main))
