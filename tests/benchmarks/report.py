"""From samples to figures, and from figures to tables. The JSON object is the figures as they are:

    {parameters, machine, versions, load_limit: {CELL: requests per second}, absent: {NAME: why}, errors: {...},
     NAME: {rps, cpu_s_per_1000, p50_added_ms, p99_added_ms, start_s, rss_growth_mb, cells: {CELL: {...}}},
     ratio: {NAME: requests per CPU second, the gateway's over theirs}, ratios: {CELL: {NAME: the same}}}

A target's own `rps` and `cpu_s_per_1000` are those of 1 KB at 32 connections, its added times those of 1 KB at one
connection; `ratio` is of 1 KB at 32 connections. Each is null where that cell was not measured.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.benchmarks.stats import middle

if TYPE_CHECKING:
    from tests.benchmarks.overhead import Sample

_LOADED, _SINGLE = "1KB/32", "1KB/1"
_NEAR = 0.7
"""The share of the direct connection's rate above which the load generator may be what is measured."""


@dataclass(slots=True)
class Measured:
    """Everything that a run saw."""

    cells: list[str]
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    """By target, then by cell, one per round."""
    absent: dict[str, str] = field(default_factory=dict)
    start_s: dict[str, float] = field(default_factory=dict)

    def add(self, target: str, cell: str, sample: Sample) -> None:
        self.samples.setdefault(target, {}).setdefault(cell, []).append(sample)


def _ratio(over: float, under: float) -> float | None:
    return over / under if under > 0 else None


def _medians(samples: Iterable[Sample], figure: Callable[[Sample], float | None]) -> float | None:
    values = [value for sample in samples if (value := figure(sample)) is not None]
    return middle(values) if values else None


def _added(samples: list[Sample], direct: list[Sample], figure: Callable[[Sample], float]) -> float | None:
    """The median over rounds of a figure minus the direct connection's p50; rounds without an answer say nothing."""
    rounds = [(sample, base) for sample, base in zip(samples, direct, strict=True) if sample.result.completed]
    return middle([figure(s) - base.result.latency_p50 for s, base in rounds]) if rounds else None


def _requests(samples: list[Sample], direct: list[Sample]) -> dict[str, Any]:
    """The figures of a cell of whole answers."""
    costs = [cost for s in samples if (cost := _ratio(s.result.target_cpu_s * 1000, s.result.completed)) is not None]
    cost = middle(costs)
    return {
        "rps": _medians(samples, lambda s: s.result.completed / s.result.window_s),
        "cpu_s_per_1000": cost or None,
        "cpu_spread": (max(costs) - min(costs)) / cost if cost else None,
        "requests_per_cpu_s": _ratio(1000.0, cost),
        "p50_ms": _medians(samples, lambda s: s.result.latency_p50 if s.result.completed else None),
        "p99_ms": _medians(samples, lambda s: s.result.latency_p99 if s.result.completed else None),
        "p50_added_ms": _added(samples, direct, lambda s: s.result.latency_p50),
        "p99_added_ms": _added(samples, direct, lambda s: s.result.latency_p99),
        "probe_p99_ms": _medians(samples, lambda s: s.probe.latency_p99 if s.probe else None),
        "probe_max_ms": _medians(samples, lambda s: s.probe.latency_max if s.probe else None),
        "load_cpu_share": _medians(samples, lambda s: s.result.load_cpu_s / s.result.window_s),
    }


def _streams(samples: list[Sample], direct: list[Sample]) -> dict[str, Any]:
    """The figures of a cell of streams. Token delays are absolute: a direct connection's are in its own row."""
    rates = [sample.result.tokens / sample.result.window_s for sample in direct]
    return {
        "tokens_per_s": _medians(samples, lambda s: s.result.tokens / s.result.window_s),
        "rate_share": middle(
            [s.result.tokens / s.result.window_s / rate for s, rate in zip(samples, rates, strict=True) if rate]
        ),
        "ttft_p50_added_ms": _added(samples, direct, lambda s: s.result.latency_p50),
        "ttft_p99_added_ms": _added(samples, direct, lambda s: s.result.latency_p99),
        "token_delay_p50_ms": _medians(samples, lambda s: s.result.delay_p50 if s.result.tokens else None),
        "token_delay_p99_ms": _medians(samples, lambda s: s.result.delay_p99 if s.result.tokens else None),
        "cpu_us_per_token": _medians(samples, lambda s: _ratio(s.result.target_cpu_s * 1e6, s.result.tokens)) or None,
        "load_cpu_share": _medians(samples, lambda s: s.result.load_cpu_s / s.result.window_s),
    }


def _target(name: str, measured: Measured) -> dict[str, Any]:
    cells: dict[str, dict[str, Any]] = {}
    for cell, samples in measured.samples[name].items():
        direct = measured.samples["direct"][cell]
        cells[cell] = (_streams if cell.startswith("streams/") else _requests)(samples, direct)
        cells[cell]["completed"] = sum(sample.result.completed for sample in samples)
    every = [sample for samples in measured.samples[name].values() for sample in samples]
    loaded, single = cells.get(_LOADED, {}), cells.get(_SINGLE, {})
    return {
        "rps": loaded.get("rps"),
        "cpu_s_per_1000": loaded.get("cpu_s_per_1000"),
        "p50_added_ms": single.get("p50_added_ms"),
        "p99_added_ms": single.get("p99_added_ms"),
        "start_s": measured.start_s.get(name),
        "rss_mb": max(sample.rss_after for sample in every) / 1e6,
        "rss_growth_mb": (every[-1].rss_after - every[0].rss_before) / 1e6,
        "cells": cells,
    }


