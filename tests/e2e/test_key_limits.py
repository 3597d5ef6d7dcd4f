"""Every limit of a key as a client meets it: the unmodified OpenAI SDK, real sockets, a clock that can be put on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import pytest

from gateway.access.ticket import Limit
from gateway.api.usage import SILENT_STREAMS
from gateway.policy.schema import AccessKey
from tests.answers import completion, stream
from tests.e2e.events import DONE, delta, usage
from tests.gateways import Running, gateway, one_pool
from tests.stub import Call, Stub

ENV = {"ALPHA": "alpha-secret"}
PROMPT, ANSWER = 60, 40
WHOLE = completion(PROMPT, ANSWER)
SILENT = stream(delta("one"), delta("two", "stop"), DONE)
TELLING = stream(delta("one"), delta("two", "stop"), usage(PROMPT, ANSWER), DONE)
SAID: list[Any] = [{"role": "user", "content": "Tell me about tides."}]


async def streaming(call: Call) -> None:
    """Tells usage where it is asked to."""
    await (TELLING if b'"include_usage":true' in call.request.body.replace(b" ", b"") else SILENT)(call)


class Clock:
    """The machine's, put on at will."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def policy_for(url: str, limits: str) -> str:
    return one_pool(url) + f"access: {{keys: [{{name: alpha, env: ALPHA, {limits}}}]}}\n"


def sdk(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="alpha-secret", max_retries=0)


def refusal(error: openai.RateLimitError) -> int:
    """The `Retry-After` of a refusal that is one in every respect."""
    assert error.status_code == 429
    assert (error.code, error.type, error.param) == ("rate_limit_exceeded", "rate_limit_error", None)
    assert isinstance(error.body, dict)
    assert set(error.body) == {"message", "type", "param", "code"}
    return int(error.response.headers["retry-after"])


def key_of(running: Running) -> AccessKey:
    assert running.core.active.policy.access is not None
    return running.core.active.policy.access.keys[0]


def left(running: Running, limit: Limit) -> int:
    return running.core.limits.standing(key_of(running))[limit].remaining


