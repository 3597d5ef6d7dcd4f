"""A key's tokens over two gateway processes that share one Redis: to the token, whichever process a request meets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import openai
import pytest
import redis

from tests.answers import completion, stream
from tests.e2e.events import delta
from tests.e2e.test_replicas import AUTH, PATH, PATIENT, SECRET, policy_file, replicas, until
from tests.raw_client import ask, chat, connected, counted
from tests.redis_server import RedisServer, redis_server
from tests.stub import Stub

LIMIT = 600
"""Few enough that all of it is used within the minute on a slow machine, where each answer is told a second later."""
USED = 100
WHOLE = completion(60, USED - 60)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def used(server: RedisServer) -> int:
    """Tokens of the key that Redis counts against the limit."""
    with redis.Redis(port=server.port, decode_responses=True) as client:
        rows = [client.hgetall(name) for name in client.scan_iter("*k:tokens*")]
    return sum(int(units) for row in rows for slot, units in row.items() if slot != "epoch")


async def refusals(url: str) -> float:
    """Requests for the model that the gateway counts as refused."""
    return await counted(url, "gateway_requests_total", model="m", outcome="rejected")


async def refusal(url: str) -> openai.RateLimitError:
    """The SDK's error for one request more than the key may send."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=SECRET, max_retries=0) as client:
        with pytest.raises(openai.RateLimitError, match=f"{LIMIT} tokens per minute") as refused:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
    return refused.value


async def test_what_answers_cost_is_exact_over_two_gateways(server: RedisServer, tmp_path: Path) -> None:
    """OPS-04: answers of 100 tokens under 600 a minute: six pass, by turns, and both then refuse in OpenAI's shape
    for as long as it takes; each refusal counts for its model."""
    async with Stub(WHOLE) as stub:
        policy = policy_file(tmp_path, stub.url, f", tokens_per_minute: {LIMIT}")
        async with replicas(policy, server.url, wait=PATIENT) as urls:
            for number in range(LIMIT // USED):
                answer = await ask(urls[number % 2], chat(max_tokens=4), headers=AUTH)
                assert answer.status == 200

                async def told(by_now: int = (number + 1) * USED) -> bool:
                    return used(server) == by_now

                # What an answer cost beyond its estimate is told within a second.
                await until(told)
            for url in urls:
                refused = await refusal(url)
                assert refused.code == "rate_limit_exceeded"
                assert 1 <= int(refused.response.headers["retry-after"]) <= 62
                assert await refusals(url) == 1.0
            assert len(stub.requests) == LIMIT // USED
            assert used(server) == LIMIT


async def test_what_runs_is_counted_before_it_ends(server: RedisServer, tmp_path: Path) -> None:
    """OPS-04: streams that run at both gateways hold their estimates: as many begin as fit, what one of them had
    fetched ahead a second later, and never one more; leaving them is no way around the limit."""
    async with Stub(stream(delta("one"), finish=False)) as stub:
        policy = policy_file(tmp_path, stub.url, f", tokens_per_minute: {LIMIT}")
        async with replicas(policy, server.url, wait=PATIENT) as urls, AsyncExitStack() as clients:

            async def passes(url: str) -> int | None:
                """What is left after it, as the answer tells; None where it is refused."""
                client = await clients.enter_async_context(connected(url))
                await client.send(PATH, json.dumps(chat(stream=True)).encode(), headers=AUTH)
                status, headers = await client.head()
                assert status in (200, 429)
                assert used(server) <= LIMIT
                return int(dict(headers)["x-ratelimit-remaining-tokens"]) if status == 200 else None

            left = await passes(urls[0])
            assert left is not None
            estimate = LIMIT - left
            fitting, passed = LIMIT // estimate, 1

            async def filled() -> bool:
                nonlocal passed
                passed += sum([await passes(url) is not None for url in urls])
                return passed >= fitting

            await until(filled)
            await filled()
            assert passed == fitting > 1
            await clients.aclose()

            await stub.until(lambda: stub.open == 0)
            assert passed * estimate <= used(server) <= LIMIT
            assert await passes(urls[0]) is None
