"""The command `gateway replay`: arguments, the table, and JSON."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.decisions.replay import Report, replay
from gateway.policy.load import STDIN, load_argument
from gateway.settings import InvalidSetting

SHOWN = 10
"""Single requests that the table names."""
PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", required=True, metavar="FILE", help="the other policy file; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print JSON, with every request that would go elsewhere")
    parser.add_argument("decisions", metavar="DECISIONS.jsonl", help="the decision log; - reads standard input")


def main(args: argparse.Namespace) -> int:
    """Prints the report. 1 where the log holds no decision to compare. Raises PolicyInvalid, InvalidSetting or
    OSError."""
    if args.policy == args.decisions == STDIN:
        raise InvalidSetting("the policy and the decision log cannot both come on standard input")
    policy = load_argument(args.policy, os.environ, sys.stdin.buffer)
    if args.decisions == STDIN:
        report = replay(policy, sys.stdin.buffer)
    else:
        with Path(args.decisions).open("rb") as lines:
            report = replay(policy, lines)
    if report.rows == report.unreadable:
        remedy = "`logging: {decisions: FILE}` in a gateway's policy writes them"
        print(f"gateway: {args.decisions} holds no decisions; {remedy}", file=sys.stderr)
        return 1
    if args.json:
        print(orjson.dumps(report.object(), option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console()
        print_report(report, console if console.is_terminal else Console(width=PLAIN_WIDTH))
    if not report.compared and not report.refused:
        print("gateway: none of the decisions could be compared: is it the policy of other models?", file=sys.stderr)
        return 1
    return 0


def print_report(report: Report, console: Console) -> None:
    """For people: how many requests would go elsewhere, the time that gains, and the requests that change most."""
    _print_sums(report, console)
    if report.flips:
        console.print(_moves(report))
        console.print(_largest(report))


def _print_sums(report: Report, console: Console) -> None:
    share = len(report.flips) / report.compared if report.compared else 0.0
    console.print(
        f"[bold]{len(report.flips)}[/] of {report.compared} requests would go elsewhere ({share:.1%}); "
        f"estimated gain [bold]{report.gain:+.2f} s[/] of {report.seconds:.2f} s "
        f"(saved {report.saved:.2f} s, lost {report.lost:.2f} s)",
        highlight=False,
    )
    console.print(
        f"regret against the best pool: {report.regret_before:.2f} s as it was, {report.regret_after:.2f} s then",
        highlight=False,
    )
    if report.missing_pools:
        listed = ", ".join(f"{name} ({count} requests)" for name, count in sorted(report.missing_pools.items()))
        console.print(
            f"[yellow]warning:[/] the policy has no pool {listed}. Pools are identified by name, so that each of "
            "these requests counts as going elsewhere: give the policy's pools the names that the log has.",
            highlight=False,
        )
    left = [
        f"{count} {what}"
        for count, what in (
            (report.refused, "would be refused"),
            (report.unknown_model, "for models that the policy does not have"),
            (report.unrouted, "never routed"),
            (report.unreadable, "unreadable"),
        )
        if count
    ]
    if left:
        console.print("not compared: " + ", ".join(left), highlight=False)


def _moves(report: Report) -> Table:
    moves = Table("model", "from", "to", box=SIMPLE_HEAD)
    moves.add_column("requests", justify="right")
    moves.add_column("gain", justify="right")
    for (model, before, after), move in sorted(report.moves.items(), key=lambda row: -abs(row[1].gain)):
        moves.add_row(model, before, after, str(move.requests), f"{move.gain:+.3f} s")
    return moves


def _largest(report: Report) -> Table:
    single = Table(box=SIMPLE_HEAD, pad_edge=False, title="largest changes", title_justify="left")
    # An identifier's end tells it from the others, so what is cut on a narrow terminal are other columns.
    single.add_column("request", no_wrap=True)
    for name in ("task", "from", "to", "why"):
        single.add_column(name)
    single.add_column("gain", justify="right", no_wrap=True)
    for flip in sorted(report.flips, key=lambda flip: -abs(flip.gain or 0.0))[:SHOWN]:
        gain = "-" if flip.gain is None else f"{flip.gain:+.3f} s"
        reason = flip.reason.value if flip.reason else ""
        single.add_row(flip.request_id, flip.task.value, flip.before, flip.after or "", reason, gain)
    return single
