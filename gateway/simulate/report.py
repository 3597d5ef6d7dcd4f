"""Terminal output of `gateway simulate`. All results are labelled as simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.simulate.arms import ARMS


def print_suite(found: Mapping[str, Any], console: Console) -> None:
    """One row per cell: the default objective's mean, and every arm relative to it."""
    objective = found["objective"]
    table = Table(title=f"Simulated mean seconds of `{objective}`; other arms relative to it", title_justify="left")
    for column in ("traffic", "profile", "model", "load"):
        table.add_column(column)
    names = [arm.name for arm in ARMS if arm.name != objective]
    table.add_column(objective, justify="right")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    cells: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in found["cells"]:
        key = (row["traffic"], row["profile"], row["model"], row["load"])
        cells.setdefault(key, {})[row["arm"]] = row["mean_s"]
    for key, means in cells.items():
        base = means[objective]
        others = (_relative(means[name] / base - 1.0) for name in names)
        table.add_row(*(str(part) for part in key), f"{base:.3f}", *others)
    console.print(table)
    print_summary(found["summary"], objective, console)


def print_summary(summary: Mapping[str, Any], objective: str, console: Console) -> None:
    console.print(f"[bold]{objective}[/] over {summary['cells']} cells, simulated:")
    for name, text in (
        ("oracle", "the same objective with known lengths"),
        ("oracle_routing", "the same, but its queue uses estimated lengths"),
        ("best_single", "the better of the deployed pools for everything"),
        ("best_static", "the best static threshold in hindsight, on mixed traffic"),
        ("best_converted", "as many engines, all of the better kind: another deployment, not a routing"),
        ("arrival", "the same routing with a FIFO queue"),
    ):
        worst = summary.get(f"worst_vs_{name}")
        if worst is None:
            continue
        where = ", ".join(map(str, summary[f"where_{name}"]))
        mean = summary[f"mean_vs_{name}"]
        console.print(f"  against {text}: mean {mean:+.1%}, worst {worst:+.1%} ({where})", highlight=False)
        for loss in summary.get(f"beyond_{name}", ()):
            cell = ", ".join(map(str, loss["cell"]))
            console.print(f"    [yellow]loses[/] {loss['slower']:+.1%} on {cell}", highlight=False)


def print_measured(rows: Sequence[Mapping[str, Any]], pairs: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Measured pools beside their simulation."""
    table = Table(title="Pools measured on one H200, and simulated; mean ms", title_justify="left")
    for column in (
        "model",
        "req/s per GPU",
        "arrangement",
        "short measured",
        "simulated",
        "long measured",
        "simulated",
    ):
        table.add_column(column, justify="left" if column in ("model", "arrangement") else "right")
    for row in rows:
        table.add_row(
            row["model"],
            f"{row['rate']:g}",
            row["arrangement"],
            f"{row['short_measured_ms']:.0f}",
            f"{row['short_ms']:.0f}",
            f"{row['long_measured_ms']:.0f}",
            f"{row['long_ms']:.0f}",
        )
    console.print(table)
    same = sum(pair["same"] for pair in pairs)
    console.print(f"{same} of {len(pairs)} pairs that measured 10 % or more apart keep their order in the simulation.")
    for pair in pairs:
        if not pair["same"]:
            console.print(
                f"  not: {pair['model']} at {pair['rate']:g}/s, {pair['kind']}: {pair['first']} / {pair['second']} "
                f"measured {pair['measured_ratio']:.2f}, simulated {pair['simulated_ratio']:.2f}",
                highlight=False,
            )


def print_split(rows: Sequence[Mapping[str, Any]], title: str, console: Console) -> None:
    """Splits of the slices into plain and MTP engines, best first."""
    table = Table(title=title, title_justify="left")
    for column in ("plain", "MTP", "mean s", "p99 s", "mean s by class"):
        table.add_column(column, justify="right")
    for row in rows:
        kinds = "  ".join(f"{kind} {mean:.3f}" for kind, mean in sorted(row["mean_by_kind_s"].items()))
        style = "bold green" if row is rows[0] else ""
        figures = (f"{row['mean_s']:.3f}", f"{row['p99_s']:.3f}")
        table.add_row(str(row["plain"]), str(row["mtp"]), *figures, kinds, style=style)
    console.print(table)


def print_day(found: Mapping[str, Any], console: Console) -> None:
    """A day by its parts."""
    title = (
        f"{found['requests']:,} requests of a day at {found['rate']:g}/s ({found['traffic']}, {found['profile']}, "
        f"{found['model']}) in {found['wall_seconds']:.0f} s; simulated"
    )
    table = Table(title=title, title_justify="left")
    for column in ("hour", "requests", "mean s", "p99 s", "to MTP"):
        table.add_column(column, justify="right")
    for part in found["parts"]:
        share = part["taken"].get("mtp", 0) / max(sum(part["taken"].values()), 1)
        table.add_row(
            f"{part['hour']:g}",
            f"{part['requests']:,}",
            f"{part['mean_s']:.3f}",
            f"{part['p99_s']:.3f}",
            f"{share:.0%}",
        )
    console.print(table)


def _relative(value: float) -> str:
    text = f"{value:+.1%}" if abs(value) < 10 else f"{value:+.0%}"
    return f"[red]{text}[/]" if value < -0.02 else text
