"""Responses, Messages and chat batches say the same about their answer as the chat request that means the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request.features import extract
from gateway.request.parse import Body, parse_body
from gateway.request.tokens import Part
from gateway.types import Api, Features, Structure, ToolChoice

SCHEMA = {"type": "object", "properties": {"label": {"enum": ["spam", "ham"]}}, "required": ["label"]}
TOOL = {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "required": ["city"]}}
ASK = "次の文を分類して。一語で答えて。"


def of(api: Api, **body: object) -> Features:
    return extract(parse_body(json.dumps({"model": "m", **body}).encode()), api)


def test_a_text_input_is_the_user_turn() -> None:
    """One text under `input` asks as one user turn does, instructions included."""
    chat = of(
        Api.CHAT,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}],
        max_completion_tokens=9,
    )
    found = of(Api.RESPONSES, input=ASK, instructions="Be brief.", max_output_tokens=9)

    assert (found.instruction, found.cap, found.explicit_cap) == (chat.instruction, 9, True)
    assert (found.input_tokens, found.language, found.task_scores) == (
        chat.input_tokens,
        "ja",
        chat.task_scores,
    )
    assert found.system_key == chat.system_key != 0


def test_responses_items_tools_and_schema_are_found() -> None:
    """Items of a conversation, flat tools, a named choice, `text.format` and reasoning effort."""
    found = of(
        Api.RESPONSES,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "Weather in Osaka?"}]},
            {"type": "function_call", "name": "get_weather", "arguments": '{"city":"Osaka"}', "call_id": "1"},
            {"type": "function_call_output", "call_id": "1", "output": "rain"},
        ],
        tools=[{"type": "function", **TOOL}],
        tool_choice={"type": "function", "name": "get_weather"},
        text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        reasoning={"effort": "high"},
    )

    assert (found.tools, found.tool_choice, found.tool_fields) == (1, ToolChoice.NAMED, 1)
    assert found.structure is Structure.JSON_SCHEMA
    assert found.thinking is True
    assert found.after_tool
    assert "Osaka" in found.instruction


def test_messages_say_the_same_in_anthropics_words() -> None:
    """System, blocks, tools, `any`, stop sequences, thinking and the required cap."""
    found = of(
        Api.MESSAGES,
        max_tokens=64,
        system=[{"type": "text", "text": "Be brief."}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Weather in Osaka?"}, {"type": "image"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "name": "get_weather", "input": {"city": "Osaka"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}]},
        ],
        tools=[{"name": "get_weather", "input_schema": TOOL["parameters"]}],
        tool_choice={"type": "any"},
        stop_sequences=["\n"],
        thinking={"type": "enabled", "budget_tokens": 2048},
        metadata={"user_id": "u"},
    )

    assert (found.cap, found.explicit_cap, found.stop_line) == (64, True, True)
    assert (found.tools, found.tool_choice, found.tool_fields) == (1, ToolChoice.REQUIRED, 1)
    assert (found.thinking, found.thinking_budget, found.profile[Part.IMAGE]) == (True, 2048, 1)
    assert found.after_tool
    assert found.system_key != 0
    assert found.thread_key != 0


def test_a_batch_counts_each_conversation() -> None:
    """A chat batch is as many choices as conversations, and all of their texts are input."""
    one = of(Api.CHAT, messages=[{"role": "user", "content": ASK}])
    batch = of(Api.CHAT, messages=[[{"role": "user", "content": ASK}]] * 3)

    assert (one.n, batch.n) == (1, 3)
    assert batch.input_tokens > 2 * one.input_tokens
    assert batch.instruction == one.instruction


@pytest.mark.parametrize("depth", [2, 3, 400])
def test_a_batch_in_a_batch_is_no_conversation(depth: int) -> None:
    """BODY-03: lists in lists are read without following them down, however deep they go."""
    messages: list[object] = [{"role": "user", "content": ASK}]
    for _ in range(depth):
        messages = [messages]

    assert of(Api.CHAT, messages=messages).instruction == ""


_leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_flat = _leaf | st.lists(_leaf, max_size=3) | st.dictionaries(st.text(max_size=8), _leaf, max_size=3)
_json = _flat | st.lists(_flat, max_size=3) | st.dictionaries(st.text(max_size=8), _flat, max_size=3)
_names = st.sampled_from(
    [
        "input",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "text",
        "thinking",
        "metadata",
        "instructions",
        "output_config",
    ]
)


@given(st.dictionaries(_names, _json), st.sampled_from([Api.RESPONSES, Api.MESSAGES, Api.CHAT]))
def test_no_body_breaks_the_readers(data: dict[str, object], api: Api) -> None:
    """Whatever JSON stands in the known fields, features come out."""
    extract(Body(model="m", stream=False, data=data, size=0), api)
