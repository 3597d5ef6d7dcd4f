"""The total time of requests: who is cut, who is not, and what it leaves."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.api.time_left import Deadlines
from gateway.errors import UpstreamTimeout


async def block(deadlines: Deadlines, deadline: float | None, wait: asyncio.Event) -> None:
    with deadlines.until(deadline):
        await wait.wait()


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines(time.monotonic)


@pytest.mark.parametrize("late", [-1.0, 0.0, 0.01])
async def test_a_block_is_cut_at_its_deadline(deadlines: Deadlines, late: float) -> None:
    """The block raises the time-out of the total time, its task goes on, and nothing is left behind."""
    with pytest.raises(UpstreamTimeout) as cut:
        await block(deadlines, time.monotonic() + late, asyncio.Event())
    assert cut.value.phase == "total"
    assert len(deadlines) == 0
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_each_deadline_holds_beside_others(deadlines: Deadlines) -> None:
    """Of three that run, earlier ones that began later and later ones that began earlier are each cut at their own."""
    ended: list[str] = []
    began = time.monotonic()

    async def named(name: str, seconds: float) -> None:
        with pytest.raises(UpstreamTimeout):
            await block(deadlines, began + seconds, asyncio.Event())
        ended.append(name)

    forever = asyncio.create_task(block(deadlines, began + 3600, asyncio.Event()))
    await asyncio.sleep(0)
    await asyncio.gather(named("third", 0.15), named("first", 0.01), named("second", 0.08))
    assert ended == ["first", "second", "third"]
    assert len(deadlines) == 1
    forever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forever
    assert len(deadlines) == 0


async def test_a_block_that_ends_in_time_is_not_cut(deadlines: Deadlines) -> None:
    """A task whose block has ended may go on past its deadline."""
    wait = asyncio.Event()
    wait.set()
    await block(deadlines, time.monotonic() + 0.01, wait)
    with pytest.raises(UpstreamTimeout):
        await block(deadlines, time.monotonic() + 0.03, asyncio.Event())
    assert len(deadlines) == 0


async def test_no_deadline_is_no_limit(deadlines: Deadlines) -> None:
    """Without a deadline nothing is noted."""
    wait = asyncio.Event()
    running = asyncio.create_task(block(deadlines, None, wait))
    await asyncio.sleep(0)
    assert len(deadlines) == 0
    wait.set()
    await running


@pytest.mark.parametrize("after_expiry", [False, True])
async def test_another_cancellation_passes_through(after_expiry: bool) -> None:
    """A client that leaves in the same turn as its time runs out has left: the cancellation is not swallowed."""
    now = 0.0
    deadlines = Deadlines(lambda: now)
    running = asyncio.create_task(block(deadlines, 0.0, asyncio.Event()))
    loop = asyncio.get_running_loop()
    if after_expiry:
        # The block enters first and sets its timer, which is due in the turn of this call.
        loop.call_soon(lambda: loop.call_later(0, running.cancel))
    else:
        loop.call_soon(running.cancel)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(deadlines) == 0


async def test_an_error_of_the_block_stays_its_own(deadlines: Deadlines) -> None:
    """What the block raises is not replaced."""
    with pytest.raises(ZeroDivisionError), deadlines.until(time.monotonic() + 60):
        raise ZeroDivisionError
    assert len(deadlines) == 0
