"""The report of `gateway bench breakeven`: times by length and concurrency, crossovers, fit, lines for a policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from gateway.bench.fit import Fitted
from gateway.bench.probes import Cell
from gateway.bench.sources import published, published_dict
from gateway.bench.stall import JOINED_TOKENS, RUNNING, Stall
from gateway.bench.summary import positions_text, times
from gateway.figures.report import Plot, Report, Series, Table
from gateway.telemetry.spec_decode import Acceptance

TERMS = ("base", "position", "token", "experts", "context", "mtp_context")
"""The fitted terms; the profile's other values come from the built-in profile."""
SIDES = {False: "plain", True: "mtp"}


def crossover(cells: Sequence[Cell]) -> float | None:
    """The length in tokens from which MTP stays faster, interpolated in log length; None if it is slower at the longest
    length. `cells` are of one concurrency."""
    ordered = sorted(cells, key=lambda cell: cell.tokens)
    if not ordered or ordered[-1].speedup < 1.0:
        return None
    first = next((i for i in reversed(range(len(ordered))) if ordered[i].speedup < 1.0), None)
    if first is None:
        return float(ordered[0].tokens)
    below, above = ordered[first], ordered[first + 1]
    share = (1.0 - below.speedup) / (above.speedup - below.speedup)
    return math.exp(math.log(below.tokens) + share * (math.log(above.tokens) - math.log(below.tokens)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The results of a whole or a partial run."""

    model: str
    k: int
    """Draft tokens; 0 while unknown."""
    prompt: int
    """Tokens of each prompt, about."""
    cells: Sequence[Cell]
    acceptance: Mapping[str, Acceptance]
    """By class of prompt."""
    stalls: Mapping[bool, Stall]
    """By side: False is plain, True is MTP."""
    fitted: Fitted | None
    profile: str | None
    """YAML of the speed profile; None while a part of it is not measured."""
    file: str | None
    """Where the profile was written."""
    threshold: int | None
    """For the static objective, in output tokens; None where MTP pays nowhere."""
    simulated: tuple[str, ...]
    """Back ends that said that they are simulated."""


def render(run: Measured) -> Report:
    """The report, for the terminal, JSON, Markdown and HTML."""
    concurrencies = sorted({cell.concurrency for cell in run.cells})
    groups = [(c, [cell for cell in run.cells if cell.concurrency == c]) for c in concurrencies]
    crossings = {concurrency: crossover(part) for concurrency, part in groups}
    data = {
        "model": run.model,
        "k": run.k,
        "cells": [_cell(cell) for cell in run.cells],
        "crossovers": {str(c): None if at is None else round(at, 2) for c, at in crossings.items()},
        "threshold": run.threshold,
        "fit": None if run.fitted is None else {**asdict(run.fitted), "decode": asdict(run.fitted.decode)},
        "acceptance": {name: found.as_dict() for name, found in run.acceptance.items()},
        "stalls": {SIDES[drafting]: stall.as_dict() for drafting, stall in run.stalls.items()},
        "profile": None if run.profile is None else yaml.safe_load(run.profile),
        "profile_file": run.file,
        "published": published_dict("breakeven"),
    }
    tables = [_grid(groups), _crossings(groups, crossings, run.k)]
    if run.acceptance:
        tables.append(_classes(run.acceptance))
    if run.stalls:
        tables.append(_stalls(run.stalls))
    if run.fitted:
        tables.append(_fit(run.fitted))
    return Report(
        name="breakeven",
        title=f"Break-even of MTP: {run.model}, k={run.k or '?'}",
        intro=f"Waves of requests that start together, prompts of about {run.prompt} tokens, answers of exactly the "
        "given length, plain and MTP in turns. Times are a whole answer's mean over a wave, median over waves.",
        findings=_findings(groups, crossings, run.threshold, run.file),
        tables=(*tables, published("breakeven")),
        plots=(_plot(groups),),
        data=data,
        simulated=run.simulated,
    )


def _cell(cell: Cell) -> dict[str, Any]:
    plain, mtp = cell.seconds
    return {
        "concurrency": cell.concurrency,
        "tokens": cell.tokens,
        "plain_ms": round(plain * 1000, 3),
        "mtp_ms": round(mtp * 1000, 3),
        "speedup": round(cell.speedup, 4),
    }


Groups = Sequence[tuple[int, Sequence[Cell]]]


def _grid(groups: Groups) -> Table:
    lengths = sorted({cell.tokens for _, part in groups for cell in part})
    rows = []
    for tokens in lengths:
        row = [str(tokens)]
        for _, part in groups:
            cell = next((cell for cell in part if cell.tokens == tokens), None)
            if cell is None:
                row.append("-")
                continue
            plain, mtp = cell.seconds
            row.append(f"{plain * 1000:.0f} / {mtp * 1000:.0f} ({cell.speedup:.2f}x)")
        rows.append(tuple(row))
    columns = ("tokens", *(f"{concurrency} at a time" for concurrency, _ in groups))
    return Table("Measured: whole answer, plain / MTP ms (speed-up)", columns, tuple(rows))


def _crossings(groups: Groups, crossings: Mapping[int, float | None], k: int) -> Table:
    rows = []
    for concurrency, part in groups:
        longest = max(part, key=lambda cell: cell.tokens)
        points = {point.k: point.seconds for point in longest.points(k or 1)}
        even = points[k or 1] / points[0] if len(points) == 2 else None
        length = longest.acceptance.mean_length if longest.acceptance else None
        at = crossings[concurrency]
        rows.append(
            (
                str(concurrency),
                "never" if at is None else "always" if at <= _shortest(part) else _tokens(at),
                f"{points[0] * 1000:.2f}" if 0 in points else "-",
                f"{even:.2f}" if even else "-",
                f"{length:.2f}" if length else "-",
                times(length / even) if length and even else "-",
            )
        )
    columns = (
        *("at a time", "MTP pays from", "plain step, ms", "break-even tokens a step"),
        *("measured tokens a step", "speed-up per token"),
    )
    return Table("Measured: crossovers", columns, tuple(rows))


def _classes(acceptance: Mapping[str, Acceptance]) -> Table:
    rows = [
        (name, f"{100 * found.rate:.0f} %", f"{found.mean_length:.2f}", positions_text(found))
        for name, found in acceptance.items()
    ]
    return Table("Measured: acceptance", ("prompts", "acceptance", "tokens a step", "by position"), tuple(rows))


def _stalls(stalls: Mapping[bool, Stall]) -> Table:
    rows = [
        (
            SIDES[drafting],
            f"{1000 * stall.seconds:.1f}",
            f"{1000 * stall.low:.1f} to {1000 * stall.high:.1f}",
            str(stall.joins),
        )
        for drafting, stall in stalls.items()
    ]
    note = (
        f"Time that a prompt of about {JOINED_TOKENS:.0f} tokens adds to each of {RUNNING} running answers, over their "
        "steps just before it: the mean of the middle half of the joins."
    )
    return Table("Measured: a joining prompt's stall, ms", ("side", "stall", "middle half", "joins"), tuple(rows), note)


def _fit(fitted: Fitted) -> Table:
    rows = [(name, f"{value:.4g}") for name, value in asdict(fitted.decode).items() if value and name in TERMS]
    note = f"{fitted.points} steps; relative error rms {fitted.rms:.1%}, worst {fitted.worst:.1%}."
    return Table("Fitted step-time model, ms", ("term", "value"), tuple(rows), note)


def _shortest(part: Sequence[Cell]) -> int:
    return min(cell.tokens for cell in part)


def _tokens(count: float) -> str:
    return f"{count:.0f} token{'' if round(count) == 1 else 's'}"


def _findings(
    groups: Groups, crossings: Mapping[int, float | None], threshold: int | None, file: str | None
) -> tuple[str, ...]:
    found = []
    for concurrency, part in groups:
        at, least = crossings[concurrency], _shortest(part)
        told = "does not pay at any length" if at is None else f"pays from {_tokens(at)}"
        if at is not None and at <= least:
            told = "pays at every length" + (f", measured from {least} on" if least > 1 else "")
        found.append(f"{concurrency} at a time: MTP {told}")
    if threshold:
        found.append(f"as a static rule: routing: {{objective: static, threshold: {threshold}}}")
    if file:
        found.append(
            f"for a policy beside it: pools: {{NAME: {{profile: {file.rpartition('/')[2]}, ...}}}} in both pools"
        )
    return tuple(found)


def _plot(groups: Groups) -> Plot:
    series = tuple(
        Series(
            f"{concurrency} at a time",
            tuple((float(c.tokens), c.speedup) for c in sorted(part, key=lambda cell: cell.tokens)),
        )
        for concurrency, part in groups
    )
    return Plot("Speed-up of whole answers by length", "output tokens", "plain / MTP", series, log_x=True, level=1.0)
