"""A key's limits over the worker processes of one `gateway serve`, without Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.answers import completion, stream
from tests.e2e.events import DONE, delta
from tests.e2e.test_process import owner_of, process
from tests.gateways import one_pool
from tests.raw_client import RawClient, ask, chat, connected
from tests.stub import Stub

PATH = "/v1/chat/completions"
LIMIT = 6
KEY = (("authorization", "Bearer alpha-secret"),)
POLICY = f"access: {{keys: [{{name: alpha, env: ALPHA, in_flight: {LIMIT}}}]}}\n"


async def test_the_whole_limit_is_one_wherever_its_requests_land(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-04: as many streams as the key may have run, however the kernel spreads them over workers, and not one more;
    a worker that is killed takes its own places with it and no others."""
    monkeypatch.setenv("ALPHA", "alpha-secret")
    gate = asyncio.Event()
    async with Stub(stream(delta("one"), delta("two", "stop"), DONE, gate=gate)) as stub, AsyncExitStack() as open_:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url) + POLICY)
        async with process(policy, "--workers", "2") as (_, url):
            clients = [await open_.enter_async_context(connected(url)) for _ in range(LIMIT)]
            assert [await begun(client) for client in clients] == [200] * LIMIT
            refused = [await ask(url, chat(), headers=KEY) for _ in range(LIMIT)]
            assert [answer.status for answer in refused] == [429] * LIMIT
            assert f"its limit of {LIMIT} requests at a time" in str(refused[0].error["message"])

            victim = owner(url, clients[0])
            left = [client for client in clients if owner(url, client) != victim]
            os.kill(victim, signal.SIGKILL)
            again: list[RawClient] = []
            async with asyncio.timeout(60):
                while len(again) < LIMIT - len(left):
                    client = await open_.enter_async_context(connected(url))
                    # It may still have gone to the one that dies.
                    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                        again += [client] if await begun(client) == 200 else []
                    await asyncio.sleep(0.02)
            assert (await ask(url, chat(), headers=KEY)).status == 429
            gate.set()


async def test_the_whole_limit_per_minute_is_one_wherever_its_requests_land(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-04: one worker may let all of it through, then none lets any, and so it stays if that worker is killed."""
    monkeypatch.setenv("ALPHA", "alpha-secret")
    async with Stub(completion(3, 5)) as stub:
        policy = tmp_path / "policy.yaml"
        policy.write_text(one_pool(stub.url) + POLICY.replace("in_flight", "requests_per_minute"))
        async with process(policy, "--workers", "2") as (_, url):
            async with connected(url) as client:
                statuses = [await answered(client) for _ in range(LIMIT + 1)]
                assert statuses == [200] * LIMIT + [429]
                os.kill(owner(url, client), signal.SIGKILL)
            refused: list[int] = []
            async with asyncio.timeout(60):
                while len(refused) < LIMIT:
                    # A connection may still have gone to the one that dies.
                    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                        refused.append((await ask(url, chat(), headers=KEY)).status)

            assert refused == [429] * LIMIT
            assert len(stub.requests) == LIMIT


async def answered(client: RawClient) -> int:
    """The status of a whole answer, after which the connection can be used again."""
    await client.send(PATH, json.dumps(chat()).encode(), headers=KEY)
    return (await asyncio.wait_for(client.answer(), 60)).status


async def begun(client: RawClient) -> int:
    """The status of a stream, which then runs until the gate opens."""
    await client.send(PATH, json.dumps(chat(stream=True)).encode(), headers=KEY)
    status, _ = await asyncio.wait_for(client.head(), 60)
    return status


def owner(url: str, client: RawClient) -> int:
    """The worker that has this connection."""
    return owner_of(int(url.rpartition(":")[2]), client.writer.get_extra_info("sockname")[1])
