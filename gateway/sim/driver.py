"""Plays an engine in real time and hands its output to the requests' mailboxes.

One task steps the engine: begin, sleep until the step's end, commit, deliver. A step starts where the last one ended,
so that the event loop's lateness does not add up; only a lag beyond `_MAX_LAG` is written off. Consumers that are
slower than the engine find several steps' tokens at once, as they would behind vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.sim.engine import Engine, Event
from gateway.sim.sequence import Ask, Sequence

_MAX_LAG = 0.05
"""Real seconds."""


class ClientGone(Exception):
    """The client left before its answer was complete."""


class Mailbox:
    """Where a request waits for its sequences' tokens. One reader."""

    def __init__(self, *, whole: bool) -> None:
        self.open = 0
        """Sequences that are not over."""
        self.closed = False
        self._whole = whole
        self._pending: dict[int, int] = {}
        self._waiter: asyncio.Future[None] | None = None

    def deliver(self, index: int, tokens: int, done: bool) -> None:
        self._pending[index] = self._pending.get(index, 0) + tokens
        self.open -= done
        if not self._whole or self.open == 0:
            self._wake()

    def close(self) -> None:
        """Ends the reader's wait: the client is gone."""
        self.closed = True
        self._wake()

    async def next(self) -> dict[int, int]:
        """New tokens by sequence index; with `whole`, only once everything is there. Raises ClientGone."""
        while not self.closed:
            if self._pending and (not self._whole or self.open == 0):
                pending, self._pending = self._pending, {}
                return pending
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        raise ClientGone

    async def sleep(self, seconds: float) -> None:
        """Waits, unless the client leaves first. Raises ClientGone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.closed:
            left = until - loop.time()
            if left <= 0:
                return
            self._waiter = loop.create_future()
            timer = loop.call_later(left, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        raise ClientGone

    async def gone(self) -> None:
        """Waits until the client leaves, then raises ClientGone."""
        while not self.closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        raise ClientGone

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Driver:
    """Runs one engine on the event loop. `observe` sees every step's events after delivery."""

    def __init__(self, engine: Engine, time_scale: float, observe: Callable[[list[Event]], None]) -> None:
        self.engine = engine
        self._scale = time_scale
        self._observe = observe
        self._boxes: dict[Sequence, tuple[Mailbox, int]] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._frozen = False

    @property
    def dead(self) -> bool:
        """The engine ended by an error; its requests will never be answered."""
        return self._task is not None and self._task.done()

    def now(self) -> float:
        """The engine's clock, simulated seconds."""
        return asyncio.get_running_loop().time() * self._scale

    def submit(self, ask: Ask, mailbox: Mailbox, index: int) -> Sequence:
        """Queues an answer whose tokens go to `mailbox` under `index`. Raises ValueError as the engine does."""
        sequence = self.engine.submit(ask, self.now())
        mailbox.open += 1
        self._boxes[sequence] = (mailbox, index)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._wake.set()
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Ends an answer nobody waits for any more. Harmless where it is over."""
        self._boxes.pop(sequence, None)
        self.engine.abort(sequence, self.now())

    def freeze(self, frozen: bool) -> None:
        """Stops the engine, or lets it go on."""
        self._frozen = frozen
        self._wake.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        ended = self.now()
        while True:
            self._wake.clear()
            now = self.now()
            start = ended if now - ended < _MAX_LAG * self._scale else now
            ends = None if self._frozen else self.engine.begin(start)
            if ends is None:
                await self._wake.wait()
                ended = self.now()
                continue
            await asyncio.sleep(max(0.0, (ends - self.now()) / self._scale))
            while self._frozen:
                self._wake.clear()
                await self._wake.wait()
            ended = ends
            self._deliver(self.engine.commit())

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            sequence = event.sequence
            box = self._boxes.get(sequence)
            if box is not None:
                box[0].deliver(box[1], event.tokens, sequence.done)
                if sequence.done:
                    del self._boxes[sequence]
        self._observe(events)
