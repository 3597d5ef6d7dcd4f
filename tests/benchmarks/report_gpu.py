"""The report's chapter on real engines, from what `gpu_arms` measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.figures.report import Plot, Report, Series, Table
from tests.benchmarks.report_data import FIGURES, read


def gpu_figures() -> dict[str, Any]:
    """Every file of measured arms, by name."""
    return {path.stem: read(path.stem) for path in sorted(FIGURES.glob("gpu-arms-*.json"))}


def gpu_chapter(found: Mapping[str, Any]) -> Report:
    """One table and one plot a file."""
    return Report(
        name="gpu",
        title="On real GPUs",
        intro="The gateway in front of real vLLM engines: measured, with python -m tests.benchmarks.gpu_arms. Weights "
        "are dummies and acceptance is forced, so costs are real and acceptance is not.",
        tables=tuple(_table(about) for about in found.values()),
        plots=tuple(_plot(name, about) for name, about in found.items()),
    )


def _table(found: Mapping[str, Any]) -> Table:
    about = found["about"]
    rows = []
    for cell in found["cells"]:
        means = (_mean(cell, kind) for kind in ("all", "short", "long"))
        share = cell["classes"]["all"]["share"].get("mtp", 0.0)
        p95 = cell["classes"]["all"]["e2e_ms"]["p95"]
        figures = (*(f"{mean:.0f}" for mean in means), f"{p95:.0f}", f"{share:.0%}", f"{cell['tokens_per_s']:.0f}")
        rows.append((f"{cell['rate']:g}", cell["arm"], *figures))
    columns = ("requests/s", "arm", "mean ms", "short, mean ms", "long, mean ms", "p95 ms", "to MTP", "output tok/s")
    note = (
        f"Hardware: {about['note']} k={about['k']}, {about['mix']}, {about['rounds']} rounds of {about['seconds']:g} s."
    )
    return Table(f"{about['model']}, measured", columns, tuple(rows), note)


def _plot(name: str, found: Mapping[str, Any]) -> Plot:
    arms = dict.fromkeys(cell["arm"] for cell in found["cells"])
    series = tuple(
        Series(arm, tuple((cell["rate"], _mean(cell, "all")) for cell in found["cells"] if cell["arm"] == arm))
        for arm in arms
    )
    title = f"{name.removeprefix('gpu-arms-')}: mean time of a request, measured"
    return Plot(title, "requests per second", "ms", series, log_y=True)


def _mean(cell: Mapping[str, Any], kind: str) -> float:
    return float(cell["classes"][kind]["e2e_ms"]["mean"])
