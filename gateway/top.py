"""`gateway top`: the status page in a terminal, for ssh. It follows the same stream as the page at `/`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.terminal import COMPARED, REASONS, crossing, seconds

KEY_VARIABLE = "GATEWAY_OPERATOR_KEY"
PLAIN_WIDTH = 160
"""Columns if the output is no terminal."""
WITH_POSITIONS = 100
"""Columns from which on there is room for each pool's acceptance by position."""
WIDE = 120
"""Columns from which on there is room for each decision's expected times."""
SILENCE = 10.0
"""Seconds without an event after which the connection counts as lost."""
RETRY_SECONDS = 1.0
Snapshot = Mapping[str, Any]


class Refused(Exception):
    """The gateway does not show its status; the message says what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="address of the gateway (default http://127.0.0.1:8080)"
    )
    parser.add_argument("--key", default=None, help=f"operator key, if the gateway needs one (env {KEY_VARIABLE})")
    parser.add_argument(
        "--once", action="store_true", help="print the state once and end, as always where the output is no terminal"
    )


def main(args: argparse.Namespace) -> int:
    """Shows the status until ctrl-c, or once. 1 where the gateway cannot be reached or does not show it."""
    console = Console()
    key = args.key or os.environ.get(KEY_VARIABLE)
    once = args.once or not console.is_terminal
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    try:
        if once:
            console.print(screen(next(snapshots(args.url, key)), 15, console.width))
        else:
            _follow(args.url, key, console)
    except KeyboardInterrupt:
        return 0
    except Refused as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        print(f"gateway: {args.url} cannot be reached: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


def snapshots(url: str, key: str | None) -> Iterator[Snapshot]:
    """The snapshots as they come. Raises Refused, and httpx.HTTPError for a lost connection."""
    headers = {b"authorization": f"Bearer {key}".encode()} if key else {}
    limits = httpx.Timeout(5.0, read=SILENCE)
    address = url.rstrip("/") + "/gateway/events"
    with httpx.stream("GET", address, headers=headers, timeout=limits, trust_env=False) as answer:
        if answer.status_code != 200:
            raise Refused(_why(answer, key))
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield orjson.loads(line[6:])
    raise httpx.ReadError("the stream ended")


def _why(answer: httpx.Response, key: str | None) -> str:
    if answer.status_code == 401:
        return "the operator key is wrong" if key else f"an operator key is needed: --key KEY, or {KEY_VARIABLE}"
    answer.read()
    try:
        return f"{answer.url} answers {answer.status_code}: {answer.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answers {answer.status_code}; is this a gateway?"


def _follow(url: str, key: str | None, console: Console) -> None:
    """Shows the stream until interrupted; reconnects after a restart of the gateway."""
    seen = False
    with Live(Text("connecting"), console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                for snapshot in snapshots(url, key):
                    seen = True
                    rows = max(console.height - 14 - len(snapshot["pools"]), 3)
                    live.update(screen(snapshot, rows, console.width), refresh=True)
            except httpx.HTTPError:
                if not seen:
                    raise
                live.update(Text(f"{url} is lost; connecting again", style="bold red"), refresh=True)
                time.sleep(RETRY_SECONDS)


def screen(snapshot: Snapshot, rows: int, width: int) -> RenderableType:
    """The whole screen, with at most `rows` decisions, for a terminal of `width` columns."""
    return Group(
        _head(snapshot),
        _pools(snapshot, positions=width >= WITH_POSITIONS),
        _flow(snapshot),
        *_break_even(snapshot),
        *_canary(snapshot),
        _decisions(snapshot, rows, wide=width >= WIDE),
    )


def _head(snapshot: Snapshot) -> Text:
    traffic, policy = snapshot["traffic"], snapshot["policy"]
    text = Text.assemble(
        ("MTP gateway ", "bold"),
        f"{snapshot['version']}  ",
        (f"{traffic['per_second']:.1f} requests/s", "bold"),
        f"  {traffic['tokens_per_second']:.0f} tokens/s  first token {seconds(traffic['ttft'])}  ",
        (f"{traffic['failed']} failed  ", "bold red" if traffic["failed"] else ""),
        f"{traffic['saved'] - traffic['lost']:+.1f} s against the other pool in {traffic['flow_window']:.0f} s  ",
        f"policy {policy['hash']} ({policy['objective']})",
    )
    problems = [
        *(["stopping"] if snapshot["draining"] else []),
        *([f"no pool for {', '.join(snapshot['models_without_pool'])}"] if snapshot["models_without_pool"] else []),
        *(["the policy file is invalid; the last good one stays in use"] if policy["error"] else []),
        *([] if snapshot["state"]["connected"] else ["shared state is lost"]),
        *(
            f"{found['url']} in {found['pool']} does not draft as the policy says"
            for found in snapshot["disagreements"]
        ),
    ]
    for problem in problems:
        text.append(f"\n! {problem}", style="bold red")
    return text


def _pools(snapshot: Snapshot, *, positions: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("pool", "kind"):
        table.add_column(name, no_wrap=True)
    holding = any(map(_held, snapshot["pools"]))
    load = ("up", "running", "waiting", *(["held"] if holding else []))
    for name in (*load, "k", "accepted", *(["by position"] if positions else []), "gain"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("drafting")
    for pool in snapshot["pools"]:
        reports = [report for report in snapshot["mtp"] if report["pool"] == pool["pool"]] or [None]
        up = sum(row["up"] for row in pool["endpoints"])
        for at, report in enumerate(reports):
            drafting = _drafting(report, positions=positions)
            if at:
                table.add_row("", "", *("" for _ in load), *drafting)
                continue
            limit = f"/{pool['limit']}" if pool["limit"] else ""
            full = "" if up == len(pool["endpoints"]) else "bold red"
            table.add_row(
                pool["pool"],
                Text(pool["kind"], style="magenta" if pool["kind"] == "mtp" else "cyan"),
                Text(f"{up}/{len(pool['endpoints'])}", style=full),
                f"{pool['in_flight']}{limit}",
                str(pool["waiting"]),
                *([str(_held(pool) or "")] if holding else []),
                *drafting,
            )
    return table


def _held(pool: Mapping[str, Any]) -> int:
    """Requests of those running whose prompts wait for their engine's turn. Gateways of other versions report none."""
    return sum(row.get("held", 0) for row in pool["endpoints"])


