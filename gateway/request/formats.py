"""Converts requests of OpenAI's Responses and Anthropic's Messages APIs to a chat-shaped view for feature extraction.

The view is never sent. Fields with another name there are renamed to chat's; fields that both formats share (sampling,
`min_p`, `logit_bias`) are kept; unknown forms are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.types import Api

Json = dict[str, object]

_MAX_PARTS = 256


def as_chat(data: Json, api: Api) -> Json:
    """The body as a chat body; chat and completions bodies are returned unchanged. Never raises."""
    if api is Api.RESPONSES:
        return _from_responses(data)
    if api is Api.MESSAGES:
        return _from_messages(data)
    return data


def _from_responses(data: Json) -> Json:
    view = {name: value for name, value in data.items() if name not in ("input", "text", "tools", "instructions")}
    view["messages"] = list(_response_turns(data))
    if isinstance(tools := data.get("tools"), list):
        # Responses puts the function's fields next to its type; built-in tools have only a type.
        view["tools"] = [{"type": "function", "function": tool} for tool in tools if isinstance(tool, dict)]
    text = data.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if isinstance(form, dict):
        view["response_format"] = {"type": form.get("type"), "json_schema": {"schema": form.get("schema")}}
    return view


def _response_turns(data: Json) -> Iterator[Json]:
    if instructions := data.get("instructions"):
        yield {"role": "system", "content": instructions}
    items = data.get("input")
    if isinstance(items, str):
        yield {"role": "user", "content": items}
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        if kind == "function_call":
            call = {"name": item.get("name"), "arguments": item.get("arguments")}
            yield {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}
        elif kind == "function_call_output":
            yield {"role": "tool", "content": item.get("output")}
        elif "role" in item:
            yield {"role": item["role"], "content": item.get("content")}


def _from_messages(data: Json) -> Json:
    view = {
        name: value
        for name, value in data.items()
        if name not in ("messages", "system", "tools", "tool_choice", "stop_sequences", "thinking", "metadata")
    }
    view["messages"] = list(_message_turns(data))
    if isinstance(tools := data.get("tools"), list):
        view["tools"] = [{"type": "function", "function": _tool(tool)} for tool in tools if isinstance(tool, dict)]
    choice = data.get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        view["tool_choice"] = choice if kind == "tool" else "required" if kind == "any" else kind
    if stops := data.get("stop_sequences"):
        view["stop"] = stops
    thinking = data.get("thinking")
    if isinstance(thinking, dict):
        view["chat_template_kwargs"] = {"enable_thinking": thinking.get("type") != "disabled"}
        view["thinking_token_budget"] = thinking.get("budget_tokens")
    metadata = data.get("metadata")
    if isinstance(metadata, dict) and metadata.get("user_id"):
        view["user"] = metadata["user_id"]
    output = data.get("output_config")
    form = output.get("format") if isinstance(output, dict) else None
    if isinstance(form, dict):
        view["response_format"] = {"type": form.get("type"), "json_schema": {"schema": form.get("schema")}}
    return view


def _tool(tool: Json) -> Json:
    return {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }


def _message_turns(data: Json) -> Iterator[Json]:
    if system := data.get("system"):
        yield {"role": "system", "content": system}
    messages = data.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if not isinstance(content, list):
            yield {"role": message.get("role"), "content": content}
            continue
        yield from _blocks(message.get("role"), [part for part in content[:_MAX_PARTS] if isinstance(part, dict)])


def _blocks(role: object, parts: list[Json]) -> Iterator[Json]:
    """Splits one Anthropic turn: tool results become turns of their own, tool calls a field of the assistant's turn."""
    for part in parts:
        if part.get("type") == "tool_result":
            yield {"role": "tool", "content": part.get("content")}
    rest = [part for part in parts if part.get("type") not in ("tool_result", "tool_use", "thinking")]
    calls = [
        {"function": {"name": part.get("name"), "arguments": _values(part.get("input"))}}
        for part in parts
        if part.get("type") == "tool_use"
    ]
    if rest or calls:
        yield {"role": role, "content": rest, "tool_calls": calls}


def _values(arguments: object) -> str:
    """A call's arguments as text, for counting. Nested values are skipped: writing them could recurse deeply."""
    if not isinstance(arguments, dict):
        return ""
    return " ".join(f"{name} {value}" for name, value in arguments.items() if isinstance(value, str | int | float))
