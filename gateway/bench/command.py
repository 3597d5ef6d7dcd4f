"""`gateway bench WHAT`: the command line of all benchmarks."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gateway.bench import breakeven, depth, load, longform, short, slices
from gateway.bench.session import Measurement, run
from gateway.settings import output_file


class Kind(NamedTuple):
    """A benchmark of endpoints: subcommand, help text, function that adds its options, factory."""

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    make: Callable[[argparse.Namespace], Measurement]


KINDS = (
    Kind("longform", "tokens per second of long answers, plain against MTP", longform.add_arguments, longform.make),
    Kind("short", "latency, accuracy and agreement on short answers", short.add_arguments, short.make),
    Kind("depth", "acceptance and speed by draft depth; which k to run", depth.add_arguments, depth.make),
    Kind("slices", "throughput and interference of several back ends", slices.add_arguments, slices.make),
    Kind("breakeven", "from which length MTP pays; writes a speed profile", breakeven.add_arguments, breakeven.make),
    Kind("load", "latency percentiles and goodput under an arrival process", load.add_arguments, load.make),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one subcommand per benchmark."""
    kinds = parser.add_subparsers(title="measurements", metavar="WHAT", required=True)
    for kind in KINDS:
        made = kinds.add_parser(kind.name, help=kind.help, description=kind.help[0].upper() + kind.help[1:] + ".")
        kind.arguments(made)
        made.set_defaults(measure=lambda args, make=kind.make: run(make, args))
    estimator = kinds.add_parser("estimator", help="how well answer lengths are predicted")
    estimator.set_defaults(measure=_estimator)
    estimator.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="requests with known output lengths, JSON lines"
    )
    estimator.add_argument("--traces", type=Path, metavar="DIR", help="traces (CSV); default: `traces` beside the data")
    estimator.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown tables")
    estimator.add_argument(
        "--points", type=output_file, metavar="CSV", help="write predicted and actual lengths, for a plot"
    )
    estimator.add_argument("--svg", type=output_file, metavar="FILE", help="draw predicted against actual lengths")
    estimator.add_argument("--quick", action="store_true", help="a part of the data and small models: a check only")
    estimator.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> int:
    """Runs the chosen benchmark; returns the exit code."""
    code: int = args.measure(args)
    return code


def _estimator(args: argparse.Namespace) -> int:
    # Report an unreadable data file before a missing numpy.
    with args.data.open("rb"):
        pass
    if importlib.util.find_spec("numpy") is None:
        print(
            "gateway bench estimator trains models and needs numpy: pip install 'mtp-gateway[train]'", file=sys.stderr
        )
        return 1
    # The matrices are small, so more threads only wait for each other. Must be set before numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Only this benchmark needs numpy; the other commands must start without it.
    from gateway.bench.estimator import run as estimate

    return estimate(args)
