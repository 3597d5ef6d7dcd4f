"""`gateway bench breakeven`: the answer length from which MTP pays, by concurrency, and a speed profile of the engines.

Requests are sent in waves: N requests start together, with answers of exactly the same length, so that no prefill
joins a running batch. The stall that a joining prompt causes is measured separately (`stall.py`). Results are the
times, their crossovers, and a fit of the step-time model (`fit.py`), written as a file for a policy's `profile:`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

from gateway.bench.breakeven_report import Measured, crossover, render
from gateway.bench.client import Endpoint, Target, UsageError
from gateway.bench.drive import Tick
from gateway.bench.fit import Fitted, fit_decode, fit_prefill, profile_text
from gateway.bench.probes import STEADY, Cell, Prober
from gateway.bench.session import add_common, add_pair, count, counts, opened_pair, pair
from gateway.bench.stall import Stall
from gateway.figures.report import Report
from gateway.profiles import DEFAULT_HARDWARE, Prefill, match_profile, parse_catalog
from gateway.settings import output_file
from gateway.telemetry.spec_decode import Acceptance

LENGTHS = "1,2,4,8,16,32,64,128,256,512,1024"
CONCURRENCY = "1,2,4,8,16,32"
PROMPTS = (64, 512, 2048)
CLASSES = ("prose", "math", "code", "json")
CLASS_REQUESTS = 8
CLASS_CONCURRENCY = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    parser.add_argument("--lengths", type=counts, default=counts(LENGTHS), metavar="N,...", help=f"tokens ({LENGTHS})")
    parser.add_argument(
        "--concurrency",
        type=counts,
        default=counts(CONCURRENCY),
        metavar="N,...",
        help=f"requests at a time ({CONCURRENCY})",
    )
    parser.add_argument("--prompt", type=count, default=256, metavar="N", help="prompt tokens, about (%(default)s)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="set it as your traffic does: acceptance and plain step time depend on it (%(default)g, greedy)",
    )
    parser.add_argument("--k", type=count, help="draft tokens (default: from the MTP engine's counters)")
    parser.add_argument("--profile", type=output_file, metavar="FILE", help="write the speed profile (FILE.yaml)")
    parser.add_argument("--hardware", default="measured", metavar="NAME", help="its name in the profile (%(default)s)")
    parser.add_argument("--architecture", choices=["dense", "moe"], help="if the model's name does not show it")
    add_common(parser, runs=3)


def make(args: argparse.Namespace) -> BreakEven:
    """Raises UsageError."""
    if args.profile and args.profile.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--profile {args.profile}: the name must end in .yaml for a policy to read it as a file")
    return BreakEven(pair(args), args)


class BreakEven:
    """See the module's docstring."""

    def __init__(self, targets: tuple[Target, Target], args: argparse.Namespace) -> None:
        quick = args.quick
        self._targets = targets
        self._args = args
        self._runs = 1 if quick else args.runs
        self._lengths: list[int] = [n for n in args.lengths if n in (1, 8, 64, 128)] if quick else args.lengths
        self._concurrency: list[int] = args.concurrency[:3] if quick else args.concurrency
        self._prompts = PROMPTS[:2] if quick else PROMPTS
        self._requests = 4 if quick else CLASS_REQUESTS
        self._cells: list[Cell] = []
        self._prefill: Prefill | None = None
        self._stalls: dict[bool, Stall] = {}
        self._acceptance: dict[str, Acceptance] = {}
        self._simulated: list[str] = []
        self._model, self._version, self._k = "", "", args.k or 0
        self.steps = len(self._concurrency) * len(self._lengths) + 2 + len(CLASSES)
        if not self._lengths:
            raise UsageError("--quick measures lengths 1, 8, 64 and 128; --lengths names none of them")

    async def run(self, tick: Tick) -> None:
        async with opened_pair(self._targets, self._simulated) as (plain, mtp):
            self._model, self._version = mtp.about.model, mtp.about.version or "unknown"
            prober = Prober(plain, mtp, self._args.prompt, self._args.seed, self._args.temperature)
            for concurrency in self._concurrency:
                await prober.warm_up(concurrency)
                for tokens in self._lengths:
                    # Behind a gateway, counters arrive seconds late, and short answers are not used for the step time.
                    counted = tokens >= STEADY or tokens == self._lengths[-1]
                    self._cells.append(await prober.cell(concurrency, tokens, self._runs, counted=counted))
                    tick(f"{concurrency} at a time, {tokens} tokens")
            await self._measure_prefill(prober, plain, mtp)
            tick("prompts")
            for name in CLASSES:
                if found := await prober.acceptance(name, self._requests, CLASS_CONCURRENCY):
                    self._acceptance[name] = found
                tick(f"acceptance of {name}")
            self._k = self._k or await self._depth(mtp)
            tick("done")
        if self._args.profile and (text := self.profile()):
            self._args.profile.write_text(text, "utf-8")

    async def _depth(self, mtp: Endpoint) -> int:
        """k, from the engine's counters by position."""
        known = [found.positions for found in self._acceptance.values() if found.positions]
        if not known:
            raise UsageError(f"{mtp.target.url}: its counters do not show how many tokens it drafts; give --k")
        return max(len(positions) for positions in known)

    async def _measure_prefill(self, prober: Prober, plain: Endpoint, mtp: Endpoint) -> None:
        probes = await prober.prefill(self._prompts, self._runs)
        for drafting, endpoint in ((False, plain), (True, mtp)):
            self._stalls[drafting] = await prober.stall(endpoint, self._runs)
        self._prefill = fit_prefill(probes, {drafting: stall.seconds for drafting, stall in self._stalls.items()})

    def fitted(self) -> Fitted | None:
        """The fit of the decode step; None while there are too few points."""
        steady = [cell for cell in self._cells if cell.tokens >= STEADY] or [c for c in self._cells if c.tokens >= 8]
        points = [point for cell in steady for point in cell.points(self._k)]
        if not self._k or len(points) < 2 or not any(point.k for point in points):
            return None
        return fit_decode(points, match_profile(DEFAULT_HARDWARE, self._model, self._args.architecture))

    def profile(self) -> str | None:
        """The profile as YAML; None while a part of it is not measured."""
        fitted = self.fitted()
        if fitted is None or self._prefill is None or "prose" not in self._acceptance:
            return None
        like = match_profile(DEFAULT_HARDWARE, self._model, self._args.architecture)
        prose = self._acceptance["prose"]
        rates = {name: self._acceptance.get(name, prose).positions for name in CLASSES}
        text = profile_text(
            self._args.hardware, like.model, self._source(fitted), fitted.decode, self._prefill, like.attention, rates
        )
        parse_catalog(text)
        return text

    def _source(self, fitted: Fitted) -> str:
        kind = f"SIMULATED back ends ({'; '.join(self._simulated)}), not hardware" if self._simulated else "Measured"
        streams = f"{self._concurrency[0]} to {self._concurrency[-1]} streams"
        alike = self._prefill is not None and self._prefill.mtp_fixed == 0.0
        note = " TTFT was no longer with drafting, so both sides have the same prefill." if alike else ""
        return (
            f"{kind}: gateway bench breakeven, {time.strftime('%Y-%m-%d')}, {self._model}, engine {self._version}, "
            f"k={self._k}, temperature {self._args.temperature:g}, {streams}, answers to {self._lengths[-1]} tokens; "
            f"{fitted.points} steps, rms error {fitted.rms:.1%}, worst {fitted.worst:.1%}. Other k and more streams "
            f"are extrapolated. A joining prompt stalls running answers for {self._stalls[False]} without drafting, "
            f"{self._stalls[True]} with it.{note}"
        )

    def report(self) -> Report:
        text = self.profile()
        return render(
            Measured(
                model=self._model,
                k=self._k,
                prompt=self._args.prompt,
                cells=self._cells,
                acceptance=self._acceptance,
                stalls=self._stalls,
                fitted=self.fitted(),
                profile=text,
                file=str(self._args.profile) if self._args.profile and text else None,
                threshold=threshold_of(self._cells),
                simulated=tuple(self._simulated),
            )
        )


def threshold_of(cells: Sequence[Cell]) -> int | None:
    """Threshold for the static objective: the median crossover over concurrencies; None where MTP never pays."""
    by_concurrency: dict[int, list[Cell]] = {}
    for cell in cells:
        by_concurrency.setdefault(cell.concurrency, []).append(cell)
    found = sorted(length for part in by_concurrency.values() if (length := crossover(part)) is not None)
    return max(1, math.ceil(found[len(found) // 2])) if found else None
