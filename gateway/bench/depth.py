"""`gateway bench depth`: acceptance and TPOT by draft depth k, and which k to run.

For each k the same prompts run at the same concurrency. Step time = TPOT x mean acceptance length (MAL), so depth k
pays if its MAL exceeds its break-even, step(k) / step(0). The benchmark increases k while TPOT falls and recommends
the k with the lowest TPOT; among depths within `NOISE` of it the smallest, which costs less memory and less under load.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gateway.bench.client import Endpoint, Target, UsageError, accepted
from gateway.bench.drive import Body, Tick, closed, require
from gateway.bench.engines import Launcher
from gateway.bench.rows import Row
from gateway.bench.session import add_common, count, opened, target, through
from gateway.bench.sources import class_prompts, published, published_dict
from gateway.bench.summary import Side, acceptance_dict, change, positions_text, ratio
from gateway.figures.report import Plot, Report, Series, Table
from gateway.telemetry.spec_decode import Acceptance

DEEPEST = 4
NOISE = 0.02
"""Relative TPOT difference below which two depths count as equal."""
CLASSES = ("prose", "math", "code", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="K=URL",
        help="back end that drafts K tokens, or a pool's name with --url; repeat",
    )
    parser.add_argument(
        "--command",
        metavar="TEMPLATE",
        help="starts the engine with {k} draft tokens, for K = 0, 1, ...; it serves at --url, stopped after each K",
    )
    parser.add_argument(
        "--url", metavar="URL", help="where the engine of --command serves; else a gateway with a pool per K"
    )
    parser.add_argument(
        "--start-timeout", type=count, default=600, metavar="SECONDS", help="for an engine to start (%(default)s)"
    )
    parser.add_argument("--deepest", type=count, default=DEEPEST, metavar="K", help="with --command (%(default)s)")
    parser.add_argument("--prompts", choices=CLASSES, default="prose", help="class of prompts (%(default)s)")
    parser.add_argument("--concurrency", type=count, default=8, metavar="N", help="requests at a time (%(default)s)")
    parser.add_argument("--max-tokens", type=count, default=256, metavar="N", help="of an answer (%(default)s)")
    parser.add_argument("--all", action="store_true", help="measure every depth, also beyond the best one")
    add_common(parser, runs=4)


def make(args: argparse.Namespace) -> Depth:
    """Raises UsageError."""
    if bool(args.command) == bool(args.endpoint) or (args.command and not args.url):
        raise UsageError(
            "give --endpoint K=URL for each depth, --endpoint K=POOL with a gateway's --url, or --command with --url"
        )
    targets: dict[int, Target] = {}
    for text in args.endpoint:
        k, _, url = text.partition("=")
        if not k.strip().isdecimal() or not url:
            raise UsageError(f"--endpoint {text}: expected K=URL, as 2=http://127.0.0.1:8002")
        label = f"k={int(k)}"
        targets[int(k)] = through(args, label, url) if args.url else target(args, label, url)
    launcher = None
    if args.command:
        launcher = Launcher(args.command, args.url, float(args.start_timeout))
        targets = {k: target(args, f"k={k}", args.url) for k in range(args.deepest + 1)}
    if 0 not in targets or len(targets) < 2:
        raise UsageError("k=0 (a plain engine) and at least one other depth are needed: --endpoint 0=URL")
    return Depth(args, dict(sorted(targets.items())), launcher)


@dataclass(frozen=True, slots=True)
class Level:
    """One depth's rows."""

    k: int
    rows: tuple[Row, ...]
    acceptance: Acceptance | None

    @property
    def side(self) -> Side:
        return Side.of(self.rows)

    @property
    def tpot(self) -> float | None:
        return self.side.tpot.median if self.side.tpot else None

    @property
    def length(self) -> float:
        """Mean acceptance length, tokens per step; 1 without drafting or where unknown."""
        return self.acceptance.mean_length if self.acceptance else 1.0

    @property
    def step(self) -> float | None:
        return None if self.tpot is None else self.tpot * self.length


