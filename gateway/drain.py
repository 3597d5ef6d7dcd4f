"""Stopping without loss: a stop signal turns readiness off, lets running requests end, then lets the server stop.

While draining, the listener stays open, `/ready` answers 503, and a new request is refused with `Retry-After` and
`Connection: close`, so that a load balancer or an SDK takes it elsewhere. The server's own handler gets the signal
once no request runs and none has come for a moment (a balancer needs one to notice), or when the policy's
`server.grace` is over. A client that still comes after a few seconds does not look at `/ready`; a refused connection
serves it as well as a 503, so that is not waited for. A second signal goes to the server at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, Protocol

log = logging.getLogger("gateway")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_SECONDS = 0.05
QUIET_SECONDS = 0.5
"""How long no request must have come. Closing the listener cuts off clients that are just connecting."""
PATIENT_SECONDS = 5.0
"""The longest wait for that, once no request runs."""


class Draining(Protocol):
    """What draining needs to know of the request path."""

    draining: bool
    running: int
    """Requests that have begun and not ended."""
    turned_away: int
    """Requests refused because of the draining, in all."""


@contextmanager
def drain_on_signals(core: Draining, grace: Callable[[], float]) -> Iterator[None]:
    """Takes the stop signals over from the server while the block runs. Main thread only."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    tasks: set[asyncio.Task[None]] = set()

    def stop_server(number: int) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, None)

    async def drain(number: int) -> None:
        deadline = loop.time() + grace()
        # Polled, since nothing else needs an event for every request that comes or goes.
        turned_away, quiet_from, patient_until = core.turned_away, loop.time(), loop.time() + PATIENT_SECONDS
        while (now := loop.time()) < deadline:
            if core.running or core.turned_away != turned_away:
                turned_away, quiet_from = core.turned_away, now
            if not core.running and (now >= quiet_from + QUIET_SECONDS or now >= patient_until):
                break
            await asyncio.sleep(LOOK_SECONDS)
        log.info("drained", extra={"fields": {"still_running": core.running}})
        stop_server(number)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if core.draining:
            stop_server(number)
            return
        core.draining = True
        log.info("draining", extra={"fields": {"running": core.running, "grace": grace()}})
        loop.call_soon_threadsafe(lambda: tasks.add(loop.create_task(drain(number))))

    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def background(work: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs endless tasks while the block runs. A failure is logged at once and stops no other task."""
    tasks = [asyncio.create_task(one) for one in work]
    for task in tasks:
        task.add_done_callback(_tell_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("a background task failed", exc_info=fault)
