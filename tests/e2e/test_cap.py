"""A slow dependency piles requests up to the cap and no further."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import openai
import pytest

from tests.answers import hang, reply
from tests.e2e.test_process import process
from tests.e2e.test_replicas import AUTH, PATH, policy_file
from tests.gateways import gateway, one_pool
from tests.raw_client import ask, chat, connected, counted, get
from tests.redis_server import redis_server
from tests.stub import Stub

CAP = 20
OK = reply({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
CAPPED = f"server: {{max_requests: {CAP}}}\n"


async def test_a_back_end_that_hangs_fills_the_cap_and_no_more(tmp_path: Path) -> None:
    """OPS-03: beyond the cap 503 at once with `Retry-After`, in OpenAI's shape, while health, metrics and pages answer;
    it is counted, and the first place that is free again is taken."""
    async with Stub(hang) as stub:
        file = tmp_path / "policy.yaml"
        file.write_text(one_pool(stub.url) + CAPPED)
        async with process(file) as (_, url), AsyncExitStack() as clients:
            waiting = [await clients.enter_async_context(connected(url)) for _ in range(CAP)]
            for client in waiting:
                await client.send(PATH, json.dumps(chat()).encode())
            await stub.until(lambda: len(stub.requests) == CAP)

            refused = await asyncio.gather(*(ask(url, chat()) for _ in range(30)))
            assert {(answer.status, answer.header("retry-after")) for answer in refused} == {(503, "1")}
            assert refused[0].error["type"] == "service_unavailable"
            assert "max_requests" in str(refused[0].error["message"])
            async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client_of_openai:
                with pytest.raises(openai.InternalServerError):
                    await client_of_openai.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "hi"}]
                    )
            assert len(stub.requests) == CAP
            for path in ("/health", "/ready", "/gateway/pools", "/v1/models"):
                assert (await get(url, path)).status == 200
            assert await counted(url, "gateway_requests_total", outcome="rejected") == 31.0

            waiting[0].reset()
            await stub.until(lambda: stub.open == CAP - 1)
            stub.answer = OK
            async with asyncio.timeout(20):
                while (await ask(url, chat())).status != 200:
                    await asyncio.sleep(0.01)


async def test_requests_that_wait_for_a_place_count() -> None:
    """OPS-03: a queue is no way around the cap."""
    async with (
        Stub(hang) as stub,
        gateway(one_pool(stub.url, extra=", limits: {in_flight: 5}") + CAPPED) as running,
        AsyncExitStack() as clients,
    ):
        for _ in range(CAP):
            client = await clients.enter_async_context(connected(running.url))
            await client.send(PATH, json.dumps(chat()).encode())
        await running.until(lambda: running.core.running == CAP)
        assert (len(stub.requests), running.core.pools["plain"].waiting) == (5, CAP - 5)
        assert (await ask(running.url, chat())).status == 503
        assert running.core.pools.shedder.shed == 1


async def test_a_frozen_redis_piles_nothing_up(tmp_path: Path) -> None:
    """OPS-03, REDIS-01: 2,000 requests with a key's limit while Redis does not answer: each is served or refused by the
    cap, nothing hangs, and nothing is left."""
    with redis_server() as server:
        async with Stub(OK) as stub:
            policy = policy_file(tmp_path, stub.url, ", requests_per_minute: 100000, tokens_per_minute: 100000000")
            policy.write_text(policy.read_text() + CAPPED)
            async with process(policy, "--redis-url", server.url) as (_, url):
                assert (await ask(url, chat(), headers=AUTH)).status == 200
                server.freeze()
                answers = []
                for _ in range(20):
                    answers += await asyncio.gather(*(ask(url, chat(), headers=AUTH) for _ in range(100)))
                server.thaw()

                statuses = {answer.status for answer in answers}
                assert statuses <= {200, 503}
                assert sum(answer.status == 200 for answer in answers) >= CAP
                assert all(answer.header("retry-after") for answer in answers if answer.status == 503)
                assert (await ask(url, chat(), headers=AUTH)).status == 200
