"""A few hundred malformed requests against a gateway on a socket; `tests.benchmarks.malformed` sends very many."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from tests.benchmarks.malformed import draw_cases
from tests.benchmarks.malformed_client import AcceptsAll, send
from tests.gateways import gateway, one_pool

CASES = 300
TOGETHER = 16


async def test_nonsense_gets_no_5xx_and_leaves_nothing_behind() -> None:
    """CANCEL-05: bodies, headers, paths and framing by Hypothesis; each is answered or cut, and every count is 0."""
    unreadable: list[bool] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: AcceptsAll(lambda: unreadable.append(True)), "127.0.0.1", 0)
    async with server, gateway(one_pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as running:
        port = urlsplit(running.url).port or 0
        cases = await asyncio.to_thread(draw_cases, CASES, 7)
        problems = []
        for at in range(0, len(cases), TOGETHER):
            some = cases[at : at + TOGETHER]
            seen = await asyncio.gather(*(send(port, case) for case in some))
            problems += [(s.problem, case.wire[:300]) for s, case in zip(seen, some, strict=True) if s.problem]

        assert problems == []
        assert not unreadable
        await running.until(lambda: running.core.running == 0)
        assert running.in_flight == 0
