"""`gateway bench longform`: the single-client speed-up of long answers with drafting, in Japanese and English.

One client, temperature 0, an explanation of about 200 characters, the first run dropped. Plain and MTP alternate, so
that drift affects both. Reported are the speed-up of output tokens per second over whole requests, and of TPOT, which
excludes the first token.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.bench.client import Endpoint, Target, UsageError, accepted
from gateway.bench.drive import Tick, require
from gateway.bench.rows import Row
from gateway.bench.session import add_common, add_pair, count, opened_pair, pair, target
from gateway.bench.sources import longform_prompts, published, published_dict, published_speedup
from gateway.bench.summary import Side, acceptance_dict, positions_text, ratio, times
from gateway.figures.report import Plot, Report, Series, Table
from gateway.telemetry.spec_decode import Acceptance

LANGUAGES = ("ja", "en")
QUICK_RUNS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    add_common(parser, runs=12)
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="PLAIN_URL,MTP_URL",
        help="the back ends of another model, or its name with --url; repeat",
    )
    parser.add_argument("--language", choices=LANGUAGES, action="append", metavar="LANGUAGE", help="ja or en (both)")
    parser.add_argument("--max-tokens", type=count, default=256, metavar="N", help="limit of an answer (%(default)s)")


def make(args: argparse.Namespace) -> LongForm:
    """Raises UsageError."""
    pairs = [pair(args)]
    for text in args.also:
        plain, _, mtp = text.partition(",")
        if args.url:
            pairs.append(pair(argparse.Namespace(**{**vars(args), "model": text})))
        elif plain and mtp:
            pairs.append((target(args, "plain", plain, model=""), target(args, "mtp", mtp, model="")))
        else:
            raise UsageError(f"--also {text}: expected PLAIN_URL,MTP_URL")
    runs = min(args.runs, QUICK_RUNS) if args.quick else args.runs
    return LongForm(pairs, max(runs, 2), args.max_tokens, args.language or LANGUAGES)


@dataclass(frozen=True, slots=True)
class Part:
    """One model's rows in one language, without the first run."""

    model: str
    language: str
    plain: tuple[Row, ...]
    mtp: tuple[Row, ...]
    acceptance: Acceptance | None


class LongForm:
    """See the module's docstring."""

    def __init__(
        self,
        pairs: Sequence[tuple[Target, Target]],
        runs: int,
        max_tokens: int,
        languages: Sequence[str] = LANGUAGES,
    ) -> None:
        """`pairs` are (plain, MTP) per model; `runs` includes the first, which is dropped."""
        self._pairs = pairs
        self._runs = runs
        self._max_tokens = max_tokens
        self._languages = languages
        self._parts: list[Part] = []
        self._simulated: list[str] = []
        self.steps = 2 * runs * len(languages) * len(pairs)

    async def run(self, tick: Tick) -> None:
        for targets in self._pairs:
            async with opened_pair(targets, self._simulated) as (plain, mtp):
                for language in self._languages:
                    await self._language(language, plain, mtp, tick)

    async def _language(self, language: str, plain: Endpoint, mtp: Endpoint, tick: Tick) -> None:
        prompts = longform_prompts(language)
        rows: dict[Endpoint, list[Row]] = {plain: [], mtp: []}
        before: dict[str, float] = {}
        try:
            for index in range(self._runs):
                if index == 1:
                    before = await mtp.counters()
                content = prompts[index % len(prompts)]
                for endpoint in (plain, mtp) if index % 2 else (mtp, plain):
                    body = {
                        "messages": [{"role": "user", "content": content}],
                        "temperature": 0,
                        "max_tokens": self._max_tokens,
                    }
                    row = await endpoint.ask(body, tag=language)
                    if index:
                        rows[endpoint].append(row)
                    tick(f"{mtp.about.model}, {language}")
            for endpoint in (plain, mtp):
                require(rows[endpoint], f"long form in {language}")
        finally:
            if rows[plain] and rows[mtp]:
                found = accepted(rows[mtp], before, await mtp.counters())
                self._parts.append(Part(mtp.about.model, language, tuple(rows[plain]), tuple(rows[mtp]), found))

    def report(self) -> Report:
        cells = [_cell(part) for part in self._parts]
        models = {name: _of_model([c for c in cells if c["model"] == name]) for name in {c["model"]: 0 for c in cells}}
        names = ", ".join(models)
        first: dict[str, Any] = next(iter(models.values()), {"languages": {}, "speedup": None})
        data: dict[str, Any] = {
            "model": next(iter(models), None),
            "runs": self._runs,
            "dropped": 1,
            "max_tokens": self._max_tokens,
            **first,
            "models": models,
            "published": published_dict("longform"),
        }
        return Report(
            name="longform",
            title=f"Long form, one client: {names}",
            intro=f"One client, temperature 0, max_tokens {self._max_tokens}, {self._runs} runs a language and side, "
            "the first dropped; plain and MTP alternate. Medians with quartiles.",
            findings=tuple(_finding(cell) for cell in cells),
            tables=(_table(self._parts), published("longform")),
            plots=(_plot(cells),) if cells else (),
            data=data,
            simulated=tuple(self._simulated),
        )


