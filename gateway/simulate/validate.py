"""`gateway simulate --validate`: the simulator against every measured and published table, row by row.

A row's error is simulated / known - 1. A table holds if its median absolute error is at most 10 % and its worst at most
25 %; otherwise its verdict also names the effects that the simulator does not model. Quantities over many steps are
played through the simulated engine, prompts included, not computed from the step formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.profiles import Profile, get_profile
from gateway.simulate import halves, served
from gateway.simulate.measured import ACCEPTANCE, CODE, PROSE, TABLES, replay
from gateway.simulate.playing import LONE, Shape, closed, mean_time, mean_tpot, steady, wave
from gateway.simulate.tables import KnownTable, Row, known_tables
from gateway.types import Task

MEDIAN, WORST = 0.10, 0.25
WAVES = 24
"""Least number of requests per mean, over several seeds if a wave is smaller."""
_TASKS = {"none": PROSE, "prose": PROSE, "code": CODE}


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a table."""

    label: str
    known: float
    simulated: float
    at_most: bool = False
    """Whether `known` is only an upper bound."""

    @property
    def error(self) -> float:
        error = self.simulated / self.known - 1.0
        return max(error, 0.0) if self.at_most else error


@dataclass(frozen=True, slots=True)
class Validated:
    """The errors of one table."""

    table: KnownTable
    points: tuple[Point, ...]

    @property
    def median(self) -> float:
        ordered = sorted(abs(point.error) for point in self.points)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def worst(self) -> Point:
        return max(self.points, key=lambda point: abs(point.error))

    @property
    def holds(self) -> bool:
        return self.median <= MEDIAN and abs(self.worst.error) <= WORST

    @property
    def beyond(self) -> int:
        """Number of points with an error above `WORST`."""
        return sum(abs(point.error) > WORST for point in self.points)

    @property
    def verdict(self) -> str:
        if self.holds:
            return "holds"
        misses = f"{self.beyond} of {len(self.points)} rows beyond {WORST:.0%}" if self.beyond else ""
        wide = f"median above {MEDIAN:.0%}" if self.median > MEDIAN else ""
        return f"{', '.join(filter(None, (wide, misses)))}; not modelled: {self.table.lacks}"

    def as_dict(self) -> dict[str, Any]:
        table = self.table
        return {
            "name": table.name,
            "title": table.title,
            "source": table.source,
            "hardware": table.hardware,
            "method": table.method,
            "fitted": table.fitted,
            "points": len(self.points),
            "median_error": round(self.median, 4),
            "worst_error": round(self.worst.error, 4),
            "worst_at": self.worst.label,
            "holds": self.holds,
            "verdict": self.verdict,
            "lacks": table.lacks,
            "rows": [
                {"row": p.label, "known": p.known, "simulated": round(p.simulated, 4), "error": round(p.error, 4)}
                for p in self.points
            ],
        }


def validate() -> list[Validated]:
    """Validates every shipped table."""
    return [Validated(table, tuple(_PREDICTORS[table.name](table))) for table in known_tables()]


def summary(found: Sequence[Validated]) -> dict[str, Any]:
    """The output of `--json`."""
    return {
        "simulated": True,
        "limits": {"median": MEDIAN, "worst": WORST},
        "holds": all(one.holds for one in found),
        "tables": [one.as_dict() for one in found],
    }


def _measured(model: str) -> Profile:
    """An H200 profile with the synthetic acceptance of the measurement."""
    base = get_profile("h200", model)
    return replace(base, by_task={**base.by_task, **ACCEPTANCE})


def _steps(table: KnownTable) -> Iterator[Point]:
    for row in table.rows:
        seconds = get_profile("h200", row["model"]).step_seconds(
            float(row["streams"]), int(row["k"]), float(row["context"])
        )
        label = f"{row['model']} k={row['k']}, {row['streams']} streams, context {row['context']}"
        yield Point(label, float(row["step_ms"]), 1000 * seconds)


def _shape(row: Row) -> Shape:
    return Shape(_TASKS[row["acceptance"]], int(row["prompt"]), int(row["answer"]))


