"""Whether a request costs the same when things grow, and four single figures. Linux.

    python -m tests.benchmarks.growth [--quick] [--only endpoints,streams,keys,workers,start,memory]
                                      [--json FILE] [--svg FILE]

Three curves: CPU of a request against endpoints (`growth_serving.py`), beside open streams (`growth_streams.py`), and
CPU of an estimate and its learning against learned keys (`growth_keys.py`). Then two workers over one on two cores
(`growth_workers.py`), the time from start to ready, and memory over 100,000 requests.

All but the keys are measured on the real command, `python -m gateway serve`, with every feature at its default, in
front of the static server. CPU seconds are utime + stime of the gateway's process tree; medians of interleaved
rounds. A run with `--json FILE` keeps the other parts that the file holds, so that parts can be measured one by one
and are drawn together. Status 1: there were errors, or a part could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks import report
from tests.benchmarks.growth_fleet import Plan
from tests.benchmarks.growth_keys import keys
from tests.benchmarks.growth_serving import endpoints, memory, start
from tests.benchmarks.growth_streams import streams
from tests.benchmarks.growth_tables import curves, picture, tables
from tests.benchmarks.growth_workers import workers
from tests.benchmarks.peers import DEFAULT_DIR
from tests.benchmarks.process import Cores, StartFailed, ending_in_order
from tests.benchmarks.targets import versions

PARTS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "endpoints": endpoints, "streams": streams, "keys": keys, "workers": workers, "start": start, "memory": memory,
}  # fmt: skip


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a request costs as endpoints, streams and learned keys grow.")
    parser.add_argument("--only", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures; other parts in it are kept")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the curves")
    parser.add_argument("--quick", action="store_true", help="tiny: whether it runs, not figures to quote")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",") if options.only else list(PARTS)
    if unknown := [name for name in options.only if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    return options


def kept(path: Path | None, quick: bool) -> dict[str, Any]:
    """The parts that a file of an earlier run holds; none of a quick run beside figures, nor the other way round."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text("utf-8"))
    parts: dict[str, Any] = found["parts"] if found.get("quick") == quick else {}
    return parts


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Runs the parts asked for, one after the other."""
    # Everything that is started here gets it as well.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    plan = Plan(options.quick, Cores.split(), lambda line: console.print(line, style="dim", highlight=False))
    parts, absent = kept(options.json, options.quick), {}
    for name in options.only:
        begun, load = time.monotonic(), os.getloadavg()[0]
        try:
            found = PARTS[name](plan)
        except (StartFailed, RuntimeError) as error:
            absent[name] = str(error)
            continue
        parts[name] = {**found, "took_s": time.monotonic() - begun, "load_average_before": load}
    return {
        "quick": options.quick,
        "machine": report.figures(report.Measured([]), {}, {})["machine"],
        "versions": versions(["gateway"], DEFAULT_DIR),
        "absent": absent,
        "parts": {name: parts[name] for name in PARTS if name in parts},
    }


def run(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    outcome = measure(options, Console(stderr=True))
    if options.json is not None:
        options.json.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    if options.svg is not None and (plots := curves(outcome["parts"])):
        options.svg.write_text(picture(plots), "utf-8")
    print(tables(outcome))
    return 1 if outcome["absent"] or any(outcome["parts"][name]["errors"] for name in outcome["parts"]) else 0


if __name__ == "__main__":
    sys.exit(ending_in_order(run))