def _cell(part: Part) -> dict[str, Any]:
    plain, mtp = Side.of(part.plain), Side.of(part.mtp)
    return {
        "model": part.model,
        "language": part.language,
        "plain": plain.as_dict(),
        "mtp": mtp.as_dict(),
        "speedup": _rounded(ratio(mtp.speed, plain.speed)),
        "tpot_speedup": _rounded(ratio(plain.tpot, mtp.tpot)),
        "acceptance": acceptance_dict(part.acceptance),
    }


def _of_model(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "languages": {cell["language"]: cell for cell in cells},
        "speedup": _mean([cell["speedup"] for cell in cells]),
        "published_speedup": published_speedup("longform", cells[0]["model"]),
    }


def _table(parts: Sequence[Part]) -> Table:
    rows = []
    for part in parts:
        plain, mtp, found = Side.of(part.plain), Side.of(part.mtp), part.acceptance
        rows.append(
            (
                part.model,
                part.language,
                plain.speed.text() if plain.speed else "-",
                mtp.speed.text() if mtp.speed else "-",
                times(ratio(mtp.speed, plain.speed)),
                times(ratio(plain.tpot, mtp.tpot)),
                times(published_speedup("longform", part.model)),
                f"{100 * found.rate:.0f} %" if found else "-",
                f"{found.mean_length:.2f}" if found else "-",
                positions_text(found),
                f"{mtp.characters_per_token:.2f}" if mtp.characters_per_token else "-",
                str(plain.errors + mtp.errors),
            )
        )
    columns = (
        *("model", "language", "plain tok/s", "MTP tok/s", "speed-up", "speed-up of TPOT", "published speed-up"),
        *("acceptance", "tokens a step", "by position", "characters a token", "errors"),
    )
    return Table("Measured", columns, tuple(rows))


def _finding(cell: dict[str, Any]) -> str:
    told = published_speedup("longform", cell["model"])
    against = f" (published for this model on a DGX Spark: {told:.2f}x)" if told else ""
    return f"{cell['model']}, {cell['language']}: MTP writes {times(cell['speedup'])} as fast as plain{against}"


def _plot(cells: list[dict[str, Any]]) -> Plot:
    def points(side: str) -> tuple[tuple[float, float], ...]:
        return tuple((float(i), c[side]["tok_s"]["median"]) for i, c in enumerate(cells) if c[side]["tok_s"])

    return Plot(
        "Output tokens per second",
        "model and language",
        "tokens per second",
        (Series("plain", points("plain")), Series("MTP", points("mtp"))),
        categories=tuple(f"{cell['model']}, {cell['language']}" for cell in cells),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(sum(known) / len(known)) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
