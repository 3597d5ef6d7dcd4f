"""The command `gateway simulate`: arms, measured pools, the split of slices, and a day, all on a virtual clock."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.simulate import measured, report
from gateway.simulate.arms import ARMS
from gateway.simulate.hardware import MACHINES, MODELS
from gateway.simulate.long_day import play_day
from gateway.simulate.suite import LOADS, QUICK_LOADS, TRAFFIC, SuiteSpec, known_traffic, run_suite
from gateway.simulate.workload import TRACES

DESCRIPTION = """\
Policies against workloads, with no GPU and no sockets: the gateway's own estimator, router, pools and queue in front of
simulated engines on a virtual clock. All figures are simulated.

  gateway simulate                       every arm on every traffic, model, profile and load
  gateway simulate --quick               a small part of that, in a minute
  gateway simulate --traces FOLDER       with the public arrival traces, too
  gateway simulate --suite split --slices 4 --traffic half    how many slices of each kind
  gateway simulate --suite measured      pools that were measured on a real GPU, beside their simulation
  gateway simulate --suite day           a day at --rate requests per second
"""
QUICK_REQUESTS = 1200
Report = Callable[[int, int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to its parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--suite", choices=["arms", "split", "measured", "day"], default="arms", help="what to play (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="fewer cells and requests")
    names = ", ".join(known_traffic())
    parser.add_argument("--traffic", type=_names(known_traffic()), metavar="NAMES", help=f"some of: {names}")
    parser.add_argument("--models", type=_names(MODELS), metavar="NAMES", help=f"some of: {', '.join(MODELS)}")
    parser.add_argument(
        "--profiles", type=_names(tuple(MACHINES)), metavar="NAMES", help=f"some of: {', '.join(MACHINES)}"
    )
    parser.add_argument("--loads", type=_loads, metavar="SHARES", help="of capacity, such as 0.2,0.5,1.1")
    parser.add_argument("--requests", type=_positive, metavar="N", help="per run (2500; with --quick 1200)")
    parser.add_argument("--traces", metavar="FOLDER", help="folder of azure2023_*.csv and mooncake_conversation.csv")
    parser.add_argument("--slices", type=_positive, default=4, help="for --suite split (%(default)s)")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second for --suite day (%(default)s)")
    parser.add_argument("--hours", type=float, default=24.0, help="length of the day (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=_positive, default=os.cpu_count() or 1, help="processes (%(default)s)")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    console = Console(width=None if sys.stdout.isatty() else 220)
    try:
        spec = spec_of(args)
        found = _play(args, spec)
    except (OSError, ValueError) as error:
        print(f"gateway simulate: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print(args, found, console)
    return 0


def spec_of(args: argparse.Namespace) -> SuiteSpec:
    """The suite that the options mean."""
    traffic = args.traffic
    if traffic is None:
        traffic = ("half",) if args.suite == "split" else TRAFFIC
        if args.traces and args.suite == "arms":
            traffic = (*traffic, *TRACES)
    quick = args.quick
    return SuiteSpec(
        traffic=traffic,
        profiles=args.profiles or (("h200",) if quick else tuple(MACHINES)),
        models=args.models or (MODELS[:2] if quick else MODELS),
        loads=args.loads or (QUICK_LOADS if quick else LOADS),
        requests=args.requests or (QUICK_REQUESTS if quick else SuiteSpec().requests),
        traces=args.traces,
        seed=args.seed,
    )


def _play(args: argparse.Namespace, spec: SuiteSpec) -> dict[str, Any]:
    with _progress(quiet=args.json) as progress:
        if args.suite == "arms":
            return run_suite(spec, args.workers, progress)
        if args.suite == "measured":
            rows = measured.replay(args.seed)
            return {"simulated": True, "pools": rows, "pairs": measured.same_order(rows)}
        if args.suite == "day":
            begun = time.perf_counter()
            found = play_day(args.rate, args.hours, args.workers, args.seed, progress)
            return found | {"wall_seconds": round(time.perf_counter() - begun, 1)}
        return {"simulated": True, "splits": _splits(args, spec, progress)}


def _splits(args: argparse.Namespace, spec: SuiteSpec, progress: Report) -> list[dict[str, Any]]:
    arm = next(arm for arm in ARMS if arm.name == "fleet")
    tasks = [(*task, load) for task in spec.tasks() for load in spec.loads]
    found = []
    for done, (traffic, profile, model, load) in enumerate(tasks, 1):
        rows = measured.best_split(spec.workload(traffic), profile, model, args.slices, load, arm)
        found.append({"traffic": traffic, "profile": profile, "model": model, "load": load, "splits": rows})
        progress(done, len(tasks))
    return found


def _print(args: argparse.Namespace, found: dict[str, Any], console: Console) -> None:
    if args.suite == "arms":
        report.print_suite(found, console)
    elif args.suite == "measured":
        report.print_measured(found["pools"], found["pairs"], console)
    elif args.suite == "day":
        report.print_day(found, console)
    else:
        for one in found["splits"]:
            where = f"{one['traffic']} on {one['profile']}, {one['model']}, load {one['load']:g} of the equal split"
            report.print_split(one["splits"], f"Slices of each kind for {where}; simulated", console)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Report]:
    """A bar on standard error, so that standard output stays clean."""
    console = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(part.strip() for part in text.split(","))
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
        return names

    return parse


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("expected shares of capacity, such as 0.2,0.5,1.1") from None
    if not all(0.0 < load <= 3.0 for load in loads):
        raise argparse.ArgumentTypeError("loads are shares of capacity, above 0 and at most 3")
    return loads


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError("expected a whole number above 0")
    return int(text)
