"""The command `gateway simulate`: policy arms, measured pools, slice splits, a day, capacity plans, validation."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.figures.report import Report as Reported
from gateway.settings import output_file
from gateway.simulate import measured, report, validate_report
from gateway.simulate.arms import ARMS
from gateway.simulate.hardware import MACHINES, MODELS
from gateway.simulate.long_day import play_day
from gateway.simulate.planning import PLAN_RATE, add_plan_arguments, make_plan, tell
from gateway.simulate.suite import LOADS, QUICK_LOADS, TRAFFIC, SuiteSpec, known_traffic, run_suite
from gateway.simulate.validate import validate
from gateway.simulate.workload import TRACES

DESCRIPTION = """\
Plays workloads against policies without a GPU: the gateway's own estimator, router, pools and queue in front of
simulated engines on a virtual clock. All results are simulated.

  gateway simulate                       all arms on all traffic mixes, models, profiles and loads
  gateway simulate --quick               a small part of that, in a minute
  gateway simulate --traces FOLDER       also with the public arrival traces
  gateway simulate --suite split --slices 4 --traffic half    the best split into plain and MTP slices
  gateway simulate --suite measured      measured pools beside their simulation
  gateway simulate --suite day           a day at --rate requests per second
  gateway simulate --validate            the simulator's errors against measured and published tables

Capacity planning: how many plain and MTP slices with which k some traffic needs to keep its limits, the cost of a
million tokens, the effect of a burst or a lost slice, and what another model would need:

  gateway simulate --plan --rate 8 --traffic japanese --slo ttft=1s,tpot=60ms --card-price 2.5 --html plan.html
  gateway simulate --plan --rate 8 --models e4b,26b-a4b --profiles g4-slice
"""
QUICK_REQUESTS = 1200
DAY_RATE = 100.0
Report = Callable[[int, int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to its parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--suite", choices=["arms", "split", "measured", "day"], default="arms", help="what to simulate (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="fewer cells and requests")
    names = ", ".join(known_traffic())
    parser.add_argument("--traffic", type=_names(known_traffic()), metavar="NAMES", help=f"some of: {names}")
    parser.add_argument("--models", type=_names(MODELS), metavar="NAMES", help=f"some of: {', '.join(MODELS)}")
    parser.add_argument(
        "--profiles", type=_names(tuple(MACHINES)), metavar="NAMES", help=f"some of: {', '.join(MACHINES)}"
    )
    parser.add_argument("--loads", type=_loads, metavar="SHARES", help="shares of capacity, such as 0.2,0.5,1.1")
    parser.add_argument("--requests", type=_positive, metavar="N", help="per run (2500; with --quick 1200)")
    parser.add_argument("--traces", metavar="FOLDER", help="folder of azure2023_*.csv and mooncake_conversation.csv")
    parser.add_argument("--slices", type=_positive, default=4, help="for --suite split (%(default)s)")
    parser.add_argument(
        "--rate", type=_rate, help=f"requests per second (--suite day: {DAY_RATE:g}, --plan: {PLAN_RATE:g})"
    )
    parser.add_argument("--hours", type=_hours, default=24.0, help="length of the day (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=_positive, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument(
        "--html",
        type=output_file,
        metavar="FILE",
        help="with --plan or --validate: write a self-contained page with plots",
    )
    add_plan_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Runs the command: 0 done, 1 the input failed, 2 wrong usage."""
    console = Console(width=None if sys.stdout.isatty() else 220)
    if args.html and not (args.plan or args.validate):
        print("gateway simulate: --html goes with --plan or --validate", file=sys.stderr)
        return 2
    try:
        if args.plan or args.validate:
            return tell(_report(args), args)
        spec = spec_of(args)
        spec.check()
        found = _play(args, spec)
    except (OSError, ValueError) as error:
        print(f"gateway simulate: {error}", file=sys.stderr)
        return 1
    except BrokenProcessPool:
        print("gateway simulate: a process was killed, perhaps for its memory; try fewer --workers", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print(args, found, console)
    return 0


def spec_of(args: argparse.Namespace) -> SuiteSpec:
    """The suite for the options."""
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
            found = play_day(args.rate or DAY_RATE, args.hours, args.workers, args.seed, progress)
            return found | {"wall_seconds": round(time.perf_counter() - begun, 1)}
        return {"simulated": True, "splits": _splits(args, spec, progress)}


def _report(args: argparse.Namespace) -> Reported:
    """Raises ValueError, OSError."""
    if args.validate:
        return validate_report.render(validate(), every=args.html is not None)
    # A plan is for one hardware profile, by default a G4 slice.
    quick = QUICK_REQUESTS if args.quick else SuiteSpec().requests
    spec = SuiteSpec(traces=args.traces, requests=args.requests or quick, seed=args.seed)
    with _progress(quiet=args.json) as progress:
        return make_plan(args, spec, progress)


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
    """A progress bar on stderr, so that stdout holds only the result."""
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
        raise argparse.ArgumentTypeError("loads must be shares of capacity, above 0 and at most 3")
    return loads


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("expected requests per second, such as 8 or 0.5") from None
    if not 0.0 < rate <= 1e5:
        raise argparse.ArgumentTypeError("a rate must be above 0 and at most 100000 requests per second")
    return rate


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("expected hours, such as 24 or 0.5") from None
    if not 0.0 < hours <= 168.0:
        raise argparse.ArgumentTypeError("a day's length must be above 0 and at most 168 hours")
    return hours


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError("expected a whole number above 0")
    return int(text)
