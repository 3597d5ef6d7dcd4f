"""`gateway bench estimator --data FILE`: how well output lengths are predicted. See protocols.py for the protocols.

Needs numpy (extra `train`): each protocol trains its own prior, never on the rows that it is judged on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import Progress

from gateway.bench import scores
from gateway.bench.protocols import FOLDS, Trained, cold_and_warm, cost, grouped, new_template, trace
from gateway.bench.scatter import scatter
from gateway.bench.scores import Judged
from gateway.estimate.boost import Settings
from gateway.estimate.train import read_rows
from gateway.profiles import get_profile

PROFILES = (("h200", "e4b"), ("h200", "26b-a4b"))
AIMS: dict[str, str] = {
    "cold.tau": "0.42", "cold.acc64": "0.78", "warm.tau": "0.78", "warm.acc16": "0.96", "warm.acc64": "0.93",
    "grouped.tau": "0.78", "grouped.acc64": "0.91", "new_template.acc16": "0.97", "japanese_open.acc64": "0.93",
    "regret.warm": "at most 0.05", "regret.cold": "at most 0.15", "cost_ms.2kb": "at most 0.2",
    "cost_ms.128kb": "at most 1",
}  # fmt: skip
QUICK = Settings(trees=40, depth=4, rate=0.2, shrink=10.0)


def run(options: argparse.Namespace) -> int:
    """Runs all protocols and prints the report. Returns 1 if the data cannot be read."""
    console = Console(stderr=True)
    try:
        rows = read_rows(options.data)
        with options.data.open("rb") as lines:
            records = [orjson.loads(line) for line in lines]
    except (OSError, ValueError) as exc:
        print(f"{options.data}: {exc}", file=sys.stderr)
        return 1
    if len({row.source for row in rows}) < 2:
        print(f"{options.data}: rows of at least two sources are needed, to leave one out", file=sys.stderr)
        return 1
    if options.quick:
        rows, records = rows[::4], records[::4]
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=None)
        total = 2 * len({row.source for row in rows}) + FOLDS + 2
        progress.update(bar, total=total)
        report, points = measure(rows, records, options, lambda what: progress.update(bar, advance=1, description=what))
    if options.points:
        _write_points(options.points, points)
    if options.svg:
        options.svg.write_text(scatter({"cold": points["cold"], "warm": points["warm"]}), encoding="utf-8")
    print(json.dumps(report, ensure_ascii=False) if options.json else markdown(report))
    return 0


def measure(
    rows: list[Any], records: list[dict[str, Any]], options: argparse.Namespace, tick: Any
) -> tuple[dict[str, Any], dict[str, list[Judged]]]:
    """(the report, the judged rows by protocol)."""
    trained = Trained(rows, QUICK if options.quick else Settings(), options.seed, tick)
    cold, warm = cold_and_warm(trained, tick)
    folds = grouped(trained, options.seed, tick)
    systems = [_system(record) for record in records]
    template = new_template(trained, systems, 100, tick)
    small = new_template(trained, systems, 49, lambda what: None)
    profiles = [get_profile(hardware, model) for hardware, model in PROFILES]
    japanese = [j for j in folds if records[j.row]["lang"] == "ja" and records[j.row].get("output_kind") == "model"]
    sources = [record["source"] for record in records]
    repeats = 100 if options.quick else 400
    costs = {name: cost(rows, records, size, repeats) for name, size in (("2kb", 2048), ("128kb", 131_072))}
    report: dict[str, Any] = {
        "rows": len(rows),
        "quick": options.quick,
        "cold": {**_length_scores(cold), "tau_within": scores.tau_within(cold, [sources[j.row] for j in cold])},
        "warm": {
            **_length_scores(warm),
            "tau_within": scores.tau_within(warm, [sources[j.row] for j in warm]),
            "other_model_acc64": _foretold(warm, records),
        },
        "grouped": {**_length_scores(folds), "other_model_acc64": _foretold(folds, records)},
        "new_template": {
            "acc16": scores.accuracy(template, 16),
            "rows": len(template),
            "acc16_from_50_rows": scores.accuracy(small, 16),
        },
        "japanese_open": {
            "acc64": scores.accuracy(japanese, 64),
            "rows": len(japanese),
            "best_model_acc64": _ceiling(japanese, records),
            "other_model_acc64": _foretold(japanese, records),
        },
        "p90_coverage": scores.coverage(warm),
        "p90_coverage_grouped": scores.coverage(folds),
        "task_rows": dict(Counter(j.task.value for j in warm)),
        "regret": {
            "cold": scores.regret(cold, profiles, know_task=True),
            "warm": scores.regret(warm, profiles, know_task=True),
        },
        "regret_other_model": {
            "cold": scores.regret(cold, profiles, know_task=True, lengths=_told(cold, records)),
            "warm": scores.regret(warm, profiles, know_task=True, lengths=_told(warm, records)),
        },
        "regret_with_task": {
            "cold": scores.regret(cold, profiles, know_task=False),
            "warm": scores.regret(warm, profiles, know_task=False),
        },
        "traces": _traces(options.traces or options.data.parent / "traces", 2000 if options.quick else None),
        "cost_ms": {name: c.estimate_and_observe for name, c in costs.items()},
        "extract_ms": {name: c.extract for name, c in costs.items()},
        "misses": {"cold": scores.misses(cold), "warm": scores.misses(warm)},
    }
    return _rounded(report), {"cold": cold, "warm": warm, "grouped": folds}


def _length_scores(judged: Sequence[Judged]) -> dict[str, float]:
    sides = {f"acc{t}": scores.accuracy(judged, t) for t in (16, 64, 256)}
    return {"tau": scores.tau(judged), **sides, "rows": len(judged)}


def _system(record: dict[str, Any]) -> str:
    first = record["messages"][0]
    return str(first["content"]) if first["role"] == "system" else ""


def _ceiling(judged: Sequence[Judged], records: list[dict[str, Any]]) -> float | None:
    """The best agreement at 64 tokens between another model's real lengths and the actual ones, same prompts."""
    agree: dict[str, list[bool]] = {}
    for j in judged:
        for model, tokens in (records[j.row].get("alt_output_tokens") or {}).items():
            agree.setdefault(model, []).append((tokens > 64) == (j.tokens > 64))
    full = [sum(sides) / len(sides) for sides in agree.values() if len(sides) >= 0.5 * len(judged)]
    return max(full) if full else None