class Depth:
    """See the module's docstring."""

    def __init__(self, args: argparse.Namespace, targets: dict[int, Target], launcher: Launcher | None) -> None:
        self._targets = targets
        self._launcher = launcher
        self._concurrency = args.concurrency
        self._runs = min(args.runs, 1) if args.quick else args.runs
        self._max_tokens = args.max_tokens
        self._class = args.prompts
        self._all = args.all
        self._seed = args.seed
        self._levels: list[Level] = []
        self._simulated: list[str] = []
        self._model = ""
        self._stopped: int | None = None
        self.steps = len(targets)

    async def run(self, tick: Tick) -> None:
        for k, aim in self._targets.items():
            if self._launcher:
                async with self._launcher.running(k):
                    await self._measure(k, aim)
            else:
                await self._measure(k, aim)
            tick(f"k={k}")
            if not self._all and k > 0 and self._past_best():
                self._stopped = k
                return

    async def _measure(self, k: int, aim: Target) -> None:
        async with opened([aim], self._simulated) as (endpoint,):
            self._model = endpoint.about.model
            bodies = self._bodies(self._concurrency * self._runs)
            await closed(endpoint, self._bodies(self._concurrency), self._concurrency)
            before = await endpoint.counters()
            rows = await closed(endpoint, bodies, self._concurrency, tag=f"k={k}")
            self._levels.append(await self._level(k, endpoint, rows, before))

    async def _level(self, k: int, endpoint: Endpoint, rows: list[Row], before: dict[str, float]) -> Level:
        require(rows, "depth")
        found = accepted(rows, before, await endpoint.counters())
        if found and endpoint.target.pool:
            # A gateway exports the positions of all its pools.
            found = replace(found, positions=found.positions[:k])
        if k and found is None:
            raise UsageError(f"k={k} ({endpoint.target.url}): /metrics counts no drafts; is it an MTP engine?")
        if found and len(found.positions) not in (0, k):
            raise UsageError(f"k={k} ({endpoint.target.url}): the engine drafts {len(found.positions)} tokens")
        return Level(k, tuple(rows), found)

    def _bodies(self, number: int) -> list[Body]:
        rng = Random(self._seed)
        prompts = class_prompts(self._class)
        return [
            {
                "messages": [{"role": "user", "content": prompts[index % len(prompts)]}],
                "temperature": 0,
                "max_tokens": self._max_tokens,
                "seed": rng.randrange(2**31),
            }
            for index in range(number)
        ]

    def _past_best(self) -> bool:
        """Whether the last depth has a higher TPOT than an earlier one."""
        last, best = self._levels[-1].tpot, min(level.tpot or 0.0 for level in self._levels[:-1])
        return last is not None and last > best

    def recommended(self) -> int | None:
        """The smallest depth within `NOISE` of the fastest."""
        known = [(level.k, level.tpot) for level in self._levels if level.tpot is not None]
        if len(known) < 2:
            return None
        least = min(tpot for _, tpot in known)
        return next(k for k, tpot in known if tpot <= least * (1 + NOISE))

    def report(self) -> Report:
        told = published_dict("depth")
        levels = [self._as_dict(level) for level in self._levels]
        best = self.recommended()
        data = {
            "model": self._model,
            "prompts": self._class,
            "concurrency": self._concurrency,
            "depths": levels,
            "stopped_at": self._stopped,
            "recommended_k": best,
            "published": told,
        }
        return Report(
            name="depth",
            title=f"Draft depth: {self._model}",
            intro=f"{self._class} prompts, {self._concurrency} requests at a time, max_tokens {self._max_tokens}, "
            "temperature 0, a warm-up round dropped. Medians with quartiles.",
            findings=self._findings(best),
            tables=(self._table(levels, told), published("depth")),
            plots=(_plot(levels, told["tpot_change"]),),
            data=data,
            simulated=tuple(self._simulated),
        )

    def _as_dict(self, level: Level) -> dict[str, Any]:
        base = self._levels[0]
        step, plain = level.step, base.step
        even = step / plain if step and plain else None
        side = level.side
        return {
            "k": level.k,
            **side.as_dict(),
            "acceptance": acceptance_dict(level.acceptance),
            "mean_length": round(level.length, 4),
            "break_even": None if even is None else round(even, 4),
            "pays": even is not None and level.k > 0 and level.length > even,
            "tpot_ratio": _rounded(ratio(side.tpot, base.side.tpot)),
            "e2e_ratio": _rounded(ratio(side.total, base.side.total)),
        }

    def _table(self, levels: list[dict[str, Any]], told: dict[str, Any]) -> Table:
        rows = []
        for level, about in zip(self._levels, levels, strict=True):
            side, k = level.side, level.k
            against = told["tpot_change"].get(k)
            rows.append(
                (
                    str(k),
                    f"{level.acceptance.rate:.0%}".replace("%", " %") if level.acceptance else "-",
                    f"{level.length:.2f}",
                    f"{about['break_even']:.2f}" if about["break_even"] else "-",
                    f"{told['mean_length'][k]:.2f}" if k in told["mean_length"] else "-",
                    positions_text(level.acceptance),
                    side.tpot.text(2, 1000) if side.tpot else "-",
                    change(about["tpot_ratio"]) if k else "",
                    f"{against:+.0%}".replace("%", " %") if against is not None else "-",
                    change(about["e2e_ratio"]) if k else "",
                    ("yes" if about["pays"] else "no") if k else "",
                    str(side.errors),
                )
            )
        columns = (
            *("k", "acceptance", "tokens a step", "break-even", "published tokens a step", "by position"),
            *("TPOT, ms", "TPOT change", "published (G4 slice)", "whole answer", "pays", "errors"),
        )
        return Table("Measured", columns, tuple(rows))

    def _findings(self, best: int | None) -> tuple[str, ...]:
        if best is None:
            return ()
        run = f"run k={best}" if best else "run without drafting"
        found = [f"{run}: the lowest TPOT at {self._concurrency} requests at a time on {self._class}"]
        if self._stopped is not None:
            found.append(f"stopped at k={self._stopped}, which has a higher TPOT than a smaller depth")
        return tuple(found)


def _plot(levels: list[dict[str, Any]], told: dict[int, float]) -> Plot:
    measured = tuple((float(row["k"]), row["tpot_ratio"]) for row in levels if row["tpot_ratio"])
    others = ((0.0, 1.0), *((float(k), 1 + value) for k, value in told.items()))
    series = (Series("measured", measured), Series("published, G4 slice", others, published=True))
    return Plot("Time per token against no drafting", "k", "ratio", series if measured else (), level=1.0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
