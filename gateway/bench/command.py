"""`gateway bench WHAT`: the measurements, each with its own options."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one command for each measurement."""
    kinds = parser.add_subparsers(title="measurements", metavar="WHAT", required=True)
    estimator = kinds.add_parser("estimator", help="how well answer lengths are known before they start")
    estimator.set_defaults(measure=_estimator)
    estimator.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="requests with known output lengths, one JSON a line"
    )
    estimator.add_argument("--traces", type=Path, metavar="DIR", help="traces (CSV); default: `traces` beside the data")
    estimator.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown tables")
    estimator.add_argument("--points", type=Path, metavar="CSV", help="write predicted and actual lengths, for a plot")
    estimator.add_argument("--quick", action="store_true", help="a part of the data and small models: a check only")
    estimator.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> int:
    """Runs the chosen measurement; returns the exit code."""
    code: int = args.measure(args)
    return code


def _estimator(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("numpy") is None:
        print(
            "gateway bench estimator trains models and needs numpy: pip install 'mtp-gateway[train]'", file=sys.stderr
        )
        return 1
    # Small matrices: more threads only wait for each other. It has to be said before numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Only this measurement needs numpy; the other commands must start without it.
    from gateway.bench.estimator import run

    return run(args)