def _errors(measured: Measured) -> dict[str, dict[str, dict[str, int]]]:
    """By target, cell and kind, only where there are any."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, cells in measured.samples.items():
        for cell, samples in cells.items():
            counts: Counter[str] = Counter()
            for sample in samples:
                counts.update(sample.result.errors)
                counts.update({f"probe: {k}": v for k, v in (sample.probe.errors if sample.probe else {}).items()})
                if not sample.result.completed:
                    counts["nothing completed"] += 1
            if counts:
                found.setdefault(name, {})[cell] = dict(counts)
    return found


def _ratios(targets: Mapping[str, Mapping[str, Any]], cell: str) -> dict[str, float]:
    def efficiency(name: str) -> float | None:
        figure: float | None = targets[name]["cells"].get(cell, {}).get("requests_per_cpu_s")
        return figure

    ours = efficiency("gateway") if "gateway" in targets else None
    if ours is None:
        return {}
    others = {name: efficiency(name) for name in targets if name not in ("gateway", "direct")}
    return {name: ours / theirs for name, theirs in others.items() if theirs}


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def figures(measured: Measured, parameters: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    """The JSON object of the module's head."""
    targets = {name: _target(name, measured) for name in measured.samples}
    requests = [cell for cell in measured.cells if not cell.startswith("streams/")]
    cores = len(os.sched_getaffinity(0))
    return {
        "parameters": parameters,
        "machine": {"cores": cores, "processor": _processor(), "python": platform.python_version()},
        "versions": versions,
        "load_limit": {cell: targets["direct"]["cells"][cell]["rps"] for cell in requests},
        "absent": measured.absent,
        "errors": _errors(measured),
        **targets,
        "ratio": _ratios(targets, _LOADED),
        "ratios": {cell: _ratios(targets, cell) for cell in requests},
    }


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(title: str, head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["", f"## {title}", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


_REQUEST_COLUMNS = {
    "requests/s": "rps", "CPU s per 1,000": "cpu_s_per_1000", "requests per CPU s": "requests_per_cpu_s",
    "added p50 ms": "p50_added_ms", "added p99 ms": "p99_added_ms", "spread of CPU": "cpu_spread",
}  # fmt: skip
_PROBE_COLUMNS = {"probe p99 ms": "probe_p99_ms", "probe max ms": "probe_max_ms"}
_STREAM_COLUMNS = {
    "share of direct's tokens": "rate_share", "added TTFT p50 ms": "ttft_p50_added_ms",
    "added TTFT p99 ms": "ttft_p99_added_ms", "token delay p50 ms": "token_delay_p50_ms",
    "token delay p99 ms": "token_delay_p99_ms", "CPU us per token": "cpu_us_per_token",
}  # fmt: skip


def tables(outcome: dict[str, Any]) -> str:
    """Markdown: what was measured and on what first, then a table for each cell, then what went wrong."""
    names = [name for name, value in outcome.items() if isinstance(value, dict) and "rss_growth_mb" in value]
    parameters, machine = outcome["parameters"], outcome["machine"]
    limits = ", ".join(f"{cell} {_number(rate)}/s" for cell, rate in outcome["load_limit"].items())
    lines = [
        f"{machine['cores']} cores, {machine['processor']}, Python {machine['python']}; "
        f"{parameters['rounds']} interleaved rounds of {parameters['seconds']} s, medians; cores {parameters['cores']}",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in outcome["versions"].items()),
        f"The load generator's own limit (direct, upstream on the same core): {limits or 'not measured'}",
    ]
    for cell in parameters["cells"]:
        columns = _STREAM_COLUMNS if cell.startswith("streams/") else _REQUEST_COLUMNS
        if outcome["direct"]["cells"][cell].get("probe_max_ms") is not None:
            columns = columns | _PROBE_COLUMNS
        ratios = outcome["ratios"].get(cell, {})
        rows = []
        for name in names:
            found = outcome[name]["cells"].get(cell, {})
            extra = [_number(ratios.get(name))] if ratios else []
            rows.append([name, *(_number(found.get(key)) for key in columns.values()), *extra])
        lines += _table(cell, ["target", *columns, *(["gateway is x times"] if ratios else [])], rows)
    process = [
        [name, *(_number(outcome[name][key]) for key in ("start_s", "rss_mb", "rss_growth_mb"))] for name in names
    ]
    lines += _table("Process", ["target", "start to first answer s", "RSS MB", "RSS growth MB"], process)
    lines += [""] + [f"{name}: {why}" for name, why in outcome["absent"].items()]
    if outcome["errors"]:
        lines += ["", "**This run had errors; the figures of these cells are not to be used:**"]
        lines += [
            f"- {name} {cell}: {kinds}" for name, cells in outcome["errors"].items() for cell, kinds in cells.items()
        ]
    else:
        lines += ["", "Every answer was whole: no errors."]
    return "\n".join(lines)
