"""One producer for all viewers, and none for nobody."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from gateway.errors import NothingAvailable
from gateway.ui.live import MOST_VIEWERS, Live


class Source:
    """Counts the snapshots that are taken; `broken` makes the next one fail."""

    def __init__(self) -> None:
        self.taken = 0
        self.broken = False

    def __call__(self) -> dict[str, Any]:
        if self.broken:
            raise RuntimeError("no snapshot")
        self.taken += 1
        return {"number": self.taken, "point": {"at": self.taken}}


async def test_nothing_is_produced_while_nobody_looks() -> None:
    """The first viewer starts the producer, the last one ends it."""
    live = Live(Source(), lambda: False, tick=0.001)
    assert not live.producing
    async with aclosing(live.events()) as one:
        await anext(one)
        async with aclosing(live.events()) as two:
            await anext(two)
            await anext(two)
            assert live.viewers == 2
        assert live.producing
    assert (live.viewers, live.producing) == (0, False)


async def test_viewers_share_each_snapshot() -> None:
    """Ten viewers cost one snapshot a tick, besides the one that each begins with."""
    source = Source()
    live = Live(source, lambda: False, tick=0.2)
    viewers = [live.events() for _ in range(10)]
    for viewer in viewers:
        await anext(viewer)
    begun = source.taken
    events = await asyncio.gather(*(anext(viewer) for viewer in viewers))
    assert len(set(events)) == 1
    assert source.taken - begun == 1
    for viewer in viewers:
        await viewer.aclose()


async def test_the_chart_outlives_its_viewer() -> None:
    """The next viewer gets the points that were made before it came."""
    live = Live(Source(), lambda: False, tick=0.001)
    async with aclosing(live.events()) as one:
        for _ in range(4):
            await anext(one)
    async with aclosing(live.events()) as two:
        assert b'"history":[{' in await anext(two)


async def test_a_fault_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    """Viewers are let go instead of waiting for ever, and the fault is in the log."""
    source = Source()
    live = Live(source, lambda: False, tick=0.001)
    async with aclosing(live.events()) as one, asyncio.timeout(60):
        await anext(one)
        source.broken = True
        async for _ in one:
            pass
    assert "the status stream failed" in caplog.text
    source.broken = False
    async with aclosing(live.events()) as two:
        await anext(two)
        await anext(two)


async def test_there_is_a_limit_to_viewers() -> None:
    """Pages left open cannot use the process up."""
    live = Live(Source(), lambda: False)
    viewers = [live.events() for _ in range(MOST_VIEWERS)]
    for viewer in viewers:
        await anext(viewer)
    with pytest.raises(NothingAvailable):
        await anext(live.events())
    for viewer in viewers:
        await viewer.aclose()
    assert live.viewers == 0
