"""`gateway simulate --validate`: the simulator against every table that ships."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import pytest

from gateway.bench.fit import Point as Step
from gateway.bench.fit import fit_decode
from gateway.bench.sources import published_dict
from gateway.profiles import get_profile
from gateway.simulate import command
from gateway.simulate.tables import KnownTable, known_tables, rows_of
from gateway.simulate.validate import MEDIAN, WORST, Point, Validated, summary, validate
from tests.benchmarks.report_data import read, without_rows

HOLD = (
    "h200-steps",
    "h200-waves",
    "h200-open-26b",
    "h200-shared",
    "h200-arms-26b",
    "h200-arms-e4b-graphs",
    "h200-arms-e4b-two",
    "h200-arms-26b-two",
    "h200-arms-26b-tasks",
    "spark-longform",
    "spark-short",
    "g4-depth",
)


@pytest.fixture(scope="module")
def found() -> dict[str, Validated]:
    return {one.table.name: one for one in validate()}


@pytest.mark.parametrize("name", HOLD)
def test_the_simulator_meets_the_table(found: dict[str, Validated], name: str) -> None:
    """Half of the rows within 10 %, all within 25 %."""
    one = found[name]

    assert (one.median <= MEDIAN, abs(one.worst.error) <= WORST) == (True, True), one.worst
    assert one.verdict == "holds"


def test_a_table_that_it_does_not_meet_says_which_physics_is_missing(found: dict[str, Validated]) -> None:
    """No miss without its reason, and no miss of most rows."""
    missed = [one for one in found.values() if not one.holds]

    assert {one.table.name for one in missed} == found.keys() - set(HOLD)
    for one in missed:
        assert len(one.table.lacks) > 40
        assert one.table.lacks in one.verdict
        assert one.median <= 0.16
        assert one.beyond <= max(1, 0.15 * len(one.points))


def test_the_committed_verdicts_are_todays(found: dict[str, Validated]) -> None:
    """The report page shows what the simulator does now: python -m tests.benchmarks.report_page --measure."""
    assert read("validation") == without_rows(summary(list(found.values())))


def test_every_table_says_where_it_is_from() -> None:
    """Numbers with source, hardware and method, and no row is empty."""
    tables = known_tables()

    assert len(tables) == 16
    for table in tables:
        assert table.source
        assert table.hardware
        assert table.method
        assert table.rows


def test_published_tables_are_the_ones_that_the_benchmarks_show() -> None:
    """One figure has one value, whether it is measured beside or simulated again."""
    longform, short, depth = (published_dict(name) for name in ("longform", "short", "depth"))
    names = {"26b-a4b": "26b"}

    for row in rows_of("spark-longform"):
        assert float(row["speedup"]) == longform["speedup"][names.get(row["model"], row["model"])]
    for row in rows_of("spark-short"):
        assert float(row["speedup"]) == short["speedup"][names.get(row["model"], row["model"])]
    for row in rows_of("g4-depth"):
        k = int(row["k"])
        assert float(row["tokens_a_step"]) == depth["mean_length"][k]
        assert float(row["tpot_ratio"]) == pytest.approx(1 + depth["tpot_change"][k])


@pytest.mark.parametrize("model", ["e4b", "26b-a4b"])
def test_depths_that_were_left_out_of_a_fit_come_out_of_it(model: str) -> None:
    """Fitted on k = 0, 2 and 4 alone, the steps of k = 1 and 3 are met: the form foresees what it was not told."""
    steps = [
        Step(int(r["k"]), float(r["streams"]), float(r["context"]), float(r["step_ms"]) / 1000)
        for r in rows_of("h200-steps")
        if r["model"] == model and int(r["streams"]) * (int(r["k"]) + 1) <= 512
    ]
    like = get_profile("h200", model)
    fitted = fit_decode([step for step in steps if step.k % 2 == 0], like)
    errors = defaultdict(list)
    for step in steps:
        decode = fitted.decode
        tokens, seen = step.batch * (step.k + 1), like.attention.seen(step.context) / 1000
        experts = decode.experts * (1 - (1 - decode.active) ** tokens) if decode.experts else 0.0
        ms = decode.base + decode.position * step.k + decode.token * tokens + experts
        ms += decode.context * step.batch * seen + (decode.mtp_context * seen if step.k else 0.0)
        errors[step.k].append(abs(ms / 1000 / step.seconds - 1))

    for k in (1, 3):
        assert sum(errors[k]) / len(errors[k]) < 0.08
        assert max(errors[k]) < 0.18


def test_no_gain_is_an_upper_bound() -> None:
    """A table that says "no gain" is missed by a gain only."""
    assert Point("x", 1.0, 0.8, at_most=True).error == 0.0
    assert Point("x", 1.0, 1.2, at_most=True).error == pytest.approx(0.2)
    assert Point("x", 1.0, 0.8).error == pytest.approx(-0.2)


def test_a_wide_median_alone_is_a_miss() -> None:
    """Both limits count."""
    about = {"name": "t", "title": "t", "source": "s", "hardware": "h", "method": "m", "lacks": "wind"}
    table = KnownTable(**about, fitted=False, rows=())
    one = Validated(table, tuple(Point(str(at), 1.0, 1.15) for at in range(3)))

    assert not one.holds
    assert one.verdict == "median above 10%; not modelled: wind"


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(words))


def test_the_command_tells_machines_and_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict per table, exit code 0 whatever the verdicts, every row on the page."""
    page = tmp_path / "page.html"
    assert run("--validate", "--json", "--html", str(page)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["simulated"] is True
    assert {"name", "median_error", "worst_error", "holds", "verdict", "rows"} <= told["tables"][0].keys()
    assert sum(row["points"] for row in told["tables"]) == sum(len(row["rows"]) for row in told["tables"])
    assert page.read_text("utf-8").count("<tr>") > 290
    assert "<svg" in page.read_text("utf-8")