def _label(row: Row) -> str:
    drafts = "" if row["acceptance"] == "none" else f" {row['acceptance']}"
    return f"{row['model']} k={row['k']}{drafts}, {row['streams']} x {row['answer']} after {row['prompt']}"


def _waves(table: KnownTable) -> Iterator[Point]:
    for row in table.rows:
        streams = int(row["streams"])
        repeats = range(1, 2 + WAVES // streams)
        found = [mean_tpot(wave(_measured(row["model"]), int(row["k"]), _shape(row), streams, s)) for s in repeats]
        yield Point(_label(row), float(row["tpot_ms"]), 1000 * sum(found) / len(found))


def _closed(table: KnownTable) -> Iterator[Point]:
    for row in table.rows:
        jobs = steady(_measured(row["model"]), int(row["k"]), _shape(row), int(row["streams"]))
        yield Point(_label(row), float(row["e2e_ms"]), 1000 * mean_time(jobs))


def _open(table: KnownTable) -> Iterator[Point]:
    for found in replay(tables=(table.name,)):
        for kind in ("short", "long"):
            label = f"{found['model']} at {found['rate']:g}/s, {found['arrangement']}, {kind}"
            yield Point(label, found[f"{kind}_measured_ms"], found[f"{kind}_ms"])


def _arms(table: KnownTable) -> Iterator[Point]:
    if table.name in halves.TWO_TABLES:
        replayed = served.replay(table.name, halves.SIZES, halves.TWO_TABLES[table.name])
    else:
        replayed = (halves if table.name in halves.TABLES else served).replay(table.name)
    for row, ms in replayed:
        load = f"{row['clients']} clients" if row["clients"] else f"{row['rate']}/s"
        yield Point(f"{row['model']} at {load}, {row['arm']}, {row['kind']}", float(row["e2e_ms"]), ms)


def _longform(table: KnownTable) -> Iterator[Point]:
    for row in table.rows:
        profile = get_profile("dgx-spark", row["model"])
        shape = Shape(Task.LONG_FORM, int(row["prompt"]), int(row["answer"]))
        speeds = [1 / (mean_time(closed(profile, k, shape, 1, LONE)) / shape.answer) for k in (0, int(row["k"]))]
        figures = {"plain_tok_s": speeds[0], "mtp_tok_s": speeds[1], "speedup": speeds[1] / speeds[0]}
        for name, simulated in figures.items():
            if row[name]:
                yield Point(f"{row['model']} {name}", float(row[name]), simulated)


def _short(table: KnownTable) -> Iterator[Point]:
    for row in table.rows:
        profile = get_profile("dgx-spark", row["model"])
        shape = Shape(Task.MULTIPLE_CHOICE, int(row["prompt"]), int(row["answer"]))
        plain, mtp = (mean_time(closed(profile, k, shape, 1, LONE)) for k in (0, int(row["k"])))
        yield Point(f"{row['model']} speed-up", float(row["speedup"]), plain / mtp, row["at_most"] == "1")


def _depth(table: KnownTable) -> Iterator[Point]:
    for row in table.rows:
        profile, k = get_profile("g4-slice", row["model"]), int(row["k"])
        shape = Shape(Task.CHAT, int(row["prompt"]), int(row["answer"]))
        plain, mtp = (mean_tpot(steady(profile, depth, shape, int(row["streams"]))) for depth in (0, k))
        length = profile.mean_acceptance_length(shape.task, k)
        yield Point(f"{row['model']} k={k}, tokens a step", float(row["tokens_a_step"]), length)
        yield Point(f"{row['model']} k={k}, TPOT against plain", float(row["tpot_ratio"]), mtp / plain)


_PREDICTORS: Mapping[str, Callable[[KnownTable], Iterator[Point]]] = {
    "h200-steps": _steps,
    "h200-waves": _waves,
    "h200-closed": _closed,
    **dict.fromkeys(TABLES, _open),
    **dict.fromkeys((*served.TABLES, *halves.TABLES, *halves.TWO_TABLES), _arms),
    "spark-longform": _longform,
    "spark-short": _short,
    "g4-depth": _depth,
}
