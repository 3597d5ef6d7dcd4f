"""`gateway bench short`: latency, accuracy and agreement on few-shot questions with answers of a few tokens.

Every question is asked on both sides, which alternate. Accuracies are compared question by question: if the sides are
equally good, each question that only one side gets right is a fair coin toss, which gives an exact two-sided sign test.
With n questions one answer weighs 100/n points, so fewer than 200 cannot show that the sides are within 0.5 points.
"""

from __future__ import annotations

import argparse
import math
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.bench.client import Endpoint, Target
from gateway.bench.drive import Tick, require
from gateway.bench.rows import Row
from gateway.bench.session import add_common, add_pair, count, opened_pair, pair
from gateway.bench.sources import (
    LETTERS,
    SHOTS,
    Question,
    own_questions,
    prompt_of,
    published,
    published_dict,
    published_speedup,
    read_questions,
)
from gateway.bench.summary import Side, percentile, ratio, times
from gateway.figures.report import Plot, Report, Series, Table

MAX_TOKENS = 8
QUICK_QUESTIONS = 12
TOLERANCE = 0.005
"""Accuracy difference of the published comparison: 0.5 percentage points."""
_LETTER = re.compile(r"(?<![A-Za-z])[A-E](?![A-Za-z])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    add_common(parser, runs=1)
    parser.add_argument("--questions", type=Path, metavar="FILE", help="a JCommonsenseQA file (default: 60 built in)")
    parser.add_argument("--count", type=count, default=200, metavar="N", help="questions at most (%(default)s)")


def make(args: argparse.Namespace) -> Short:
    questions = read_questions(args.questions) if args.questions else own_questions()
    asked = prompts_of(questions, min(args.count, QUICK_QUESTIONS) if args.quick else args.count)
    return Short(pair(args), asked, 1 if args.quick else args.runs, str(args.questions or "our own"))


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its full prompt."""

    question: Question
    prompt: str


def prompts_of(questions: list[Question], most: int) -> list[Asked]:
    """The first three questions of each language are the examples; the others are asked, languages alternating."""
    by_language: dict[str, list[Question]] = {}
    for question in questions:
        by_language.setdefault(question.language, []).append(question)
    rows = [
        [Asked(question, prompt_of(question, group[:SHOTS])) for question in group[SHOTS:]]
        for group in by_language.values()
    ]
    longest = max(len(row) for row in rows)
    return [row[index] for index in range(longest) for row in rows if index < len(row)][:most]


def letter_of(text: str, choices: tuple[str, ...]) -> str | None:
    """The letter in the answer, or of the choice that it quotes; None if neither."""
    plain = unicodedata.normalize("NFKC", text).strip()
    if match := _LETTER.search(plain):
        return match[0]
    named = [letter for letter, choice in zip(LETTERS, choices, strict=True) if choice.lower() in plain.lower()]
    return named[0] if len(named) == 1 else None


def sign_test(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value of the sign test; 1 if there are no differing questions."""
    n, least = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(n, i) for i in range(least + 1))
    return min(1.0, 2.0 * tail / float(2**n))


