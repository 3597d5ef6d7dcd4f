"""`gateway bench load`: latency percentiles by task and pool, and goodput under an SLO, from open-loop arrivals.

Arrivals do not wait for answers, and latency counts from when a request was due, so a back end that falls behind
cannot slow down its own measurement. Arrivals are Poisson with a mix of tasks, or follow a trace file (CSV: t_s,
input_tokens, output_tokens) with filler prompts and forced answers of the recorded lengths.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from gateway.bench.client import BenchError, Target, UsageError
from gateway.bench.drive import Ask, Tick, open_loop, require
from gateway.bench.rows import Row
from gateway.bench.session import add_common, count, opened, target
from gateway.bench.sources import data, filler, published, published_dict
from gateway.bench.summary import latencies, percentile
from gateway.figures.report import Plot, Report, Series, Table
from gateway.settings import number

QUANTILES = (50, 90, 95, 99)
QUICK_REQUESTS = 40
_UNITS = {"ms": 0.001, "s": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, metavar="URL", help="a gateway, or one back end")
    parser.add_argument("--rate", type=_positive, default=2.0, metavar="R", help="requests per second (%(default)s)")
    parser.add_argument("--requests", type=count, default=200, metavar="N", help="requests at most (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=5, metavar="N", help="first requests not counted (%(default)s)")
    parser.add_argument("--mix", metavar="TASK=SHARE,...", help="shares of tasks, as classification=0.5,code=0.5")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="arrivals from a trace instead of --rate and --mix")
    parser.add_argument(
        "--speed", type=_positive, default=1.0, metavar="X", help="replays the trace X times as fast (%(default)s)"
    )
    parser.add_argument(
        "--slo", default="ttft=1s,tpot=100ms", metavar="ttft=T,tpot=T,e2e=T", help="limits for goodput (%(default)s)"
    )
    add_common(parser, runs=None)


def make(args: argparse.Namespace) -> Load:
    """Raises BenchError."""
    rng = Random(args.seed)
    most = min(args.requests, QUICK_REQUESTS) if args.quick else args.requests
    slo = slo_of(args.slo)
    if args.trace:
        asks = from_trace(args.trace, args.speed, most, rng)
    else:
        asks = poisson(args.rate, most, mix_of(args.mix), rng)
    return Load(target(args, "load", args.url), asks, slo, args.warm_up)


def slo_of(text: str) -> dict[str, float]:
    """Parses `ttft=500ms,tpot=50ms` to seconds. Raises UsageError."""
    found = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        unit = next((unit for unit in _UNITS if value.endswith(unit)), "")
        try:
            found[name] = float(value.removesuffix(unit)) * _UNITS[unit]
        except (ValueError, KeyError):
            raise UsageError(f"--slo {part}: expected NAME=TIME, as ttft=500ms") from None
        if name not in ("ttft", "tpot", "e2e"):
            raise UsageError(f"--slo {part}: expected ttft, tpot or e2e")
    return found


def mix_of(text: str | None) -> dict[str, float]:
    """Parses the shares by task. Raises UsageError."""
    known = data("prompts")["tasks"]
    if not text:
        shares: dict[str, float] = data("prompts")["mix"]
        return shares
    found = {}
    for part in text.split(","):
        task, _, share = part.strip().partition("=")
        if task not in known:
            raise UsageError(f"--mix: unknown task {task!r}; known: {', '.join(known)}")
        found[task] = _share(share or "1")
    return found


def poisson(rate: float, number: int, mix: dict[str, float], rng: Random) -> list[Ask]:
    """Poisson arrivals; each draws a task from `mix`, then one of its prompts."""
    tasks, at, asks = data("prompts")["tasks"], 0.0, []
    for _ in range(number):
        at += rng.expovariate(rate)
        task = rng.choices(list(mix), list(mix.values()))[0]
        about = tasks[task]
        asks.append(Ask(at, _body(rng.choice(about["asks"]), rng, max_tokens=about["max_tokens"]), task))
    return asks


def from_trace(path: Path, speed: float, most: int, rng: Random) -> list[Ask]:
    """The first `most` requests of a trace, their times divided by `speed`. Raises BenchError."""
    asks: list[Ask] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                at, prompt, answer = float(row["t_s"]), int(row["input_tokens"]), int(row["output_tokens"])
                task = "trace, short" if answer <= 64 else "trace, long"
                body = _body(filler(prompt, rng), rng, max_tokens=max(answer, 1), ignore_eos=True)
                asks.append(Ask(at / speed, body, task))
                if len(asks) == most:
                    break
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise BenchError(
            f"{path}, request {len(asks) + 1}: expected t_s,input_tokens,output_tokens: {error}"
        ) from error
    if not asks:
        raise BenchError(f"{path}: no requests in it")
    start = asks[0].at
    return [Ask(ask.at - start, ask.body, ask.tag) for ask in asks]


def _body(content: str, rng: Random, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "seed": rng.randrange(2**31), **more}


class Load:
    """See the module's docstring."""

    def __init__(
        self,
        aim: Target,
        asks: list[Ask],
        slo: dict[str, float],
        warm_up: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._target = aim
        self._asks = asks
        self._slo = slo
        self._drop = min(max(warm_up, 0), len(asks) - 1)
        self._clock = clock
        self._rows: list[Row] = []
        self._start = 0.0
        self._simulated: list[str] = []
        self._model = ""
        self.steps = len(asks)

    async def run(self, tick: Tick) -> None:
        async with opened([self._target], self._simulated) as (endpoint,):
            self._model = endpoint.about.model
            self._start = self._clock()

            def done(row: Row) -> None:
                self._rows.append(row)
                tick("requests ended")

            await open_loop(endpoint, self._asks, self._clock, done)
        require(self._rows, "load")

    def report(self) -> Report:
        first = self._start + self._asks[self._drop].at - 1e-9
        rows = [row for row in self._rows if row.sent >= first]
        seconds = max((row.sent + row.total for row in rows), default=first) - first
        by_task = {task: self._figures([r for r in rows if r.tag == task]) for task in sorted({r.tag for r in rows})}
        pools = sorted({row.pool for row in rows if row.pool})
        by_pool = {pool: self._figures([r for r in rows if r.pool == pool]) for pool in pools}
        whole = self._figures(rows)
        good = sum(self._good(row) for row in rows)
        goodput = good / seconds if seconds > 0 else 0.0
        offered = len(self._asks) / self._asks[-1].at if self._asks[-1].at > 0 else None
        return Report(
            name="load",
            title=f"Open load: {self._model}",
            intro=f"{len(self._asks)} open-loop arrivals, the first {self._drop} not counted; latency from when a "
            "request was due.",
            findings=(
                f"{goodput:.2f} requests per second meet the SLO ({_told(self._slo)}), {whole['slo_share']:.0%} of all",
            )
            if rows
            else (),
            tables=(
                _table("Measured by task", {**by_task, "all": whole}),
                *([_table("Measured by pool", by_pool)] if by_pool else []),
                published("load"),
            ),
            plots=(_plot(rows),),
            data={
                "model": self._model,
                "offered_per_second": None if offered is None else round(offered, 4),
                "seconds": round(seconds, 3),
                "slo_seconds": self._slo,
                "goodput_per_second": round(goodput, 4),
                "all": whole,
                "tasks": by_task,
                "pools": by_pool,
                "published": published_dict("load"),
            },
            simulated=tuple(self._simulated),
        )

    def _figures(self, rows: list[Row]) -> dict[str, Any]:
        good = [row for row in rows if not row.error]
        errors: dict[str, int] = {}
        for row in rows:
            if row.error:
                errors[row.error] = errors.get(row.error, 0) + 1
        return {
            "requests": len(rows),
            "errors": len(rows) - len(good),
            "error_kinds": errors,
            "tokens": sum(row.tokens for row in good),
            "slo_share": round(sum(self._good(row) for row in rows) / len(rows), 4) if rows else 0.0,
            **latencies(good, QUANTILES),
        }

    def _good(self, row: Row) -> bool:
        """Whether the row meets every limit of the SLO; an answer of one token has no TPOT."""
        if row.error:
            return False
        times = {"ttft": row.first, "tpot": row.tpot, "e2e": row.total}
        return all((times[name] or 0.0) <= limit for name, limit in self._slo.items())


def _table(title: str, figures: dict[str, dict[str, Any]]) -> Table:
    shown = [f"{name}_p{q}_ms" for name in ("ttft", "tpot", "e2e") for q in (50, 99)]
    rows = [
        (
            name,
            str(row["requests"]),
            *(f"{row[key]:.1f}" if row[key] is not None else "-" for key in shown),
            f"{100 * row['slo_share']:.0f} %",
            str(row["errors"]),
        )
        for name, row in figures.items()
    ]
    columns = ("", "requests", "first token, p50 ms", "p99 ms", "TPOT, p50 ms", "p99 ms", "whole, p50 ms", "p99 ms",
               "in SLO", "errors")  # fmt: skip
    return Table(title, columns, tuple(rows))


def _plot(rows: list[Row]) -> Plot:
    good = [row for row in rows if not row.error]
    shares = [q / 20 for q in range(1, 20)]

    def curve(values: list[float]) -> tuple[tuple[float, float], ...]:
        return tuple((q * 100, percentile(values, q) or 0.0) for q in shares) if values else ()

    series = (
        Series("first token", curve([row.first for row in good if row.first is not None])),
        Series("whole answer", curve([row.total for row in good])),
    )
    return Plot("Latency", "percentile", "seconds", series, log_y=True)


def _told(slo: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds * 1000:g} ms" for name, seconds in slo.items())


def _positive(text: str) -> float:
    value = number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _share(text: str) -> float:
    try:
        return _positive(text)
    except argparse.ArgumentTypeError:
        raise UsageError(f"--mix: {text!r} is not a share; write TASK=SHARE, as code=0.5") from None
