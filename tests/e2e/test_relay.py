"""How pieces of a stream get from one connection to the other: at the client's pace, over any server."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from gateway.app import build
from gateway.policy.load import parse_policy
from gateway.settings import Settings
from tests.answers import Flood, cut_stream, stream
from tests.e2e.events import DONE, data_lines, delta
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected
from tests.servers import serve
from tests.stub import Stub

STREAM = chat(stream=True)


async def test_a_client_that_does_not_read_stops_its_back_end() -> None:
    """MEM-01: what a slow client leaves unread is bounded and is no silence of the back end; later it has it all."""
    event = b"data: " + b"x" * (2**20 - 8) + b"\n\n"
    flood = Flood(event)
    async with Stub(flood) as stub, gateway(one_pool(stub.url)) as running, connected(running.url) as client:
        await client.send("/v1/chat/completions", json.dumps(STREAM).encode())
        await client.head()
        await asyncio.wait_for(flood.stuck.wait(), 60)
        (pool,) = running.core.pools
        (lease,) = pool.endpoints[0].leases

        assert not lease.waits
        sent, got = flood.sent, b""
        while flood.sent == sent:
            got += await asyncio.wait_for(client.chunk(), 60)
        assert (event * (len(got) // len(event) + 1)).startswith(got)
        client.close()
        await running.until(lambda: running.in_flight == 0)


@pytest.mark.parametrize("heartbeat", ["off", "5s"])
async def test_a_server_that_knows_asgi_only_brings_the_same(heartbeat: str) -> None:
    """Where pieces cannot go straight to the client's connection, they are sent in ASGI's way, cut and end alike."""
    events = [delta(f"{n} " + "x" * n) for n in range(300)]
    async with Stub() as stub:
        policy = parse_policy(one_pool(stub.url) + f"server: {{heartbeat: {heartbeat}}}\n", "policy.yaml", {})
        app = build(Settings(), policy, env={}, rng=random.Random(7))
        async with serve(app, loop="asyncio", http="httptools", lifespan="on") as url:
            stub.answer = stream(*events, delta("", "stop"), DONE)
            whole = await ask(url, STREAM)
            stub.answer = cut_stream(*events)
            cut = await ask(url, STREAM)

    assert whole.body == b"".join(events) + delta("", "stop") + DONE
    assert [json.loads(line)["error"]["code"] for line in data_lines(cut.body)[300:]] == ["connection_lost"]
