"""The report of `gateway simulate --validate`: a verdict per table, its rows, the distribution of errors."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.figures.report import Plot, Report, Series, Table
from gateway.simulate.validate import MEDIAN, WORST, Validated, summary

LABEL = "simulated"
LEAST_ROWS = 14
"""Least rows for a table to be a line in the plot."""


def render(found: Sequence[Validated], *, every: bool = False) -> Report:
    """The verdicts and, with `every`, all rows of all tables (for the HTML page)."""
    held = sum(one.holds for one in found)
    return Report(
        name="validate",
        title="The simulator against measured and published tables",
        intro=f"Each value is simulated from the built-in speed profiles; error is simulated / known - 1. A "
        f"table holds if the median error is at most {MEDIAN:.0%} and the worst at most {WORST:.0%}.",
        findings=(f"{held} of {len(found)} tables hold", *_findings(found)),
        tables=(verdicts(found), *(every_row(one) for one in found if every)),
        plots=(_plot(found),),
        data=summary(found),
    )


def verdicts(found: Sequence[Validated]) -> Table:
    rows = [
        (
            one.table.title,
            one.table.hardware,
            str(len(one.points)),
            f"{one.median:.1%}",
            f"{one.worst.error:+.1%}",
            one.worst.label,
            "yes" if one.table.fitted else "no",
            "holds" if one.holds else "does not hold",
        )
        for one in found
    ]
    columns = ("table", "hardware", "rows", "median error", "worst", "where", "fitted to it", "verdict")
    return Table("Errors by table", columns, tuple(rows), _sources(found))


def every_row(one: Validated) -> Table:
    """All rows of one table."""
    rows = [(p.label, f"{p.known:g}", f"{p.simulated:.4g}", f"{p.error:+.1%}") for p in one.points]
    note = f"Source: {one.table.source}; {one.table.method}. {one.verdict}"
    return Table(one.table.title, ("row", "known", LABEL, "error"), tuple(rows), note)


def _findings(found: Sequence[Validated]) -> tuple[str, ...]:
    return tuple(f"{one.table.title}: {one.verdict}" for one in found if not one.holds)


def _sources(found: Sequence[Validated]) -> str:
    sources = dict.fromkeys(one.table.source for one in found if one.table.source != "the same")
    return "Sources: " + "; ".join(sources) + "."


def _plot(found: Sequence[Validated]) -> Plot:
    series = tuple(
        Series(one.table.title, tuple((100 * (at + 0.5) / len(errors), 100 * error) for at, error in enumerate(errors)))
        for one in found
        if len(errors := sorted(abs(p.error) for p in one.points)) >= LEAST_ROWS
    )
    return Plot("Errors, smallest first", "share of the table's rows, %", "error, %", series, level=100 * WORST)
