"""The time limit of a block."""

from __future__ import annotations

import asyncio

import pytest

from gateway.api.limit import TimeLimit


async def test_a_block_that_is_too_long_ends_with_a_time_out() -> None:
    """The wait inside is cancelled, and TimeoutError comes out."""
    with pytest.raises(TimeoutError), TimeLimit(0.01):
        await asyncio.get_running_loop().create_future()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_time_that_is_up_already_ends_the_first_wait() -> None:
    """A limit below 0 is over, and does not raise anything else."""
    with pytest.raises(TimeoutError), TimeLimit(-1.0):
        await asyncio.sleep(10)


async def test_a_block_in_time_leaves_no_timer() -> None:
    """What runs after the block is not cancelled by it."""
    with TimeLimit(0.01):
        await asyncio.sleep(0)
    await asyncio.sleep(0.03)


async def test_no_limit_is_no_limit() -> None:
    """None lets the block run, and passes its errors."""
    with TimeLimit(None):
        await asyncio.sleep(0)
    with pytest.raises(KeyError), TimeLimit(None):
        raise KeyError


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    """Who cancels the task gets CancelledError, with no time-out in between."""
    entered = asyncio.Event()

    async def block() -> None:
        with TimeLimit(10.0):
            entered.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_stay_a_cancellation() -> None:
    """A task that is cancelled in the same moment in which its time is up is cancelled."""
    task: asyncio.Task[None]

    async def block() -> None:
        with TimeLimit(0.0):
            asyncio.get_running_loop().call_later(0.0, lambda: task.cancel())
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(block())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_limits_raises_alone() -> None:
    """An outer limit with time left does not notice the inner one's end."""
    with TimeLimit(10.0):
        with pytest.raises(TimeoutError), TimeLimit(0.01):
            await asyncio.sleep(10)
        await asyncio.sleep(0)
