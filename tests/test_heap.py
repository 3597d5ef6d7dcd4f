"""Memory that was freed goes back to the system."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway import heap


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(heap.page_returner() is None, reason="this C library has no malloc_trim")
async def test_free_pages_go_back_although_others_between_are_kept() -> None:
    """What a burst leaves full of holes shrinks without the process ending."""
    pieces = [bytes(20_000) for _ in range(4000)]
    kept = pieces[::100]
    del pieces
    before = resident_mb()
    task = asyncio.create_task(heap.tidy_heap(0.01))
    async with asyncio.timeout(60):
        while resident_mb() > before - 50:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])

    assert len(kept) == 40
