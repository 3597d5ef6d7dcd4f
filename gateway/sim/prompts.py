"""The prompt of a request, as the simulated engine counts it: a rendered chat, a text, or token ids."""

from __future__ import annotations

from typing import Any

from gateway.sim.errors import field_errors, invalid

_IMAGE_TOKENS = 280


def tool_names(tools: list[Any]) -> list[str]:
    """The functions' names; a tool without one is left out."""
    functions = (tool.get("function") for tool in tools if isinstance(tool, dict))
    names = (function.get("name") for function in functions if isinstance(function, dict))
    return [name for name in names if isinstance(name, str)]


def content_text(content: object) -> str:
    """The text of a message's content, text parts joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def chat_prompt(messages: list[Any], tools: object) -> tuple[tuple[str], str]:
    """The rendered prompt, control characters in the place of the template's special tokens, and the last user turn."""
    if not messages:
        raise invalid("list object has no element 0")
    rendered, instruction = [] if not tools else [f"\x01{tools}\n"], ""
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise field_errors([(f"messages.{index}", "Input should be a valid dictionary with a role", "missing")])
        text = content_text(message.get("content"))
        if message["role"] == "user":
            instruction = text
        if message.get("tool_calls"):
            text += str(message["tool_calls"])
        rendered.append(f"\x02{message['role']}\n{text}{_attachments(message.get('content'))}\x03\n")
    return ("".join([*rendered, "\x02model\n"]),), instruction


def _attachments(content: object) -> str:
    """A run of place holders for each part that is not text, as many as an image takes."""
    if not isinstance(content, list):
        return ""
    images: int = sum(isinstance(part, dict) and part.get("type") != "text" for part in content)
    return "\x04" * (_IMAGE_TOKENS * int(images))


def completion_prompts(prompt: object) -> tuple[tuple[str | tuple[int, ...], ...], str]:
    """The prompts of a completion: a text, ids, or a list of either; and the first one's text."""
    if isinstance(prompt, str):
        return (prompt,), prompt
    items = prompt if isinstance(prompt, list) else []
    if items and all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return (tuple(items),), ""
    prompts: list[str | tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str):
            prompts.append(item)
        elif isinstance(item, list) and item and all(type(token) is int for token in item):
            prompts.append(tuple(item))
        else:
            raise field_errors([("prompt", "Input should be a valid string or list of token ids", "string_type")])
    if not prompts:
        raise invalid("Please provide at least one prompt", param="prompt")
    first = prompts[0]
    return tuple(prompts), first if isinstance(first, str) else ""