def _drafting(report: Mapping[str, Any] | None, *, positions: bool) -> tuple[str | Text, ...]:
    if report is None:
        return ()
    found, gain = report["acceptance"], report["gain"]
    rates = " ".join(f"{rate:.0%}" for rate in found["position_acceptance_rates"]) if found else ""
    style = {"healthy": "green", "unknown": "dim"}.get(report["state"], "bold red")
    return (
        str(report["tokens"] or ""),
        f"{found['acceptance_rate']:.0%}" if found else "-",
        *([rates] if positions else []),
        f"{gain['tpot_improvement_ratio']:+.0%}" if gain else "-",
        Text(f"{report['model']}: {report['state'].replace('_', ' ')}", style=style),
    )


def _flow(snapshot: Snapshot) -> Table | Text:
    rows = snapshot["traffic"]["flow"]
    if not rows:
        return Text("no requests in the last five minutes\n", style="dim")
    pools = sorted({row["pool"] for row in rows})
    counts = {(row["task"], row["pool"]): row["requests"] for row in rows}
    table = Table("task", box=SIMPLE_HEAD, pad_edge=False)
    for pool in pools:
        table.add_column(pool, justify="right")
    tasks = dict.fromkeys(row["task"] for row in rows)
    for task in sorted(tasks, key=lambda task: -sum(counts.get((task, pool), 0) for pool in pools)):
        table.add_row(task, *(str(counts.get((task, pool), "")) for pool in pools))
    return table


def _break_even(snapshot: Snapshot) -> Iterator[Text]:
    kinds = {pool["pool"]: pool["kind"] for pool in snapshot["pools"]}
    for model in snapshot["models"]:
        yield Text(
            f"{model['model']}: {crossing(model, kinds)} ({COMPARED}, {model['prompt']} prompt tokens, present load)"
        )


def _canary(snapshot: Snapshot) -> Iterator[RenderableType]:
    """The canary beside the live policy, if there is one. Gateways of other versions may not report it."""
    if not (canary := snapshot.get("canary")):
        return
    beside = canary["beside"]
    table = Table("decided by", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("requests", "failed", "mean", "regret"):
        table.add_column(name, justify="right")
    for name in ("live", "canary"):
        arm = beside[name]
        failed = Text("-" if arm["failed_share"] is None else f"{arm['failed_share']:.1%}")
        failed.stylize("bold red" if arm["failed"] else "")
        table.add_row(name, str(arm["requests"]), failed, seconds(arm["mean_seconds"]), seconds(arm["mean_regret"]))
    yield table
    yield Text(
        f"canary {canary['hash']} takes {canary['share']:.1%}: {beside['flips']} of its {beside['canary']['requests']} "
        f"would go elsewhere under the live policy, {beside['saved']:.1f} s saved, {beside['lost']:.1f} s lost"
    )
    if canary["problem"] or canary["error"]:
        yield Text(f"! the canary: {canary['problem'] or 'its file is invalid'}", style="bold red")


def _why_chosen(row: Mapping[str, Any]) -> str:
    if row["reason"] == "rule":
        return str(row["detail"])
    taken = next((pool["seconds"] for pool in row["pools"] if pool["pool"] == row["pool"]), None) or 0.0
    if row["reason"] == "faster" and any(not pool["out"] and (pool["seconds"] or 0.0) < taken for pool in row["pools"]):
        # Under `fleet` the winner may be slower for the request itself.
        return "least time, counting the others' too"
    return REASONS.get(row["reason"] or "", row["error"] or "")


def _decisions(snapshot: Snapshot, rows: int, *, wide: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("time", "task", "tokens", "pool", "why", *(["expected"] if wide else []), "took", "end"):
        # Columns that may wrap lose room first; their texts are cut instead, so that each decision stays on one line.
        table.add_column(
            name, justify="right" if name in ("tokens", "took") else "left", no_wrap=name not in ("why", "expected")
        )
    for row in snapshot["decisions"][:rows]:
        times = "  ".join(f"{pool['pool']} {pool['out'] or seconds(pool['seconds'])}" for pool in row["pools"])
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(row["at"])),
            row["task"] or "-",
            f"{'-' if row['tokens'] is None else row['tokens']} ({row['predicted']})" if row["task"] else "-",
            row["pool"] or "-",
            _one_line(_why_chosen(row)),
            *([_one_line(times)] if wide else []),
            seconds(row["seconds"]),
            Text(row["result"], style="green" if row["result"] == "ok" else "red"),
        )
    return table


def _one_line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