class Short:
    """See the module's docstring."""

    def __init__(self, targets: tuple[Target, Target], asked: list[Asked], runs: int, origin: str) -> None:
        self._targets = targets
        self._asked = asked
        self._runs = runs
        self._origin = origin
        self._pairs: list[tuple[Asked, Row, Row]] = []
        self._simulated: list[str] = []
        self._model = ""
        self.steps = runs * len(asked) + 1

    async def run(self, tick: Tick) -> None:
        async with opened_pair(self._targets, self._simulated) as (plain, mtp):
            self._model = mtp.about.model
            await self._ask(self._asked[0], plain, mtp, first=True)
            tick("warm-up")
            for run in range(self._runs):
                for index, asked in enumerate(self._asked):
                    rows = await self._ask(asked, plain, mtp, first=(index + run) % 2 == 0)
                    self._pairs.append((asked, *rows))
                    tick("short answers")
        require([row for _, row, _ in self._pairs], "short answers")
        require([row for _, _, row in self._pairs], "short answers")

    async def _ask(self, asked: Asked, plain: Endpoint, mtp: Endpoint, *, first: bool) -> tuple[Row, Row]:
        """(plain row, MTP row); `first`: plain is asked first."""
        body = {
            "messages": [{"role": "user", "content": asked.prompt}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        rows = {}
        for endpoint in (plain, mtp) if first else (mtp, plain):
            rows[endpoint] = await endpoint.ask(body, tag=asked.question.language)
        return rows[plain], rows[mtp]

    def quality(self) -> dict[str, Any]:
        """Accuracy and agreement, over the questions of the first run that both sides answered."""
        judged = []
        for asked, plain, mtp in self._pairs[: len(self._asked)]:
            if not plain.error and not mtp.error:
                letters = [letter_of(row.text, asked.question.choices) for row in (plain, mtp)]
                judged.append((asked.question.answer, *letters))
        n = len(judged)
        right = [sum(row[side] == row[0] for row in judged) for side in (1, 2)]
        only = [sum(row[a] == row[0] != row[b] for row in judged) for a, b in ((1, 2), (2, 1))]
        share = [count / n if n else None for count in right]
        told = [row for row in judged if row[1] is not None or row[2] is not None]
        apart = abs(right[0] - right[1]) / n if told else None
        return {
            "questions": n,
            "accuracy": {"plain": share[0], "mtp": share[1]},
            "difference_points": round(100 * apart, 2) if apart is not None else None,
            "within_half_a_point": apart is not None and apart <= TOLERANCE,
            "agreement": sum(row[1] == row[2] for row in told) / len(told) if told else None,
            "only_plain_right": only[0],
            "only_mtp_right": only[1],
            "p_value": round(sign_test(*only), 4),
            "unreadable": {"plain": sum(r[1] is None for r in judged), "mtp": sum(r[2] is None for r in judged)},
        }

    def report(self) -> Report:
        plain, mtp = [row for _, row, _ in self._pairs], [row for _, _, row in self._pairs]
        sides = Side.of(plain), Side.of(mtp)
        gain = ratio(sides[0].total, sides[1].total)
        told = published_speedup("short", self._model)
        quality = self.quality()
        data = {
            "model": self._model,
            "questions_from": self._origin,
            "max_tokens": MAX_TOKENS,
            "shots": SHOTS,
            "plain": {**sides[0].as_dict(), "p95_ms": _p95(plain)},
            "mtp": {**sides[1].as_dict(), "p95_ms": _p95(mtp)},
            "speedup": None if gain is None else round(gain, 4),
            "quality": quality,
            "published": published_dict("short"),
        }
        return Report(
            name="short",
            title=f"Short answers: {self._model}",
            intro=f"{len(self._asked)} questions ({self._origin}), {SHOTS}-shot, temperature 0, max_tokens "
            f"{MAX_TOKENS}, one client; plain and MTP alternate. Medians with quartiles.",
            findings=_findings(gain, told, quality),
            tables=(_latency(sides, (plain, mtp), gain, told), _quality(quality), published("short")),
            plots=(_plot(plain, mtp),) if plain else (),
            data=data,
            simulated=tuple(self._simulated),
        )


def _p95(rows: list[Row]) -> float | None:
    value = percentile((row.total for row in rows if not row.error), 0.95)
    return None if value is None else round(value * 1000, 3)


def _latency(
    sides: tuple[Side, Side], rows: tuple[list[Row], list[Row]], gain: float | None, told: float | None
) -> Table:
    lines = []
    for name, side, raw in zip(("plain", "MTP"), sides, rows, strict=True):
        p95 = _p95(raw)
        lines.append(
            (
                name,
                side.total.text(1, 1000) if side.total else "-",
                f"{p95:.1f}" if p95 is not None else "-",
                side.ttft.text(1, 1000) if side.ttft else "-",
                side.tokens.text(0) if side.tokens else "-",
                times(gain) if name == "MTP" else "",
                times(told) if name == "MTP" else "",
                str(side.errors),
            )
        )
    columns = ("side", "whole answer, ms", "p95, ms", "first token, ms", "tokens", "speed-up", "published", "errors")
    return Table("Measured latency", columns, tuple(lines))


def _quality(quality: dict[str, Any]) -> Table:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    rows = (
        ("accuracy, plain", share(quality["accuracy"]["plain"])),
        ("accuracy, MTP", share(quality["accuracy"]["mtp"])),
        ("difference", "-" if quality["difference_points"] is None else f"{quality['difference_points']:.1f} points"),
        ("the same answer", share(quality["agreement"])),
        ("only plain right / only MTP right", f"{quality['only_plain_right']} / {quality['only_mtp_right']}"),
        ("no letter, plain / MTP", f"{quality['unreadable']['plain']} / {quality['unreadable']['mtp']}"),
    )
    return Table(f"Measured quality, {quality['questions']} questions", ("figure", "value"), rows)


def _findings(gain: float | None, told: float | None, quality: dict[str, Any]) -> tuple[str, ...]:
    if gain is None or not quality["questions"]:
        return ()
    against = f" (published for this model on a DGX Spark: {told:.2f}x)" if told is not None else ""
    if quality["difference_points"] is None:
        verdict = "no answer of either side is one of the letters, so nothing can be said of quality"
        return (f"on short answers MTP is {times(gain)} as fast as plain{against}", verdict)
    verdict = (
        "the accuracies are within 0.5 points"
        if quality["within_half_a_point"]
        else f"the accuracies differ by {quality['difference_points']} points"
        + (
            ", which chance explains (sign test)"
            if quality["p_value"] > 0.05
            else f": more than chance (p = {quality['p_value']})"
        )
    )
    return (f"on short answers MTP is {times(gain)} as fast as plain{against}", verdict)


def _plot(plain: list[Row], mtp: list[Row]) -> Plot:
    shares = tuple(q / 20 for q in range(1, 20))

    def curve(rows: list[Row]) -> tuple[tuple[float, float], ...]:
        good = [row.total * 1000 for row in rows if not row.error]
        return tuple((q * 100, percentile(good, q) or 0.0) for q in shares) if good else ()

    series = (Series("plain", curve(plain)), Series("MTP", curve(mtp)))
    return Plot("Latency of short answers", "percentile", "milliseconds", series)
