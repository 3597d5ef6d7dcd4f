"""What the growth benchmark runs: many static servers, the gateway by a policy, helpers that end with their starter.

python -m tests.benchmarks.growth_fleet --plain 9001 9002 --mtp 9003 9004      the servers alone
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import uvloop

from tests.benchmarks import upstream, wire
from tests.benchmarks.load import Job, Result
from tests.benchmarks.overhead import finish_load
from tests.benchmarks.peers import DEFAULT_DIR
from tests.benchmarks.process import (
    ROOT,
    Child,
    Cores,
    bound_to_parent,
    cpu_seconds,
    free_ports,
    listens,
    pinned,
    python_module,
)
from tests.benchmarks.targets import Place, Running, Target, running

T = TypeVar("T")
HOST = "127.0.0.1"
UNLIMITED = "defaults: {limits: {in_flight: 0}}\n"
"""Lines of a policy under which as many requests run as come, up to `server.max_requests`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a part of the benchmark is to run."""

    quick: bool
    cores: Cores
    say: Callable[[str], None]
    """Takes a line about the progress."""

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Servers:
    """Static servers of one process, as URLs."""

    plain: tuple[str, ...]
    mtp: tuple[str, ...]
    pid: int

    def policy(self, each: int = 1, lines: str = "") -> str:
        """Two pools of `each` endpoints; `lines` are put before them, all else is at its default."""
        plain, mtp = (json.dumps(urls[:each]) for urls in (self.plain, self.mtp))
        return (
            f"version: 1\n{lines}pools:\n"
            f"  plain: {{endpoints: {plain}}}\n"
            f"  mtp: {{endpoints: {mtp}, speculative: {{method: mtp, tokens: 2}}}}\n"
            f"models:\n  {wire.MODEL}: {{pools: [plain, mtp]}}\n"
        )


async def serve(plain: Sequence[int], mtp: Sequence[int]) -> None:
    """Listens until SIGTERM or SIGINT."""
    # `upstream.serve` takes the first port of a call for a plain server's. Of several calls the last to come has the
    # signals, so that one of them ends, and with it all.
    ports = [[plain[0], *mtp], *([port] for port in plain[1:])]
    calls = [asyncio.ensure_future(upstream.serve(HOST, part)) for part in ports]
    ended, others = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    for call in others:
        call.cancel()
    for call in ended:
        call.result()


@contextmanager
def servers(each: int, cores: frozenset[int]) -> Iterator[Servers]:
    """So many static servers of either kind, all in one process. Raises StartFailed."""
    ports = free_ports(2 * each)
    plain, mtp = ports[:each], ports[each:]
    command = python_module("tests.benchmarks.growth_fleet", "--plain", *map(str, plain), "--mtp", *map(str, mtp))
    with tempfile.TemporaryDirectory() as folder, Child(command, Path(folder) / "log", cores) as child:
        child.wait_until(lambda: all(map(listens, ports)), 30.0)
        urls = [tuple(f"http://{HOST}:{port}" for port in part) for part in (plain, mtp)]
        yield Servers(urls[0], urls[1], child.pid)


def serve_command(policy: str, port: int, workers: int = 1) -> list[str]:
    """The gateway's command line for a policy's file."""
    return python_module("gateway", "serve", "--policy", policy, "--port", str(port), "--workers", str(workers))


@contextmanager
def gateway(policy: str, fleet: Servers, cores: frozenset[int], workers: int = 1) -> Iterator[Running]:
    """The gateway by the text of a policy, once it has answered a request. Raises StartFailed."""

    def command(place: Place) -> list[str]:
        return serve_command(place.write("policy.yaml", policy), place.port, workers)

    with running(Target("gateway", command), (fleet.plain[0], fleet.mtp[0]), DEFAULT_DIR, cores) as target:
        yield target


def pid_of(target: Running) -> int:
    """The process whose family a target is."""
    assert target.pid is not None, "a direct connection has no process"
    return target.pid


@contextmanager
def helper(argv: Sequence[str], cores: frozenset[int]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that prints its result. It ends with the context, and with the thread that entered it."""
    with pinned(cores):
        process = subprocess.Popen(
            list(argv), stdout=subprocess.PIPE, cwd=ROOT, preexec_fn=bound_to_parent(signal.SIGTERM)
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def load_command(job: Job) -> list[str]:
    """The load generator's command line."""
    return python_module("tests.benchmarks.load", json.dumps(asdict(job)))


def load(job: Job, cores: frozenset[int]) -> Result:
    """Runs the load generator to its end. Raises RuntimeError when it failed."""
    with helper(load_command(job), cores) as process:
        return finish_load(process)


def background(pids: Sequence[int], seconds: float) -> float:
    """CPU seconds a second that the processes use while nobody asks them anything."""
    before, start = cpu_seconds(pids), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pids) - before) / (time.monotonic() - start)


def cost_us(cpu_s: float, background_s: float, requests: int) -> float | None:
    """CPU microseconds of a request, what the process does without requests taken off; None without a request."""
    return (cpu_s - background_s) / requests * 1e6 if requests else None


def turned(levels: Sequence[T], turn: int) -> list[T]:
    """The levels, begun elsewhere each round, so that a slow minute of the machine falls on all alike."""
    shift = turn % len(levels)
    return [*levels[shift:], *levels[:shift]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Many static OpenAI-compatible servers for benchmarks.")
    parser.add_argument("--plain", type=int, nargs="+", required=True)
    parser.add_argument("--mtp", type=int, nargs="+", required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.plain, options.mtp))


if __name__ == "__main__":
    main()
