"""What the gateway costs, beside a direct connection, yardsticks and other routers, in one run.

    python -m tests.benchmarks.overhead [--quick] [--json] [--targets gateway,direct] [--cells 1KB/1,streams/50]
                                        [--rounds 3] [--seconds 3] [--peers-dir .peers]

Method: a static upstream on loopback; every target runs as one process tree pinned to one core, load generator and
upstream share another. Rounds are interleaved: each round measures every cell of every target, in an order that
turns from round to round, so that a slow minute of the machine falls on all alike. Reported are medians over rounds.

- CPU seconds are utime + stime of the target's process tree over the measured window. They move least with the
  machine, so ratios are made of them: requests per CPU second, ours over theirs.
- Added time at p50 is the median minus the direct connection's median of the same round. Added time at p99 is the
  target's 99th percentile minus the direct *median*: percentiles cannot be subtracted from each other, and so the
  machine's own noise counts against the target. The row `direct` shows how much of it that is.
- A first token's time counts from the last request's byte to the upstream and from the token's write to the client,
  a token's delay from its write to its arrival; both from stamps in the stream, so pacing cancels out.
- Bodies of 100 KB and more are accompanied by a paced small request every 5 ms from a second process: its worst
  times show how long the target's loop stood still.

Every answer is checked (status, length or content, all tokens, end mark); errors are shown and end the run with
status 1 when they are the gateway's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tests.benchmarks import report
from tests.benchmarks.load import Job, Result
from tests.benchmarks.peers import DEFAULT_DIR, PEERS
from tests.benchmarks.process import ROOT, Cores, StartFailed, family, pinned, python_module, rss_bytes
from tests.benchmarks.targets import TARGETS, Running, running, upstream, versions
from tests.benchmarks.wire import StreamShape


@dataclass(frozen=True, slots=True)
class Cell:
    """One load: how many connections, how large a body, streamed or not."""

    name: str
    connections: int
    body_bytes: int
    stream: StreamShape | None = None

    @property
    def probed(self) -> bool:
        return self.body_bytes >= 100_000


_FAST, _SLOW = StreamShape(50, 10_000), StreamShape(50, 20_000)
CELLS = (
    Cell("1KB/1", 1, 1_000),
    Cell("1KB/32", 32, 1_000),
    Cell("1KB/128", 128, 1_000),
    Cell("30KB/32", 32, 30_000),
    Cell("100KB/8", 8, 100_000),
    Cell("10MB/2", 2, 10_000_000),
    Cell("streams/1", 1, 1_000, _FAST),
    Cell("streams/50", 50, 1_000, _FAST),
    # Half the pace: at 100 tokens a second each, 200 streams would measure the load generator.
    Cell("streams/200", 200, 1_000, _SLOW),
)
QUICK = ("1KB/1", "1KB/32", "streams/50")


@dataclass(frozen=True, slots=True)
class Sample:
    """One cell of one target in one round."""

    result: Result
    probe: Result | None
    rss_before: int
    rss_after: int


def start_load(job: Job, cores: Cores) -> subprocess.Popen[bytes]:
    """Starts a load generator; `finish_load` collects its result."""
    with pinned(cores.load):
        return subprocess.Popen(
            python_module("tests.benchmarks.load", json.dumps(asdict(job))), stdout=subprocess.PIPE, cwd=ROOT
        )


def finish_load(process: subprocess.Popen[bytes]) -> Result:
    """Waits for the end. Raises RuntimeError when the load generator itself failed."""
    out, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the load generator ended with status {process.returncode}")
    return Result(**json.loads(out))


def measure(cell: Cell, target: Running, seconds: float, cores: Cores) -> Sample:
    """Runs one cell against a running target."""
    job = Job(
        port=target.port,
        connections=cell.connections,
        seconds=seconds,
        at_least=20,
        body_bytes=cell.body_bytes,
        headers=target.headers,
        stream=asdict(cell.stream) if cell.stream else None,
        answer_bytes=target.answer_bytes,
        target_pid=target.pid,
    )
    before = rss_bytes(family(target.pid)) if target.pid else 0
    load = start_load(job, cores)
    probe = None
    if cell.probed:
        paced = Job(target.port, 1, seconds, headers=target.headers, pace_s=0.005, answer_bytes=target.answer_bytes)
        probe = finish_load(start_load(paced, cores))
    result = finish_load(load)
    return Sample(result, probe, before, rss_bytes(family(target.pid)) if target.pid else 0)


def run(options: argparse.Namespace, console: Console) -> report.Measured:
    """Starts what can be started and measures all rounds."""
    cores = Cores.split()
    cells = [cell for cell in CELLS if cell.name in options.cells]
    measured = report.Measured(cells=[cell.name for cell in cells])
    with ExitStack() as stack:
        upstreams = stack.enter_context(upstream(cores.load))
        targets: list[Running] = []
        for name in options.targets:
            peer = TARGETS[name].peer
            if peer is not None and PEERS[peer].version(options.peers_dir) is None:
                measured.absent[name] = "not installed"
                continue
            console.print(f"starting {name}", style="dim")
            try:
                targets.append(stack.enter_context(running(TARGETS[name], upstreams, options.peers_dir, cores.target)))
            except StartFailed as error:
                measured.absent[name] = f"did not start: {str(error).splitlines()[0]}"
                console.print(f"{name}: {error}", style="red", markup=False)
        measured.start_s = {target.target.name: target.start_s for target in targets}
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        progress = stack.enter_context(Progress(*columns, console=console, transient=True))
        task = progress.add_task("", total=options.rounds * len(cells) * len(targets))
        for turn in range(options.rounds):
            for cell in cells:
                shift = turn % len(targets)
                for target in targets[shift:] + targets[:shift]:
                    name = target.target.name
                    progress.update(task, description=f"round {turn + 1}  {cell.name}  {name}")
                    measured.add(name, cell.name, measure(cell, target, options.seconds, cores))
                    progress.advance(task)
    return measured


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. `direct` is always among the targets: the rest is measured against it."""
    names = [cell.name for cell in CELLS]
    parser = argparse.ArgumentParser(description="The gateway's overhead beside its peers.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--cells", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="measured window of each cell and round")
    parser.add_argument("--quick", action="store_true", help=f"one round of 1 s of {', '.join(QUICK)}")
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_DIR)
    options = parser.parse_args(arguments)
    options.targets = list(dict.fromkeys(["direct", *options.targets.split(",")]))
    options.cells = options.cells.split(",") if options.cells else list(QUICK if options.quick else names)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    if unknown := [name for name in options.targets if name not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}")
    if unknown := [name for name in options.cells if name not in names]:
        parser.error(f"no such cell: {', '.join(unknown)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    measured = run(options, Console(stderr=True))
    parameters = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "cells": options.cells,
        "cores": {"target": sorted(Cores.split().target), "load_and_upstream": sorted(Cores.split().load)},
    }
    outcome = report.figures(measured, parameters, versions(options.targets, options.peers_dir))
    print(json.dumps(outcome, indent=1) if options.json else report.tables(outcome))
    return 1 if {"gateway", "direct"} & outcome["errors"].keys() else 0


if __name__ == "__main__":
    sys.exit(main())
