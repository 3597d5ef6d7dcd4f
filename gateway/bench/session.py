"""Runs one benchmark: progress on stderr, the report on stdout, also a partial one after ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.bench.client import BenchError, Endpoint, Target, UsageError
from gateway.bench.drive import Tick
from gateway.figures.html import page
from gateway.figures.report import Report
from gateway.settings import number, output_file

INTERRUPTED = 130
GATEWAY_SETTLE = 2.5
"""Seconds for a gateway to scrape its back ends' counters again (default interval: 1 s) and export them."""


class Measurement(Protocol):
    """A benchmark. `run` collects results, and `report` works at any time on what has been collected."""

    @property
    def steps(self) -> int:
        """The number of times that `run` calls `tick`."""
        ...

    async def run(self, tick: Tick) -> None:
        """Raises BenchError."""
        ...

    def report(self) -> Report: ...


def execute(measurement: Measurement, args: argparse.Namespace) -> int:
    """Measures, prints and writes the report; returns the exit code. A failure or ctrl-C leaves a partial report.

    Raises BenchError if nothing was measured.
    """
    done = 0
    state, code = "", 0
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            bar = progress.add_task("starting", total=measurement.steps)

            def tick(what: str) -> None:
                nonlocal done
                done += 1
                progress.update(bar, advance=1, description=what)

            asyncio.run(measurement.run(tick))
    except KeyboardInterrupt:
        state, code = "interrupted", INTERRUPTED
    except (BenchError, BaseExceptionGroup) as failure:
        error = _cause(failure)
        if not done:
            raise error from failure
        print(f"gateway bench: {error}", file=sys.stderr)
        state, code = str(error), code_of(error)
    report = measurement.report()
    if args.json:
        print(json.dumps(report.as_dict(stopped=state, quick=args.quick), ensure_ascii=False))
    else:
        print(report.markdown(stopped=state, quick=args.quick))
    if args.html:
        args.html.write_text(page(report, stopped=state, quick=args.quick), "utf-8")
        print(f"report: {args.html}", file=sys.stderr)
    return code


def run(make: Callable[[argparse.Namespace], Measurement], args: argparse.Namespace) -> int:
    """`execute`, with errors as one line on stderr and exit code 1, or 2 for wrong usage."""
    try:
        return execute(make(args), args)
    except BenchError as error:
        print(f"gateway bench: {error}", file=sys.stderr)
        return code_of(error)


def code_of(error: BenchError) -> int:
    return 2 if isinstance(error, UsageError) else 1


def _cause(failure: BaseException) -> BenchError:
    """Unwraps the BenchError from exception groups. Raises any other exception."""
    if isinstance(failure, BenchError):
        return failure
    if isinstance(failure, BaseExceptionGroup):
        found, others = failure.split(BenchError)
        if found is not None and others is None:
            return _cause(found.exceptions[0])
    raise failure


@asynccontextmanager
async def opened(targets: Sequence[Target], simulated: list[str]) -> AsyncIterator[list[Endpoint]]:
    """The targets' endpoints, connected. On exit, appends the labels of those that report to be simulated to
    `simulated`. Raises BenchError."""
    endpoints = [Endpoint(target, monotonic) for target in targets]
    try:
        for endpoint in endpoints:
            await endpoint.open()
        yield endpoints
    finally:
        simulated += [e.target.label + e.about.label for e in endpoints if e.about.simulated]
        for endpoint in endpoints:
            await endpoint.aclose()


@asynccontextmanager
async def opened_pair(targets: Sequence[Target], simulated: list[str]) -> AsyncIterator[tuple[Endpoint, Endpoint]]:
    """`opened` for a plain and an MTP target. Raises UsageError if the engines' metrics show them to be swapped or
    alike: the report would compare something else than it says."""
    async with opened(targets, simulated) as (plain, mtp):
        if await plain.drafts():
            raise UsageError(f"plain ({plain.target.url}): /metrics counts drafts; are --plain and --mtp swapped?")
        if await mtp.drafts() is False:
            raise UsageError(f"mtp ({mtp.target.url}): /metrics counts no drafts; is it an MTP engine?")
        yield plain, mtp


def add_common(parser: argparse.ArgumentParser, *, runs: int | None) -> None:
    """Adds the options of every benchmark."""
    parser.add_argument("--model", default="", metavar="NAME", help="model (default: the only one served)")
    parser.add_argument("--key", default=None, metavar="KEY", help="API key (default: $OPENAI_API_KEY, if set)")
    if runs is not None:
        parser.add_argument("--runs", type=count, default=runs, metavar="N", help="repeats (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of prompts and arrivals (%(default)s)")
    parser.add_argument(
        "--settle",
        type=seconds,
        default=GATEWAY_SETTLE,
        metavar="SECONDS",
        help="with a gateway: wait for it to scrape its back ends' counters; a bit more than its telemetry interval "
        "(%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown")
    parser.add_argument("--html", type=output_file, metavar="FILE", help="write a self-contained HTML report")
    parser.add_argument("--quick", action="store_true", help="a small part of it: a check, not a result to quote")


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name the plain and the MTP side."""
    parser.add_argument("--plain", metavar="URL", help="a plain back end")
    parser.add_argument("--mtp", metavar="URL", help="an MTP back end of the same model")
    parser.add_argument("--url", metavar="URL", help="a gateway instead; pools are selected by x-gateway-pool")


def key_of(args: argparse.Namespace) -> str | None:
    return args.key or os.environ.get("OPENAI_API_KEY") or None


def target(args: argparse.Namespace, label: str, url: str, **more: object) -> Target:
    values: dict[str, Any] = {"model": args.model, "key": key_of(args), **more}
    return Target(label=label, url=url, **values)


def through(args: argparse.Namespace, label: str, pool: str) -> Target:
    """One pool of the gateway at `--url`."""
    return target(args, label, args.url, pool=pool, settle=args.settle)


def pair(args: argparse.Namespace) -> tuple[Target, Target]:
    """The plain and the MTP target. Raises UsageError if they are not given."""
    if args.url and not (args.plain or args.mtp):
        return through(args, "plain", "plain"), through(args, "mtp", "mtp")
    if not (args.plain and args.mtp) or args.url:
        raise UsageError("name both sides, --plain URL and --mtp URL, or a gateway with --url URL")
    return target(args, "plain", args.plain), target(args, "mtp", args.mtp)


def count(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """argparse type: seconds from 0 to 600."""
    value = number(text)
    if not 0.0 <= value <= 600.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 600")
    return value


def counts(text: str) -> list[int]:
    """argparse type: `1,2,4` as a sorted list without duplicates."""
    return sorted({count(part) for part in text.split(",")})