def _foretold(judged: Sequence[Judged], records: list[dict[str, Any]]) -> float:
    """Agreement at 64 tokens if the prediction were a random other model's real length on the same prompt. Rows without
    another model keep their prediction. Hard to exceed, since the prompt does not show how two models differ.
    """
    total = 0.0
    for j in judged:
        long = j.tokens > 64
        others = list((records[j.row].get("alt_output_tokens") or {}).values())
        right = [(tokens > 64) == long for tokens in others] or [(j.estimate.p50 > 64) == long]
        total += sum(right) / len(right)
    return total / max(1, len(judged))


def _told(judged: Sequence[Judged], records: list[dict[str, Any]]) -> list[list[float]]:
    """Other models' real lengths on each row's prompt, or the predicted length where there are none."""
    return [
        list((records[j.row].get("alt_output_tokens") or {}).values()) or [j.estimate.output_tokens] for j in judged
    ]


def _traces(folder: Path, limit: int | None) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("*.csv")):
        judged = trace(path, limit)
        share = sum(j.tokens > 64 for j in judged) / max(1, len(judged))
        found[path.stem] = {
            "acc64": scores.accuracy(judged, 64),
            "majority64": max(share, 1 - share),
            "acc128": scores.accuracy(judged, 128),
            "tau": scores.tau(judged),
            "p90_coverage": scores.coverage(judged).get("unknown", 0.0),
            "rows": len(judged),
        }
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown tables."""
    lines = [f"{report['rows']} rows" + (" (quick: not a figure to quote)" if report["quick"] else ""), ""]
    lines += ["| figure | measured | to reach |", "| --- | --- | --- |"]
    for name, aim in AIMS.items():
        group, key = name.split(".")
        lines.append(f"| {name} | {report[group][key]} | {aim} |")
    for title, key in (("p90 coverage, warm", "p90_coverage"), ("p90 coverage, grouped", "p90_coverage_grouped")):
        lines += ["", f"| {title} | share |", "| --- | --- |"]
        lines += [f"| {task} | {share} |" for task, share in report[key].items()]
    lines += ["", "| trace | acc@64 | majority | acc@128 | tau |", "| --- | --- | --- | --- | --- |"]
    for name, t in report["traces"].items():
        lines.append(f"| {name} | {t['acc64']} | {t['majority64']} | {t['acc128']} | {t['tau']} |")
    lines += ["", "| misses at 64 tokens | cold | warm |", "| --- | --- | --- |"]
    cold, warm = report["misses"]["cold"], report["misses"]["warm"]
    lines += [f"| {kind} | {cold.get(kind, 0)} | {warm.get(kind, 0)} |" for kind in sorted({**cold, **warm})]
    return "\n".join(lines)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _write_points(path: Path, points: dict[str, list[Judged]]) -> None:
    lines = ["protocol,task,predicted_p50,predicted_p90,actual"]
    for protocol, judged in points.items():
        lines += [f"{protocol},{j.task},{j.estimate.p50:.2f},{j.estimate.p90:.2f},{j.tokens}" for j in judged]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
