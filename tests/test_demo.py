"""What the demo prints, on the terminals that people have."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gateway.demo import TOUR, Visited, tour_table


def shown(width: int) -> str:
    """The tour's table, with the longest words that a row has."""
    headers = {
        "x-gateway-task": "classification",
        "x-gateway-predicted-output-tokens": "1024",
        "x-gateway-pool": "e4b-plain",
        "x-gateway-reason": "rule",
    }
    rows = [Visited(stop, headers, "labels stay plain", 12.34, 12.34) for stop in TOUR]
    out = io.StringIO()
    Console(file=out, width=width).print(tour_table(rows, width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_each_request_of_the_tour_is_one_whole_line(width: int) -> None:
    """No word is broken or cut, Japanese ones neither, from the usual 80 columns on."""
    lines = shown(width).splitlines()

    assert "…" not in shown(width)
    for stop in TOUR:
        (line,) = [line for line in lines if stop.title in line]
        assert "12.34 s" in line
        assert "rule" in line


def test_a_wide_terminal_shows_the_task_and_the_rule() -> None:
    """What a narrow one has no room for."""
    assert all(word in shown(120) for word in ("classification", "labels stay plain"))
