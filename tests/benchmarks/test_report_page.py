"""The report page says what its figures say: gains, and where there are none."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.schema import DEFAULT_OBJECTIVE
from gateway.simulate.suite import summarize
from tests.benchmarks.report_data import FIGURES, MODELS, TRACES, TRAFFIC, break_even, compact, read, without_rows
from tests.benchmarks.report_gpu import gpu_chapter, gpu_figures
from tests.benchmarks.report_page import ARMS, arms_chapter, limits_chapter, render


def suite(**means: float) -> dict[str, Any]:
    """Two cells of a suite, in which every arm takes 2 s but for those given."""
    rows = [
        {"traffic": "half", "profile": "h200", "model": "e4b", "load": load, "mixed": True, "arm": arm, "p99_s": 9.0}
        | {"mean_s": means.get(arm, 2.0)}
        for load in (0.2, 1.1)
        for arm in ARMS
    ]
    return compact({"cells": rows, "objective": DEFAULT_OBJECTIVE, "summary": summarize(rows)}, 10)


def test_an_arm_is_told_against_the_default() -> None:
    """Half as long is -50 %, and a faster arm is counted."""
    table = arms_chapter(suite(random=4.0, static_64=1.0)).tables[0]
    rows = {row[0]: row[1:] for row in table.rows}

    assert ARMS[DEFAULT_OBJECTIVE] not in rows
    assert rows[ARMS["random"]] == ("+100%", "+100%", "+100%", "0 of 2")
    assert rows[ARMS["static_64"]] == ("-50%", "-50%", "-50%", "2 of 2")


def test_every_loss_is_told() -> None:
    """A rule that beats the default over the same engines stands in the table; another deployment in the text."""
    report = limits_chapter(suite(bins=1.5, all_mtp=1.0))
    table = report.tables[0]

    assert [row[-2:] for row in table.rows] == [(ARMS["bins"], "-25%")] * 2
    assert "in 2 of 2 cells" in report.findings[0]
    assert limits_chapter(suite()).tables[0].rows == ()


def test_the_committed_page_is_made_of_the_committed_figures() -> None:
    """Whoever changes figures draws the page again: python -m tests.benchmarks.report_page."""
    page = render(read("arms"), read("breakeven"), read("validation"), gpu_figures())

    assert (FIGURES / "report.html").read_text("utf-8") == page
    assert "simulated" in page
    assert page.count("<svg") >= 19


def test_measured_arms_stand_with_their_hardware() -> None:
    """One table and one plot a measured model, never without what it ran on."""
    report = gpu_chapter(gpu_figures())

    assert len(report.tables) == len(report.plots) + 4 >= 8
    assert all("NVIDIA" in table.note for table in report.tables)
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)


def test_the_committed_arms_are_whole() -> None:
    """Every traffic, hardware, model and load under every arm."""
    found = read("arms")
    cells = {(c["traffic"], c["profile"], c["model"], c["load"]) for c in found["cells"]}

    assert len(cells) == len(found["cells"]) == len(TRAFFIC + TRACES) * 3 * len(MODELS) * 4
    assert all(cell["mean_s"].keys() == ARMS.keys() for cell in found["cells"])
    assert found["objective"] == DEFAULT_OBJECTIVE


def test_the_committed_break_even_is_that_of_the_profiles() -> None:
    """A changed profile is a changed chart."""
    assert read("breakeven") == break_even()


@pytest.mark.parametrize("rows", [[], [{"row": 1}]])
def test_a_validation_is_kept_without_its_rows(rows: list[dict[str, int]]) -> None:
    """Verdicts are kept; hundreds of rows are made anew when asked for."""
    assert without_rows({"tables": [{"table": "t", "rows": rows}]}) == {"tables": [{"table": "t"}]}
