"""What commands print for people: tables, in colour if the terminal has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
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

COMPARED = "chat"
"""The task whose break-even is told."""


def seconds(value: float | None) -> str:
    """Seconds as text: `12 ms`, `1.50 s`, or `-` for None."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def crossing(model: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """From how many output tokens on the best MTP pool beats the best plain one, in words."""
    series = {name: row for name, row in model["seconds"][COMPARED].items() if row}
    best = {}
    for kind in ("plain", "mtp"):
        rows = [row for name, row in series.items() if kinds.get(name) == kind]
        if not rows:
            return "one kind of pool only"
        best[kind] = [min(row[at] for row in rows) for at in range(len(model["lengths"]))]
    ahead = [math.log(plain / mtp) for plain, mtp in zip(best["plain"], best["mtp"], strict=True)]
    last = max((at for at, gain in enumerate(ahead) if gain <= 0), default=-1)
    if last == len(ahead) - 1:
        return "MTP does not pay at this load"
    if last < 0:
        return "MTP is faster at every length"
    share = -ahead[last] / (ahead[last + 1] - ahead[last])
    low, high = model["lengths"][last], model["lengths"][last + 1]
    tokens = round(low * (high / low) ** share)
    return f"MTP pays from about {tokens} token{'s' if tokens > 1 else ''}"


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
