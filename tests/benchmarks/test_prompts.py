"""The burst of long and short prompts and the played trace measure what they say, against a simulated engine."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.benchmarks.prompts import Burst, play, table
from tests.benchmarks.prompts_simulated import errors, simulate
from tests.benchmarks.prompts_trace import Arrival, read, stretch
from tests.benchmarks.prompts_trace import play as replay
from tests.benchmarks.prompts_trace import table as trace_table
from tests.sim.helpers import FAST, sim


async def test_every_request_of_the_burst_is_measured() -> None:
    """Long and short in turns, each with a first token before its end."""
    async with sim(FAST) as server:
        found = await play(server.url, Burst("e4b", count=6, long=50, short=5, every=0.0), Random(1))

    assert [row.words for row in found] == [50, 5] * 3
    assert all(0.0 < row.first <= row.whole for row in found)
    text = table(server.url, found, 1.0)
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["5", "words:"], ["50", "words:"]]


async def test_a_trace_is_played_with_its_bursts() -> None:
    """A stretch has the rate asked for, keeps its bursts and lengths, and every request is measured or says why not."""
    rows = [Arrival(float(at), 40 + at, 3) for at in (0, 10, 11, 12, 40, 50)]
    taken = stretch(rows, 0, 10.0, 0.5, longest=45)
    assert [row.at for row in taken] == pytest.approx([0.0, 0.125, 0.1375, 0.15, 0.5])
    assert [row.words for row in taken] == [40, 45, 45, 45, 45]

    with pytest.raises(SystemExit, match="nowhere: no CSV"):
        read(Path("nowhere"))
    with pytest.raises(SystemExit, match="6 requests"):
        stretch(rows, 0, 10.0, 5.0, longest=45)

    async with sim(FAST) as server:
        found = await replay(server.url, 10.0, 0, taken, "e4b", Random(1))
        lost = await replay(server.url, 10.0, 0, taken[:1], "nobody", Random(1))

    assert [row.error for row in found] == [None] * 5
    assert all(row.first is not None and 0.0 < row.first <= row.whole for row in found)
    assert all(row.prompt_tokens is not None and row.prompt_tokens >= row.words for row in found)
    assert "404" in str(lost[0].error)
    assert [line.split(" | ")[2:4] for line in trace_table([*found, *lost]).splitlines()[2:]] == [["6", "1"]]


def test_the_runs_are_simulated_beside_what_was_measured(tmp_path: Path) -> None:
    """In a burst of long and short prompts requests take less in turn than by arrival, and errors are told of both."""
    rows = [f"{at / 100},{7000 if at % 2 else 20},5" for at in range(47)] + ["24,20,5"]
    (tmp_path / "burst.csv").write_text("\n".join(["t_s,input_tokens,output_tokens", *rows]))
    measured = {"mean_ms": [1000, 500]}
    found = {"cells": [{"trace": "burst", "engine": "mtp", "rate": 2.0, "rounds": [measured]}]}
    simulate(found, tmp_path)

    by_arrival, in_turn = measured["simulated_ms"]
    assert 0 < in_turn < by_arrival
    (line,) = errors(found)
    assert line.startswith("burst, mtp: 2 means, ")
    assert f"{max(by_arrival / 1000 - 1, in_turn / 500 - 1, key=abs):+.1%}" in line
