"""The unmodified OpenAI SDK against the gateway, with simulated vLLM servers behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings
from tests.gateways import Running, gateway
from tests.servers import serve

LONG = "Write a detailed essay about the history of lighthouses."
LABEL = "Classify the sentiment of this review as positive or negative. Answer with one word: I loved it."


@pytest_asyncio.fixture
async def running() -> AsyncIterator[Running]:
    """A gateway in front of one plain and one MTP server, both simulated."""
    async with serve(create_app(sim(0))) as plain, serve(create_app(sim(2))) as mtp:
        policy = f"""
version: 1
pools:
  plain: {{endpoints: ["{plain}"], profile: h200}}
  mtp: {{endpoints: ["{mtp}"], profile: h200, speculative: {{method: mtp, tokens: 2}}}}
models:
  gemma-4-e4b: {{pools: [plain, mtp], architecture: dense, aliases: [e4b]}}
"""
        async with gateway(policy) as running:
            yield running


def sim(k: int) -> SimSettings:
    return SimSettings(served_names=("gemma-4-e4b",), k=k, profile="h200")


@pytest_asyncio.fixture
async def client(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def messages(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_short_goes_to_plain_and_long_to_mtp(client: openai.AsyncOpenAI) -> None:
    """The main job: a label from a plain back end, an essay from an MTP back end, by changing `base_url` only."""
    raw = client.chat.completions.with_raw_response
    short = await raw.create(model="gemma-4-e4b", messages=messages(LABEL), max_tokens=4)
    long = await raw.create(model="gemma-4-e4b", messages=messages(LONG), max_tokens=300)

    assert short.headers["x-gateway-pool"] == "plain"
    assert long.headers["x-gateway-pool"] == "mtp"
    usage = long.parse().usage
    assert usage is not None
    assert usage.completion_tokens > 100


async def test_the_same_in_japanese(client: openai.AsyncOpenAI) -> None:
    """日本語でも同じ: a one-word answer is short, a detailed explanation is long."""
    raw = client.chat.completions.with_raw_response
    short = await raw.create(
        model="e4b", messages=messages("次の文は肯定ですか、否定ですか。一語で答えて。とても良い。")
    )
    long = await raw.create(model="e4b", messages=messages("量子力学の歴史を詳しく説明してください。"), max_tokens=300)

    assert short.headers["x-gateway-pool"] == "plain"
    assert long.headers["x-gateway-pool"] == "mtp"


async def test_streaming_tells_the_same_text_as_the_whole(client: openai.AsyncOpenAI) -> None:
    """A stream's pieces add up to the answer of the same request without streaming; usage comes when asked for."""
    ask: dict[str, Any] = {"model": "gemma-4-e4b", "messages": messages(LONG), "max_tokens": 120, "seed": 5}
    whole = await client.chat.completions.create(**ask)
    pieces = [
        piece
        async for piece in await client.chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        )
    ]

    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage is not None
    assert whole.usage is not None
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens == 120


async def test_tools_come_back_as_calls(client: openai.AsyncOpenAI) -> None:
    """A required tool is called, with arguments that parse."""
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    answer = await client.chat.completions.create(
        model="gemma-4-e4b", messages=messages("Weather in Osaka?"), tools=[tool], tool_choice="required"
    )

    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"


async def test_completions_and_models(client: openai.AsyncOpenAI) -> None:
    """The older API and the list of models."""
    completion = await client.completions.create(model="e4b", prompt="Once upon a time")
    listed = [model.id async for model in client.models.list()]

    assert completion.usage is not None
    assert completion.usage.completion_tokens <= 16
    assert completion.model == "e4b"
    assert listed == ["gemma-4-e4b"]


async def test_min_p_never_reaches_an_mtp_pool(client: openai.AsyncOpenAI) -> None:
    """SPEC-03: vLLM refuses `min_p` and `logit_bias` with speculative decoding; long or not, they go to plain."""
    for extra in ({"extra_body": {"min_p": 0.1}}, {"logit_bias": {"5": 1}}):
        raw = await client.chat.completions.with_raw_response.create(
            model="gemma-4-e4b",
            messages=messages(LONG),
            max_tokens=200,
            **extra,
        )

        assert raw.headers["x-gateway-pool"] == "plain"
        assert raw.headers["x-gateway-reason"] == "gate"


async def test_a_hint_chooses_the_pool(client: openai.AsyncOpenAI) -> None:
    """`x-gateway-pool` is heeded where the gates allow it."""
    raw = await client.chat.completions.with_raw_response.create(
        model="gemma-4-e4b", messages=messages(LABEL), max_tokens=4, extra_headers={"x-gateway-pool": "mtp"}
    )

    assert (raw.headers["x-gateway-pool"], raw.headers["x-gateway-reason"]) == ("mtp", "client")


async def test_a_back_ends_refusal_raises_the_sdks_class(client: openai.AsyncOpenAI) -> None:
    """The back end's own 400 arrives as the SDK's BadRequestError."""
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(model="gemma-4-e4b", messages=messages("hi"), temperature=5)


def test_the_synchronous_client() -> None:
    """The blocking SDK works the same; covered by the commands of the README as well."""
    from tests.servers import serve_in_thread

    with serve_in_thread(create_app(sim(0))) as url:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(model="gemma-4-e4b", messages=messages(LABEL), max_tokens=4)

        assert answer.choices[0].message.content
        client.close()
