"""Stopping without loss: a stop signal turns readiness off, lets running requests end, then lets the server stop.

While draining, the listener stays, `/ready` answers 503, and a new request is refused with `Retry-After` and
`Connection: close`, so that a load balancer or an SDK takes it elsewhere. When nothing runs any more and nobody has
come for a moment (a balancer needs one to notice), or the policy's `server.grace` is over, the server's own handler
gets the signal. Whoever still comes after a few seconds looks at no `/ready` and takes a refused connection as well as
a 503, so that is not waited out. A second signal goes to the server at once.
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
"""How long nothing must have come. A listener that closes cuts off whoever is just connecting, without an answer."""
PATIENT_SECONDS = 5.0
"""How long that is waited for once nothing runs."""


class Draining(Protocol):
    """What draining needs of the request path."""

    draining: bool
    running: int
    """Requests that have begun and not ended."""
    turned_away: int
    """Requests refused because of the draining."""


@contextmanager
def drain_on_signals(core: Draining, grace: Callable[[], float]) -> Iterator[None]:
    """Takes over the stop signals from the server for the length of the block. Main thread only."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    tasks: set[asyncio.Task[None]] = set()

    def stop_server(number: int) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, None)

    async def drain(number: int) -> None:
        deadline = loop.time() + grace()
        # The counts are of live requests; their coming and going is no event that anything else would wait for.
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
    """Runs endless tasks for the length of the block. One that fails is told at once, and holds up nobody's end."""
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
