"""Refusals in vLLM's own status and words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.helpers import Server, say, sim

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}

BAD_REQUESTS: list[tuple[dict[str, Any], str | None]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 99999}, "max_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"tools": []}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"messages": []}, None),
]


def error_of(answer: Any, status: int) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.status_code == error["code"] == status
    return error


@pytest.mark.parametrize(("fields", "param"), BAD_REQUESTS)
async def test_a_value_out_of_range_is_a_400_that_names_it(fields: dict[str, Any], param: str | None) -> None:
    """Status 400, type BadRequestError, and the parameter."""
    async with sim() as server:
        error = error_of(await server.post(CHAT, say("Hi", **fields)), 400)

    assert (error["type"], error["param"]) == ("BadRequestError", param)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "json_invalid"),
        (b"", "json_invalid"),
        (b"[]", "valid dictionary"),
        (b"{}", "messages"),
        (b'{"messages":"hi"}', "messages"),
        (b'{"messages":["hi"]}', "messages.0"),
        (b'{"messages":[{"role":"user","content":"x"}],"stream":"perhaps"}', "bool_parsing"),
        (b'{"messages":[{"role":"user","content":"x"}],"stream":[]}', "bool_type"),
        (b'{"messages":[{"role":"user","content":"x"}],"max_tokens":"8","n":true}', "2 validation errors"),
    ],
)
async def test_a_body_of_the_wrong_shape_is_a_400_not_a_422(raw: bytes, words: str) -> None:
    """Malformed JSON and wrong types: type `Bad Request`, every wrong field named."""
    async with sim() as server:
        error = error_of(await server.client.post(CHAT, content=raw, headers={"content-type": "application/json"}), 400)

    assert error["type"] in ("Bad Request", "BadRequestError")
    assert words in error["message"]


async def test_only_json_is_accepted() -> None:
    """Another content type is a 400."""
    async with sim() as server:
        error_of(await server.client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}), 400)


async def test_the_model_must_be_served_but_may_be_empty() -> None:
    """An unknown model is 404 with the served names; a missing or empty one is the default."""
    async with sim() as server:
        error = error_of(await server.post(CHAT, say("Hi", model="other")), 404)
        empty = await server.chat("Hi", model="", max_tokens=1)

    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    assert "`e4b`, `gemma`" in error["message"]
    assert empty["model"] == "e4b"


@pytest.mark.parametrize("words", [17_000, 400_000])
async def test_a_prompt_beyond_the_context_names_input_tokens(words: int) -> None:
    """Too long is a 400 with vLLM's opening words; the count may be a lower bound."""
    async with sim() as server:
        error = error_of(await server.post(CHAT, say("a " * words)), 400)

    assert error["param"] == "input_tokens"
    assert error["message"].startswith("This model's maximum context length is 16384 tokens")


async def test_an_output_beyond_the_context_is_clamped_silently() -> None:
    """Prompt plus max_tokens over the context is no error: the answer ends where the context does."""
    async with sim() as server:
        text = "a " * 16_300
        answer = await server.chat(text, max_tokens=500, ignore_eos=True)

    assert answer["usage"]["total_tokens"] == 16384
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": []},
        {"prompt": [None]},
        {"prompt": {}},
        {},
    ],
)
async def test_a_completion_needs_a_prompt(body: dict[str, Any]) -> None:
    """No prompt, or none of a known kind: 400."""
    async with sim() as server:
        error_of(await server.post("/v1/completions", body), 400)


async def test_odd_but_valid_values_never_break_the_server() -> None:
    """Lone surrogates, deep nesting, whole floats, unknown fields: answered or refused, never 500."""
    bodies: list[bytes] = [
        b'{"messages":[{"role":"user","content":"\\ud800"}],"max_tokens":3}',
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":3.0,"made_up":{"a":[1]}}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":' + b"[" * 3000 + b"]" * 3000 + b'}],"max_tokens":3}',
        b'{"messages":[{"role":"user","content":null}],"max_tokens":3}',
        b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}],"max_tokens":3}',
        b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema"},"max_tokens":3}',
    ]
    async with sim() as server:
        statuses = [await status(server, body) for body in bodies]

    assert statuses == [200, 200, 400, 400, 200, 200, 200]


@pytest.mark.parametrize("value", [10**30, 10**400, -(10**400)])
async def test_a_number_beyond_all_bounds_is_a_400_on_every_route(value: int) -> None:
    """PARAM-03: what Python reads and no machine word or float holds is refused in every format, never a 500."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", say("Hi", max_tokens=4)),
        ("/v1/completions", {"model": "e4b", "prompt": "Hi", "max_tokens": 4}),
        ("/v1/responses", {"model": "e4b", "input": "Hi", "max_output_tokens": 4}),
        ("/v1/messages", {"model": "e4b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
    ]
    fields = (
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "temperature", "top_p"),
        *("seed", "priority", "top_logprobs", "thinking_token_budget"),
    )
    async with sim() as server:
        for path, body in bodies:
            for name in fields:
                got = await server.post(path, {**body, "logprobs": True, name: value})
                assert got.status_code in (200, 400), (path, name, got.text)
            limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            assert (await server.post(path, {**body, limit: value})).status_code == 400


async def status(server: Server, body: bytes) -> int:
    answer = await server.client.post(CHAT, content=body, headers={"content-type": "application/json"})
    return answer.status_code
