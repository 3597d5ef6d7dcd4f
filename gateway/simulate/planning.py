"""Options of `gateway simulate --plan` and `--validate`, and output of their reports as Markdown, JSON or HTML."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from gateway.estimate.estimator import Estimator
from gateway.figures.html import page
from gateway.figures.report import Report
from gateway.policy.values import duration
from gateway.simulate.hardware import MACHINES
from gateway.simulate.plan import LIMITS, Need, Slo
from gateway.simulate.prompts import KINDS
from gateway.simulate.study import Card, study
from gateway.simulate.study_report import render
from gateway.simulate.suite import SuiteSpec
from gateway.simulate.workload import MixSpec, mixed

PLAN_RATE = 4.0
PLAN_TRAFFIC, PLAN_PROFILE, PLAN_MODEL = "varied", "g4-slice", "e4b"
DEEPEST = 8


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the modes `--plan` and `--validate` and the options of `--plan`."""
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--validate", action="store_true", help="errors of the simulator on every known table")
    modes.add_argument("--plan", action="store_true", help="capacity plan: slices of each kind and their cost")
    plan = parser.add_argument_group(
        "plan", f"traffic, profile and model default to {PLAN_TRAFFIC}, {PLAN_PROFILE} and {PLAN_MODEL}"
    )
    plan.add_argument(
        "--slo",
        type=slo_of,
        default="ttft=1s,tpot=80ms",
        metavar="ttft=T,tpot=T,e2e=T",
        help="limits for 95 %% of the requests; tpot counts for answers from 16 tokens on (%(default)s)",
    )
    plan.add_argument(
        "--mix",
        type=mix_of,
        metavar="CLASS=SHARE,...",
        help=f"instead of --traffic: shares of {', '.join(KINDS)}; as label=0.7,long-ja=0.3",
    )
    plan.add_argument(
        "--least-plain",
        type=_between(0, 16),
        default=0,
        metavar="N",
        help="least number of plain slices, for requests that drafting engines refuse (%(default)s)",
    )
    plan.add_argument("--depths", type=_depths, default="1,2,3", metavar="K,...", help="k to try (%(default)s)")
    plan.add_argument("--most-slices", type=_between(1, 64), default=16, metavar="N", help="(%(default)s)")
    plan.add_argument(
        "--slices-a-card",
        type=_between(1, 8),
        metavar="N",
        help="slices per card (g4-slice: 4, others: 1); cost counts whole cards",
    )
    plan.add_argument(
        "--card-price", type=_price, metavar="X", help="price of a card hour, in any currency; without it: card hours"
    )
    plan.add_argument("--burst", type=_factor, default=2.0, metavar="X", help="what-if: times the rate (%(default)s)")


def make_plan(args: argparse.Namespace, spec: SuiteSpec, progress: Callable[[int, int], None]) -> Report:
    """Raises ValueError for contradicting options, OSError for a missing trace."""
    profiles, traffic = args.profiles or (PLAN_PROFILE,), args.traffic or (PLAN_TRAFFIC,)
    if len(profiles) > 1 or len(traffic) > 1:
        raise ValueError("--plan takes one profile and one traffic: name one with --profiles and --traffic")
    models = args.models or (PLAN_MODEL,)
    card = Card(args.slices_a_card or MACHINES[profiles[0]].per_card, args.card_price)
    if args.mix and args.traffic:
        raise ValueError("--mix replaces --traffic; give one of them")
    if args.least_plain > args.most_slices:
        raise ValueError("--least-plain asks for more slices than --most-slices allows")
    workload = (
        mixed("own mix", args.mix, spec.requests, Estimator, spec.seed) if args.mix else spec.workload(traffic[0])
    )
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        # The number of fleets is not known in advance, so the bar only shows activity.
        progress(done, max(done + 1, 40 * len(models)))

    studies = []
    for model in models:
        need = Need(
            workload=workload,
            rate=args.rate or PLAN_RATE,
            profile=profiles[0],
            model=model,
            slo=args.slo,
            depths=args.depths,
            most=args.most_slices,
            least_plain=args.least_plain,
            seed=args.seed,
        )
        studies.append(study(need, card, args.burst, tick))
    return render(studies)


def tell(report: Report, args: argparse.Namespace) -> int:
    """Prints the report and writes its page; returns the exit code. Raises OSError if the page cannot be written."""
    if args.html:
        args.html.write_text(page(report), "utf-8")
        print(f"report: {args.html}", file=sys.stderr)
    if args.json:
        told: dict[str, Any] = {**report.as_dict(), "simulated": True}
        print(json.dumps({k: v for k, v in told.items() if k not in _OF_MEASUREMENTS}, ensure_ascii=False))
    else:
        print(report.markdown())
    return 0


_OF_MEASUREMENTS = frozenset({"simulated_back_ends", "quick", "stopped"})


def slo_of(text: str) -> Slo:
    """For argparse."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in LIMITS:
            raise argparse.ArgumentTypeError(f"{part.strip()!r}: limits are {', '.join(LIMITS)}, as ttft=500ms")
        try:
            limits[name] = duration(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part.strip()!r}: expected a time, as {name}=500ms") from None
        if limits[name] <= 0.0:
            raise argparse.ArgumentTypeError(f"{part.strip()!r}: a limit must be above zero")
    return Slo(**limits)


def mix_of(text: str) -> MixSpec:
    """For argparse."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        if name not in KINDS:
            raise argparse.ArgumentTypeError(f"no class {name!r}; there are: {', '.join(KINDS)}")
        shares[name] = _above(share or "1", 0.0, f"a share above 0, as {name}=0.5")
    return MixSpec(shares, mixed=len(shares) > 1)


def _depths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= DEEPEST for part in parts):
        raise argparse.ArgumentTypeError(f"expected draft depths from 1 to {DEEPEST}, as 1,2,3")
    return tuple(sorted({int(part) for part in parts}))


def _between(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}")
        return int(text)

    return parse


def _price(text: str) -> float:
    return _above(text, 0.0, "a price per hour above 0, as 2.5")


def _factor(text: str) -> float:
    return _above(text, 1.0, "a factor above 1, as 2")


def _above(text: str, least: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = least
    if not least < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected {expected}")
    return value
