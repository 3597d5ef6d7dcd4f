"""The report as one page: arms, break-even, how far the simulator can be trusted, and where routing does not help.

python -m tests.benchmarks.report_page                       draws figures/report.html from the JSON files beside it
python -m tests.benchmarks.report_page --measure             simulates the figures anew first; minutes
python -m tests.benchmarks.report_page --measure --traces FOLDER     with the public arrival traces
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from gateway.figures.html import book
from gateway.figures.report import Plot, Report, Series, Table
from tests.benchmarks.report_data import FIGURES, measure, read
from tests.benchmarks.report_gpu import gpu_chapter, gpu_figures

TITLE = "MTP gateway: what routing gains, and where it gains nothing"
ARMS: Mapping[str, str] = {
    "plain_pool": "everything to the plain pool",
    "mtp_pool": "everything to the MTP pool",
    "random": "half and half by chance",
    "static_32": "threshold of 32 predicted tokens",
    "static_64": "threshold of 64",
    "static_128": "threshold of 128",
    "bins": "short, long and unknown by the request's form",
    "expected_time": "objective expected_time",
    "fleet": "objective fleet",
    "oracle": "the default objective told the real lengths",
    "oracle_routing": "the same with a queue that is not told",
    "arrival": "the default objective with a queue in order of arrival",
    "all_plain": "another deployment: all engines plain",
    "all_mtp": "another deployment: all engines MTP",
    "mtp_table": "another deployment: all MTP with K by batch size",
}
ORACLES = ("oracle", "oracle_routing")
ENOUGH = 0.02
"""Differences below it are told as none."""
Cell = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="simulate the figures anew")
    parser.add_argument("--traces", metavar="FOLDER", help="folder of azure2023_*.csv")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.measure:
        measure(args.traces, args.workers, lambda done, total: print(f"{done} of {total}", flush=True))
    (FIGURES / "report.html").write_text(
        render(read("arms"), read("breakeven"), read("validation"), gpu_figures()), "utf-8"
    )
    print(f"report: {FIGURES / 'report.html'}")


def render(
    arms: Mapping[str, Any], breakeven: Mapping[str, Any], validation: Mapping[str, Any], gpu: Mapping[str, Any]
) -> str:
    """The page, from the figures alone."""
    intro = (
        "All figures on this page are simulated with the gateway's own estimator, router and queue in front of "
        "simulated engines, except what is called measured or published. Times on your hardware: gateway bench."
    )
    chapters = (arms_chapter(arms), limits_chapter(arms), gpu_chapter(gpu), chart_chapter(breakeven), trust(validation))
    return book(TITLE, intro, chapters)


def slower(cell: Cell, arm: str, objective: str) -> float:
    """How much longer the arm's mean time is than the objective's: 0.1 is 10 %."""
    means = cell["mean_s"]
    return float(means[arm] / means[objective] - 1.0)


def arms_chapter(found: Mapping[str, Any]) -> Report:
    cells, objective = found["cells"], found["objective"]
    traffics = list(dict.fromkeys(cell["traffic"] for cell in cells))
    rows = []
    for arm, about in ARMS.items():
        if arm == objective:
            continue
        every = [slower(cell, arm, objective) for cell in cells]
        by_traffic = (
            _percent(_typical(_of(cells, t, partial(slower, arm=arm, objective=objective)))) for t in traffics
        )
        faster = sum(one < -ENOUGH for one in every)
        rows.append((about, *by_traffic, _percent(min(every)), _percent(max(every)), f"{faster} of {len(every)}"))
    columns = ("arm", *traffics, "best cell", "worst cell", "cells where it is faster")
    note = (
        f"Mean request time against the default objective ({objective}); + is slower; geometric means over 3 kinds of "
        "hardware, 2 models and loads of 20 to 110 % of what the deployed engines can complete. One plain and one MTP "
        f"engine, {found['requests']} requests a run and more of short ones; engines are up to 10 % off their profile "
        "in speed and 15 % in acceptance."
    )
    loads = sorted({cell["load"] for cell in cells})
    series = tuple(
        Series(
            ARMS[arm],
            tuple(
                (load, 1 + _typical([slower(c, arm, objective) for c in cells if c["load"] == load and c["mixed"]]))
                for load in loads
            ),
        )
        for arm in ("static_64", "bins", "random", "expected_time", "oracle")
    )
    plot = Plot("Mixed traffic: mean time over the default objective's, by load", "load", "ratio", series, level=1.0)
    return Report(
        name="arms",
        title="Arms",
        intro="The same requests under every rule: who decides where a request goes, and nothing else differs. Every "
        "arm has the gateway's queue, by the gateway's estimates; one arm shows what that queue brings.",
        tables=(Table("Mean request time against the default objective, simulated", columns, tuple(rows), note),),
        plots=(plot,),
    )


def limits_chapter(found: Mapping[str, Any]) -> Report:
    """Where another rule or another deployment is faster, from the same cells."""
    cells, objective = found["cells"], found["objective"]
    return Report(
        name="limits",
        title="Where routing does not help",
        intro="Told from the same figures. A gain against a bad rule is no gain against a good one, and some of what "
        "is gained could be had by deploying other engines.",
        findings=tuple(_limits(cells, objective)),
        tables=(_lost(cells, objective),),
    )


def _limits(cells: Sequence[Cell], objective: str) -> Iterator[str]:
    def best(cell: Cell, *arms: str) -> float:
        return min(slower(cell, arm, objective) for arm in arms)

    converted = [best(cell, "all_plain", "all_mtp") for cell in cells]
    all_mtp = [slower(cell, "all_mtp", objective) for cell in cells]
    yield (
        f"As many engines all of the better kind would be faster by more than {ENOUGH:.0%} in "
        f"{sum(one < -ENOUGH for one in converted)} of {len(cells)} cells, all MTP alone in "
        f"{sum(one < -ENOUGH for one in all_mtp)}: where drafts are accepted as the profiles say, a plain engine is "
        "there for requests that drafting engines refuse, for labels, and for loads beyond the break-even. No routing "
        "makes up for engines of the wrong kind; gateway simulate --plan says which to run."
    )
    yield from _by_traffic(cells, objective)
    light, full = min(c["load"] for c in cells), max(c["load"] for c in cells)
    for load, name in ((light, "an almost idle fleet"), (full, "a fleet beyond its capacity")):
        some = [
            best(cell, "static_32", "static_64", "static_128")
            for cell in cells
            if cell["load"] == load and cell["mixed"]
        ]
        yield (
            f"On {name} (load {load:g}) the best threshold, chosen with hindsight per cell, takes "
            f"{_percent(_typical(some))} against the default on mixed traffic."
        )
    told, routed = ([slower(cell, arm, objective) for cell in cells] for arm in ORACLES)
    yield (
        f"Knowing every length beforehand would change the mean time by {_percent(_typical(told))}, at worst by "
        f"{_percent(min(told))}: what a better prediction of lengths could still give. If the router alone knew, and "
        f"the queue did not, by {_percent(_typical(routed))}, at worst by {_percent(min(routed))}: the rest is the "
        "order of a long queue, which only a fleet beyond its capacity has."
    )


def _by_traffic(cells: Sequence[Cell], objective: str) -> Iterator[str]:
    for traffic in dict.fromkeys(cell["traffic"] for cell in cells):
        singles = _of(
            cells, traffic, lambda c: min(slower(c, "plain_pool", objective), slower(c, "mtp_pool", objective))
        )
        light = min(c["load"] for c in cells)
        quiet = [
            slower(c, "mtp_pool", objective) for c in cells if c["traffic"] == traffic and c["load"] == light
        ]  # fmt: skip
        yield (
            f"{traffic}: everything to the better single pool takes {_percent(_typical(singles))} over all loads, "
            f"everything to MTP {_percent(_typical(quiet))} at a load of {light:g}."
        )


def _lost(cells: Sequence[Cell], objective: str) -> Table:
    """The cells in which a rule without prediction, over the same engines, is faster."""
    no_rules = (objective, "arrival", "mtp_table", *ORACLES)
    rivals = [arm for arm in ARMS if arm not in no_rules and not arm.startswith("all_")]
    rows = []
    for cell in cells:
        arm = min(rivals, key=lambda name: slower(cell, name, objective))
        lost = slower(cell, arm, objective)
        if lost < -ENOUGH:
            where = (cell["traffic"], cell["profile"], cell["model"], f"{cell['load']:g}")
            rows.append((lost, (*where, f"{cell['mean_s'][objective]:.3f}", ARMS[arm], _percent(lost))))
    ordered = tuple(row for _, row in sorted(rows, key=lambda one: one[0]))
    columns = (
        "traffic",
        "hardware",
        "model",
        "load",
        "default, mean s",
        "the fastest other rule",
        "against the default",
    )
    note = f"{len(ordered)} of {len(cells)} cells, by more than {ENOUGH:.0%}. The rule is chosen with hindsight."
    return Table("Cells in which another rule over the same engines is faster, simulated", columns, ordered, note)


def chart_chapter(found: Mapping[str, Any]) -> Report:
    plots = []
    for row in found["rows"]:
        name = f"{row['model']} on {row['profile']}, {row['class']}"
        if "by_streams" in row:
            series = [Series(f"k={k}", _points(points)) for k, points in row["by_streams"].items()]
            if row["class"] == "prose":
                series += [
                    Series(f"k={m['k']}, measured", _points(m["by_streams"]), published=True)
                    for m in found["measured"]
                    if (m["profile"], m["model"]) == (row["profile"], row["model"]) and m["k"] in (2, 4)
                ]
            plots.append(
                Plot(
                    f"{name}: speed-up per token by streams",
                    "streams",
                    "plain / MTP",
                    tuple(series),
                    log_x=True,
                    level=1.0,
                )
            )
        else:
            series = [Series(f"{n} at a time", _points(points)) for n, points in row["by_length"].items()]
            title = f"{name}, k={row['k']}: speed-up of whole answers by length"
            plots.append(Plot(title, "output tokens", "plain / MTP", tuple(series), log_x=True, level=1.0))
    return Report(
        name="breakeven",
        title="Break-even",
        intro=f"From the built-in profiles, prompts of {found['prompt']} tokens; above 1 drafting is faster. Dashed: "
        "measured on one H200 with dummy weights and forced acceptance. Your own: gateway bench breakeven.",
        plots=tuple(plots),
    )


def trust(found: Mapping[str, Any]) -> Report:
    rows = tuple(
        (
            table["title"],
            table["hardware"],
            str(table["points"]),
            f"{table['median_error']:.1%}",
            f"{table['worst_error']:+.1%}",
            table["worst_at"],
            "yes" if table["fitted"] else "no",
            "holds" if table["holds"] else "does not hold",
        )
        for table in found["tables"]
    )
    sources = dict.fromkeys(t["source"] for t in found["tables"] if t["source"] != "the same")
    columns = ("table", "hardware", "rows", "median error", "worst", "where", "fitted to it", "verdict")
    return Report(
        name="validation",
        title="How far the simulator can be trusted",
        intro="Every measured and published table simulated again (gateway simulate --validate). A table holds with a "
        f"median error of at most {found['limits']['median']:.0%} and a worst one of {found['limits']['worst']:.0%}.",
        findings=tuple(f"{t['title']}: {t['verdict']}" for t in found["tables"] if not t["holds"]),
        tables=(Table("Errors by table", columns, rows, f"Sources: {'; '.join(sources)}."),),
    )


def _of(cells: Sequence[Cell], traffic: str, value: Callable[[Cell], float]) -> list[float]:
    return [value(cell) for cell in cells if cell["traffic"] == traffic]


def _typical(differences: Sequence[float]) -> float:
    """The geometric mean of ratios, given and returned as differences from 1."""
    return math.exp(fmean(math.log1p(one) for one in differences)) - 1.0


def _points(points: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), float(y)) for x, y in points)


def _percent(value: float) -> str:
    return f"{value:+.0%}" if abs(value) >= 0.0995 else f"{value:+.1%}"


if __name__ == "__main__":
    main()
