"""The arms of two cards from one: `gpu_arms` run twice, the real engines once as the first card and once as the second.

    python -m tests.benchmarks.gpu_arms --card REAL_PLAIN,REAL_MTP --card TWIN_PLAIN,TWIN_MTP ... --rows a --json a.json
    python -m tests.benchmarks.gpu_arms --card TWIN_PLAIN,TWIN_MTP --card REAL_PLAIN,REAL_MTP ... --rows b --json b.json
    python -m tests.benchmarks.gpu_halves a b --about a.json [--json FILE]

The twins are simulated engines in real time (`gpu_twin`). No two real engines work at a time, so one GPU serves both,
and every real engine meets the load that its arm's gateway gives it. Figures are those of the requests that a real
engine answered, of both runs. Which those are differs by arm, so the mean of all requests is that of the kinds,
weighted by what was sent, which is the same for every arm. The twins' own times stand beside, as a check of the
simulator: the same kind of request, arm and load.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.benchmarks.gpu_figures import figures, parsed, tell

Found = Mapping[str, Any]


def halves(found: Sequence[Found]) -> list[dict[str, Any]]:
    """A cell for every load and arm, from the lines of both runs."""
    cells: dict[tuple[str, float, str], list[Found]] = {}
    for one in found:
        if one["counted"]:
            name, value = ("rate", one["rate"]) if "rate" in one else ("clients", one["clients"])
            cells.setdefault((name, value, one["arm"]), []).append(one)
    made = []
    for (name, value, arm), rows in cells.items():
        sent = {kind: sum(_kind(row) == kind for row in rows) for kind in sorted({_kind(row) for row in rows})}
        real = [row for row in rows if not row["simulated"]]
        classes = figures([parsed(row) for row in real])
        classes["all"]["e2e_ms"]["mean"] = _whole(real, sent)
        rounds = [
            {"all": _whole([row for row in real if row["round"] == number], sent)}
            for number in sorted({row["round"] for row in rows})
        ]
        share = {k: _share([row for row in rows if _kind(row) == k]) for k in sent} | {"all": _share(rows)}
        twins = [row for row in rows if row["simulated"]]
        twin = {kind: _mean([row for row in twins if _kind(row) == kind]) for kind in sent}
        beside = {"sent": sent, "to_mtp": share, "twin_ms": twin | {"all": _whole(twins, sent)}}
        made.append({name: value, "arm": arm, "classes": classes, "rounds": rounds, **beside})
    return made


def _kind(row: Found) -> str:
    return str(row["tag"]).partition("/")[0]


def _share(rows: Sequence[Found]) -> float:
    """To engines that draft, real or not."""
    return round(sum(bool(row["pool"] == "mtp") for row in rows) / len(rows), 3)


def _mean(rows: Sequence[Found]) -> float | None:
    """Milliseconds of a request; None without a good one."""
    good = [1000 * row["total"] for row in rows if not row["error"]]
    return round(fmean(good), 2) if good else None


def _whole(rows: Sequence[Found], sent: Mapping[str, int]) -> float | None:
    """The kinds' means, weighted by what was sent."""
    total = 0.0
    for kind, number in sent.items():
        if (mean := _mean([row for row in rows if _kind(row) == kind])) is None:
            return None
        total += mean * number
    return round(total / sum(sent.values()), 2)


def _lines(paths: Iterable[Path]) -> list[Found]:
    return [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", metavar="ROWS")
    parser.add_argument("--about", type=Path, required=True, metavar="FILE", help="figures of either run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures (default: to stdout)")
    options = parser.parse_args(argv)
    about = json.loads(options.about.read_text("utf-8"))["about"]
    tell({"about": about, "cells": halves(_lines(options.rows))}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
