"""The report's chapter on real engines, from what `gpu_arms` measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.figures.report import Plot, Report, Series, Table
from tests.benchmarks.report_data import FIGURES, read

SAME = "Hardware: the same two NVIDIA H200"
GRAPHS = ("gpu-graphs-e4b-two", "gpu-graphs-26b-a4b-two")
"""The arms with a CUDA graph for every batch, on two real cards."""


def gpu_figures() -> dict[str, Any]:
    """Every file of measured arms, by name."""
    return {name: read(name) for name in (*sorted(path.stem for path in FIGURES.glob("gpu-arms-*.json")), *GRAPHS)}


def gpu_chapter(found: Mapping[str, Any]) -> Report:
    """One table and one plot a file of arms, then what single engines showed."""
    single, prompts = read("gpu-verbs"), read("gpu-prompts")
    return Report(
        name="gpu",
        title="On real GPUs",
        intro="The gateway in front of real vLLM engines: measured, with python -m tests.benchmarks.gpu_arms. Weights "
        "are dummies and acceptance is forced, so costs are real and acceptance is not.",
        tables=(
            *(_table(about) for about in found.values()),
            _prompts(prompts),
            _prompt_limits(prompts["limits"]),
            _graphs(single),
            _latency(single),
            _verbs(single),
        ),
        plots=(*(_plot(name, about) for name, about in found.items()), _prompts_plot(prompts)),
    )


def _table(found: Mapping[str, Any]) -> Table:
    about = found["about"]
    kinds = [kind for kind in found["cells"][0]["classes"] if kind != "all"]
    rows = []
    for cell in found["cells"]:
        means = (_mean(cell, kind) for kind in ("all", *kinds))
        share = cell["classes"]["all"]["share"].get("mtp", 0.0)
        p95 = cell["classes"]["all"]["e2e_ms"]["p95"]
        figures = (*(f"{mean:.0f}" for mean in means), f"{p95:.0f}", f"{share:.0%}", f"{cell['tokens_per_s']:.0f}")
        load = f"{cell['rate']:g}/s" if "rate" in cell else f"{cell['clients']} clients"
        rows.append((load, cell["arm"], *figures))
    columns = ("load", "arm", "mean ms", *(f"{kind}, mean ms" for kind in kinds), "p95 ms", "to MTP", "output tok/s")
    note = (
        f"Hardware: {about['note']} k={about['k']}, {about['mix']}, {about['rounds']} rounds of {about['seconds']:g} s."
    )
    return Table(f"{about['model']}, measured", columns, tuple(rows), note)


def _prompts(found: Mapping[str, Any]) -> Table:
    """What holding prompts back did to bursts of real arrivals."""
    rows = []
    for cell in found["cells"]:
        before, after = (cell["arms"][arm] for arm in found["about"]["arms"])
        pairs = (
            (before[name][figure], after[name][figure])
            for name in ("whole_ms", "first_ms")
            for figure in ("mean", "p95", "p99")
        )
        what = (cell["trace"], cell["engine"], f"{cell['rate']:g}/s", str(before["requests"]))
        rows.append((*what, *(f"{old} to {new} ({new / old - 1:+.0%})" for old, new in pairs)))
    times = (f"{name}, {figure}, ms" for name in ("request", "first token") for figure in ("mean", "p95", "p99"))
    columns = ("trace", "engine", "rate", "requests each", *times)
    note = f"By arrival to in turn (limits.prefill). Hardware: {found['about']['note']}"
    return Table("Prompts in turn, E4B, measured", columns, tuple(rows), note)


def _prompt_limits(found: Mapping[str, Any]) -> Table:
    """How many prompt tokens an engine should be sent."""
    columns = (
        "limits.prefill",
        "requests",
        "mean ms",
        "by round",
        "p95 ms",
        "p99 ms",
        "first token, mean ms",
        "p95 ms",
    )
    rows = []
    for arm in found["arms"]:
        whole, first = arm["whole_ms"], arm["first_ms"]
        figures = (*(f"{whole[name]}" for name in ("p95", "p99")), f"{first['mean']}", f"{first['p95']}")
        rounds = ", ".join(str(mean) for mean in arm["rounds_ms"])
        rows.append((str(arm["prefill"]), str(arm["requests"]), str(whole["mean"]), rounds, *figures))
    return Table("Prompts in turn: how many at once, measured", columns, tuple(rows), found["note"])


def _prompts_plot(found: Mapping[str, Any]) -> Plot:
    cells = [cell for cell in found["cells"] if (cell["trace"], cell["engine"]) == ("azure2023_code", "plain")]
    series = tuple(
        Series(arm, tuple((cell["rate"], float(cell["arms"][arm]["whole_ms"]["mean"])) for cell in cells))
        for arm in found["about"]["arms"]
    )
    return Plot("prompts of Azure's code trace: mean time of a request, measured", "requests per second", "ms", series)


def _graphs(found: Mapping[str, Any]) -> Table:
    """What a step takes with and without its CUDA graph."""
    names = ("engine", "answers", "step_ms", "join_ms", "without_graph_ms", "rms")
    columns = ("engine", "answers", "step, ms", "a joining prompt, ms", "step without a full graph, ms", "rms error")
    rows = [tuple("" if row[name] is None else str(row[name]) for name in names) for row in found["graphs"]["rows"]]
    return Table(
        "A decode step in mixed traffic, measured", columns, tuple(rows), f"{SAME}: {found['graphs']['method']}."
    )


def _latency(found: Mapping[str, Any]) -> Table:
    """The gateway's own time."""
    rows = []
    for row in found["latency"]:
        for name in ("ttft_ms", "total_ms"):
            value = row[name]
            about = (str(row["clients"]), str(row["tokens"]), name.removesuffix("_ms"), str(row["pairs"]))
            spread = f"{value['added_low']:+.2f} to {value['added_high']:+.2f}"
            rows.append((*about, f"{value['direct']:.1f}", f"{value['added']:+.2f}", spread))
    columns = ("clients", "tokens", "time", "pairs", "direct, ms", "added, ms", "half of all pairs")
    note = f"{SAME}, a plain E4B engine: each request once directly and once through the gateway, in turns."
    return Table("What the gateway adds on a real engine, measured", columns, tuple(rows), note)


def _verbs(found: Mapping[str, Any]) -> Table:
    """What each verb of `gateway bench` said of real engines."""
    verbs = {name: about for name, about in found.items() if isinstance(about, dict)}
    rows = [(name, finding) for name, about in verbs.items() for finding in about.get("findings", ())]
    return Table("gateway bench on real engines, in short form", ("verb", "finding"), tuple(rows), found["note"])


def _plot(name: str, found: Mapping[str, Any]) -> Plot:
    open_ = [cell for cell in found["cells"] if "rate" in cell]
    arms = dict.fromkeys(cell["arm"] for cell in open_)
    series = tuple(
        Series(arm, tuple((cell["rate"], _mean(cell, "all")) for cell in open_ if cell["arm"] == arm)) for arm in arms
    )
    title = f"{name.removeprefix('gpu-').removeprefix('arms-')}: mean time of a request, measured"
    return Plot(title, "requests per second", "ms", series, log_y=True)


def _mean(cell: Mapping[str, Any], kind: str) -> float:
    return float(cell["classes"][kind]["e2e_ms"]["mean"])
