"""The endless tasks of a process: one that fails is told at once, and the process still ends in good order."""

from __future__ import annotations

import asyncio

import pytest

from gateway.drain import background


async def test_a_task_that_fails_is_told_and_keeps_nothing_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    """The others are cancelled and have ended when the block is left, and what comes after it is done."""
    failed, cleared = asyncio.Event(), []

    async def fail() -> None:
        try:
            raise KeyError("a fault")
        finally:
            failed.set()

    async def endless() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            cleared.append(True)

    async with background([fail(), endless()]):
        await failed.wait()
        await asyncio.sleep(0)
        assert "a fault" in caplog.text
    assert cleared == [True]
