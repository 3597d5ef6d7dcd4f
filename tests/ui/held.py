"""A gateway with three streams before one engine, of which two are held until the first one's prompt is computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.answers import stream
from tests.gateways import Running, gateway, one_pool
from tests.raw_client import ask, chat
from tests.stub import Stub
from tests.upstream.live import Clock

LONG = "word " * 900


@dataclass(frozen=True)
class Held:
    running: Running
    open: asyncio.Event
    """Lets the engine answer, so that nothing is held any more."""

    @property
    def count(self) -> int:
        return sum(endpoint.held for pool in self.running.core.pools for endpoint in pool.endpoints)

    async def end(self) -> None:
        """Returns when nothing runs or is held."""
        self.open.set()
        await self.running.until(lambda: self.running.in_flight == 0)


@asynccontextmanager
async def two_held() -> AsyncIterator[Held]:
    gate = asyncio.Event()
    answer = stream(
        b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n',
        b"data: [DONE]\n\n",
        gate=gate,
        gate_before=0,
    )
    # The gateway's time stands still, so that no prompt counts as computed before its first byte.
    policy = one_pool("{url}", extra=", limits: {prefill: 1000}")
    async with Stub(answer) as stub, gateway(policy.replace("{url}", stub.url), clock=Clock()) as running:
        held = Held(running, gate)
        tasks = [asyncio.create_task(ask(running.url, chat(LONG, stream=True))) for _ in range(3)]
        await running.until(lambda: held.count == 2)
        yield held
        gate.set()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
