"""What commands print for people: tables, in colour if the terminal has it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

REASONS = {
    "only_pool": "the model has no other pool",
    "client": "the client asked for it",
    "gate": "the others cannot serve this request",
    "rule": "a rule of the policy says so",
    "faster": "it finishes first",
    "tie": "equal times; the threshold decides",
    "threshold": "the static threshold decides",
    "sticky": "the conversation's prefix is cached there",
    "spill": "the others are down or full",
    "explore": "a small share keeps both curves fresh",
    "pass_through": "routed by model only",
}


def seconds(value: float | None) -> str:
    """Seconds as text: `12 ms`, `1.50 s`, or `-` for None."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def print_explanation(found: dict[str, Any], console: Console | None = None) -> None:
    """Prints an explanation: the request's features, its estimate, each pool's expected time, and the choice."""
    console = console or Console()
    estimate, decision = found["estimate"], found["decision"]
    summary = Table(title=f"model {found['model']}", title_justify="left", show_header=False, box=None, pad_edge=False)
    shown = {k: v for k, v in found["features"].items() if v not in (None, [], 0, 0.0, "none", False)}
    summary.add_row("features", "  ".join(f"{name}={_plain(value)}" for name, value in shown.items()))
    summary.add_row(
        "estimate",
        f"[bold]{estimate['task']}[/], {estimate['output_tokens']:g} output tokens "
        f"(p50 {estimate['p50']:g}, p90 {estimate['p90']:g}), "
        f"confidence {estimate['confidence']:g} from {estimate['source']}",
    )
    console.print(summary)
    pools = Table("pool", "kind", "expected", "")
    for row in found["pools"]:
        won = row["pool"] == decision["pool"]
        why = (row["out"] and f"out: {row['out']}") or ("chosen" if won else "")
        pools.add_row(
            row["pool"], row["kind"], seconds(row["expected_seconds"]), why, style="bold green" if won else ""
        )
    console.print(pools)
    detail = f" ({decision['detail']})" if decision["detail"] else ""
    console.print(f"-> [bold green]{decision['pool']}[/]: {decision['reason']}{detail}, {REASONS[decision['reason']]}")
    if path := found.get("asks_first"):
        console.print(f"   {path} is asked first, which reads the label off the prompt; if that fails, it is decoded")


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
