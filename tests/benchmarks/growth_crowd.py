"""Many streams that are opened and held: what their tokens' delays are, and what goes wrong with them.

Delays are a token's arrival minus the stamp of its writing; a gap is the time between two tokens of a stream, of
which the pace is taken off. Both are read in every fourth stream. All streams are watched for errors: another status
than 200, an end before its time, an error in the stream.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

from tests.benchmarks import wire
from tests.benchmarks.growth_fleet import HOST
from tests.benchmarks.stats import percentile

SAMPLED = 4
_TOKENS = 600
"""More than any measurement lasts: no stream ends while it is measured."""
_SETTLE_S = 0.5
_PATIENCE = 30.0


@dataclass(slots=True)
class Window:
    """What the sampled streams saw; nanoseconds."""

    delays: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)

    def p99_ms(self) -> dict[str, float]:
        return {
            "delay_p99_ms": percentile(sorted(self.delays), 0.99) / 1e6,
            "gap_p99_ms": percentile(sorted(self.gaps), 0.99) / 1e6,
        }


class Held(asyncio.Protocol):
    """One stream that is held open."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd, self._number = crowd, number
        self._sampled = number % SAMPLED == 0
        self._headed = False
        self._last = 0
        self.transport: asyncio.Transport | None = None
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first token, and with what is none."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.writelines(self._crowd.request.parts(self._number))

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            good = self._headed or data.startswith(b"HTTP/1.1 200")
            self._headed = True
            if not good:
                self._crowd.errors[f"status {data[9:12].decode(errors='replace')}"] += 1
            if not good or b"data: " in data:
                self.answered.set_result(None)
        if b"[DONE]" in data or b'"error"' in data:
            self._crowd.errors["ended or an error in the stream"] += 1
        if self._sampled:
            self._read(data)

    def _read(self, data: bytes) -> None:
        now = time.monotonic_ns()
        for stamp in wire.STAMP.finditer(data):
            window = self._crowd.window
            if window is not None:
                window.delays.append(now - int(stamp[1]))
                if self._last:
                    window.gaps.append(now - self._last - self._crowd.interval_ns)
            self._last = now

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_result(None)
        if not self._crowd.closing:
            self._crowd.errors["closed before its time"] += 1


class Crowd:
    """Streams of one port, all held open until `close`."""

    def __init__(self, port: int, headers: dict[str, str], interval_us: int, per_s: float) -> None:
        shape = wire.StreamShape(_TOKENS, interval_us)
        self.port = port
        self.request = wire.post(HOST, port, wire.chat_body(1000, shape), headers)
        self.interval_ns = interval_us * 1000
        self.errors: Counter[str] = Counter()
        self.window: Window | None = None
        """Where the tokens that arrive now are counted."""
        self.closing = False
        self._first = time.time_ns() % 10**14
        self._members: list[Held] = []
        self._per_s = per_s

    async def grow(self, count: int) -> None:
        """Opens streams until `count` are and waits for their first tokens; what does not come within thirty seconds
        is an error. They are spread over whole intervals, so that they do not tick together."""
        more, interval_s = count - len(self._members), self.interval_ns / 1e9
        span = interval_s * math.ceil(max(1, more) / (self._per_s * interval_s))
        await asyncio.gather(*(self._open(span * place / more) for place in range(more)))
        await asyncio.sleep(_SETTLE_S)

    async def _open(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        held = Held(self, self._first + len(self._members))
        self._members.append(held)
        try:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.get_running_loop().create_connection(lambda: held, HOST, self.port)
                await held.answered
        except (OSError, TimeoutError) as error:
            self.errors[f"not opened: {type(error).__name__}"] += 1

    async def listen(self, seconds: float) -> Window:
        """What the sampled streams see for so long."""
        self.window = window = Window()
        await asyncio.sleep(seconds)
        self.window = None
        return window

    async def close(self) -> None:
        self.closing = True
        for held in self._members:
            if held.transport is not None:
                held.transport.abort()
        # One turn of the loop for the aborts, one for what they close.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