@pytest.mark.parametrize(
    ("limits", "passing", "words"),
    [
        ("requests_per_minute: 2", 2, "2 requests per minute"),
        ("tokens_per_minute: 270", 3, "270 tokens per minute"),
        ("input_tokens_per_minute: 185", 3, "185 input tokens per minute"),
        ("output_tokens_per_minute: 80", 2, "80 output tokens per minute"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_limit_refuses_and_lets_on_after_the_time_that_it_names(
    limits: str, passing: int, words: str, streamed: bool
) -> None:
    """RETRY-06: as many pass as the back end's counts allow; then 429, `Retry-After`, nothing sent, counted for the
    model; who waits that long gets through, and who comes half as late does not."""
    clock = Clock()
    async with (
        Stub(streaming if streamed else WHOLE) as stub,
        gateway(policy_for(stub.url, limits), ENV, clock=clock) as running,
        sdk(running.url) as client,
    ):

        async def ask() -> None:
            if not streamed:
                await client.chat.completions.create(model="m", messages=SAID, max_tokens=4)
                return
            async with await client.chat.completions.create(
                model="m", messages=SAID, max_tokens=4, stream=True, stream_options={"include_usage": True}
            ) as pieces:
                assert len([piece async for piece in pieces]) == 3

        for _ in range(passing):
            await ask()
            await running.until(lambda: not running.core.running)
        with pytest.raises(openai.RateLimitError, match=words) as refused:
            await ask()
        wait = refusal(refused.value)
        assert 1 <= wait <= 62
        assert running.counted("gateway_requests_total", model="m", outcome="rejected") == 1
        assert running.counted("gateway_requests_total", model="m", pool="none", outcome="rejected") == 1

        clock.ahead += wait / 2
        with pytest.raises(openai.RateLimitError):
            await ask()
        assert len(stub.requests) == passing
        clock.ahead += wait / 2
        await ask()
        assert len(stub.requests) == passing + 1


async def test_a_place_is_back_when_a_stream_ends_or_is_cancelled() -> None:
    """CANCEL-03: with one place, a second request is refused as long as the first runs and no longer."""
    async with (
        Stub(stream(delta("one"), finish=False)) as stub,
        gateway(policy_for(stub.url, "in_flight: 1"), ENV) as running,
        sdk(running.url) as client,
    ):

        async def begin() -> openai.AsyncStream[Any]:
            return await client.chat.completions.create(model="m", messages=SAID, stream=True)

        for _ in range(3):
            running_one = await begin()
            await anext(aiter(running_one))
            with pytest.raises(openai.RateLimitError, match="1 requests at a time") as refused:
                await begin()
            assert refusal(refused.value) == 1
            await running_one.close()
            await running.until(lambda: not running.core.limits.in_flight())

        stub.answer = streaming
        async with await begin() as whole:
            assert len([piece async for piece in whole]) == 2
        async with await begin() as again:
            assert len([piece async for piece in again]) == 2
        assert running.counted("gateway_requests_total", model="m", outcome="rejected") == 3
        assert running.counted("gateway_requests_total", model="m", outcome="client_closed") == 3


async def test_a_cancelled_task_gives_its_place_back() -> None:
    """CANCEL-02: whole answers that nobody waits for any more, and those still waiting for a place in the pool."""
    async with (
        Stub(stream(delta("one"), finish=False)) as stub,
        gateway(policy_for(stub.url, "in_flight: 2, tokens_per_minute: 100000"), ENV) as running,
        sdk(running.url) as client,
    ):
        for _ in range(3):
            asked = [
                asyncio.create_task(client.chat.completions.create(model="m", messages=SAID, max_tokens=4))
                for _ in range(2)
            ]
            seen = len(stub.requests)
            await stub.until(lambda seen=seen: len(stub.requests) == seen + 2)  # type: ignore[misc]
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model="m", messages=SAID)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            await running.until(lambda: not running.core.limits.in_flight())


async def test_a_stream_costs_what_was_counted_and_a_cancelled_one_its_estimate() -> None:
    """Tokens taken at the door beyond those that came are given back, though the client did not ask for counts; a
    stream cut short was worked on, and nobody says how much."""
    async with (
        Stub(streaming) as stub,
        gateway(policy_for(stub.url, "tokens_per_minute: 100000"), ENV) as running,
        sdk(running.url) as client,
    ):

        def taken() -> int:
            return 100000 - left(running, Limit.TOKENS)

        async def begin() -> openai.AsyncStream[Any]:
            return await client.chat.completions.create(model="m", messages=SAID, stream=True, max_tokens=3000)

        for _ in range(SILENT_STREAMS + 1):
            before = taken() if stub.requests else 0
            async with await begin() as whole:
                assert [piece.usage async for piece in whole] == [None, None]
            await running.until(lambda: not running.core.running)
        assert b"include_usage" in stub.requests[-1].body
        assert taken() - before == PROMPT + ANSWER

        stub.answer, before = stream(delta("one"), finish=False), taken()
        cut = await begin()
        await anext(aiter(cut))
        at_the_door = taken() - before
        await cut.close()
        await running.until(lambda: not running.core.running)
        assert taken() - before == at_the_door > PROMPT + ANSWER


async def test_more_than_a_minute_holds_is_refused_for_what_it_is() -> None:
    """A prompt above the whole limit can never pass: the message says so and does not send the client to wait."""
    async with (
        Stub(WHOLE) as stub,
        gateway(policy_for(stub.url, "input_tokens_per_minute: 10"), ENV) as running,
        sdk(running.url) as client,
    ):
        with pytest.raises(openai.RateLimitError, match="must be shorter") as refused:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 100}])
        refusal(refused.value)
        assert stub.requests == []
