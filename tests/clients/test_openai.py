"""The Python `openai` SDK, blocking: what applications do with it, and the exceptions that they catch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.answers import hang, reply
from tests.e2e.fleet import MODEL, fleet_in_threads
from tests.gateways import gateway, one_pool
from tests.stub import Stub

ASK: Any = [{"role": "user", "content": "Is water wet? Answer yes or no."}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Verdict(pydantic.BaseModel):
    """An answer with a form."""

    label: str
    sure: bool


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fleet_in_threads() as made:
        yield made


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    """The same text both ways, and the usage at the stream's end."""
    whole = client.chat.completions.create(model=MODEL, messages=ASK, seed=3)
    pieces = list(
        client.chat.completions.create(
            model=MODEL, messages=ASK, seed=3, stream=True, stream_options={"include_usage": True}
        )
    )

    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage == whole.usage


def test_parse_gives_objects(client: openai.OpenAI) -> None:
    """Structured outputs through `parse`, and a tool's arguments."""
    parsed = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Verdict)
    called = client.chat.completions.create(model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required")

    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    calls = called.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert "city" in json.loads(calls[0].function.arguments)


def test_the_streaming_helper_accumulates_a_tool_call(client: openai.OpenAI) -> None:
    """The SDK's own event stream, which is strict about what chunks hold."""
    with client.chat.completions.stream(model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required") as stream:
        names = {event.type for event in stream}
        final = stream.get_final_completion()

    assert "tool_calls.function.arguments.done" in names
    assert final.choices[0].message.tool_calls


def test_other_resources(client: openai.OpenAI) -> None:
    """Completions, responses, embeddings, audio, models."""
    assert client.completions.create(model=MODEL, prompt="Once", max_tokens=5).choices[0].text
    assert client.responses.create(model=MODEL, input="hi", max_output_tokens=9).output_text
    assert len(client.embeddings.create(model=MODEL, input="あ").data[0].embedding) > 1
    assert client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"RIFF")).text == "4 bytes of sound."
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve("e4b").id == "e4b"


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    """400 from the back end, 404 from the gateway, each with its message, code and request id."""
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=9)
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gemma", messages=ASK)

    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert unknown.value.request_id


async def test_retries_and_time_outs_are_seen_as_such() -> None:
    """The SDK repeats a 429 and a 503 after `Retry-After`; where the back end is silent, its time-out is raised."""
    busy = reply({"error": {"message": "full", "type": "x", "param": None, "code": 429}}, 429, [("retry-after", "0")])
    ok = reply({"id": "x", "object": "chat.completion", "choices": [], "model": "m", "created": 1})
    policy = one_pool("{url}", extra=", retry: {attempts: 1}, timeouts: {first_byte: 2s}")
    async with (
        Stub(ok) as stub,
        gateway(policy.replace("{url}", stub.url)) as running,
        openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=2) as client,
    ):
        stub.script += [busy, busy]
        await client.chat.completions.create(model="m", messages=ASK)
        assert len(stub.requests) == 3
        stub.script += [hang] * 2
        once = client.with_options(max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            await once.with_options(timeout=0.1).chat.completions.create(model="m", messages=ASK)
        with pytest.raises(openai.InternalServerError) as late:
            await once.chat.completions.create(model="m", messages=ASK)
        assert late.value.status_code == 504
