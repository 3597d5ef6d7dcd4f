"""The burst of long and short prompts measures what it says, against a simulated engine."""

from __future__ import annotations

from random import Random

from tests.benchmarks.prompts import Burst, play, table
from tests.sim.helpers import FAST, sim


async def test_every_request_of_the_burst_is_measured() -> None:
    """Long and short in turns, each with a first token before its end."""
    async with sim(FAST) as server:
        found = await play(server.url, Burst("e4b", count=6, long=50, short=5, every=0.0), Random(1))

    assert [row.words for row in found] == [50, 5] * 3
    assert all(0.0 < row.first <= row.whole for row in found)
    text = table(server.url, found, 1.0)
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["5", "words:"], ["50", "words:"]]
